"""The lineage at the head of a RocksDB changelog that carries a unique id in its name.

Decompressed, such a changelog begins with two strings of Java's, each after its length in two
bytes: its version, and the states that it builds on, back to the snapshot that was the newest when
it was begun::

    v3                           v4 when the store has column families
    [{"version":6,"checkpointUniqueId":"8ba18d39-…"},{"version":7,"checkpointUniqueId":"d450…"}]

Python's standard library has none of the codecs that Spark offers for it. Three of them are simple
enough to be read here, as far as the head goes; zstd is left to whoever has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider.runtime.errors import CorruptDocumentError, UnknownFormatError
from airflow_provider.runtime.typed_json import read_json

if TYPE_CHECKING:
    from collections.abc import Iterator

_VERSIONS = frozenset({"v3", "v4"})

_LZ4_MAGIC = b"LZ4Block"
_LZ4_HEADER_BYTES = 21
_LZ4_STORED = 0x10
_LZ4_SHORTEST_MATCH = 4
_SNAPPY_MAGIC = b"\x82SNAPPY\0"
_SNAPPY_HEADER_BYTES = 16
_LZF_MAGIC = b"ZV"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_NIBBLE = 15  # a length that does not fit goes on in the bytes after it,
_BYTE = 255  # as long as they are full


def read_lineage(data: bytes, *, where: str) -> dict[int, str]:
    """Return the unique id of each version that the changelog builds on.

    Args:
        data: the changelog, or enough of its beginning.
        where: its address, named in errors.

    Raises:
        UnknownFormatError: it is of another version, or compressed with a codec that is not here.
        CorruptDocumentError: it is not a changelog with a lineage.
    """
    try:
        head = _Head(_blocks(data, where=where))
        version = head.string()
        if version not in _VERSIONS:
            msg = f"{where}: {version[:20]!r} is not a version of changelogs with a lineage"
            raise UnknownFormatError(msg)
        items = read_json(head.string())
        return {int(item["version"]): str(item["checkpointUniqueId"]) for item in items}
    except (IndexError, ValueError, KeyError, TypeError, StopIteration) as error:
        msg = f"{where}: not a changelog with a lineage"
        raise CorruptDocumentError(msg) from error


class _Head:
    """The beginning of what the blocks hold, read as far as asked."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._read = b""

    def string(self) -> str:
        return self._take(int.from_bytes(self._take(2), "big")).decode()

    def _take(self, size: int) -> bytes:
        while len(self._read) < size:
            self._read += next(self._blocks)
        taken, self._read = self._read[:size], self._read[size:]
        return taken


def _blocks(data: bytes, *, where: str) -> Iterator[bytes]:
    if data.startswith(_LZ4_MAGIC):
        return _lz4_blocks(data)
    if data.startswith(_SNAPPY_MAGIC):
        return _snappy_blocks(data)
    if data.startswith(_LZF_MAGIC):
        return _lzf_blocks(data)
    if data.startswith(_ZSTD_MAGIC):
        return _zstd_blocks(data, where=where)
    msg = f"{where}: compressed with a codec that is not known here (it begins {data[:8]!r})"
    raise UnknownFormatError(msg)


def _lz4_blocks(data: bytes) -> Iterator[bytes]:
    at = 0
    while data[at : at + len(_LZ4_MAGIC)] == _LZ4_MAGIC:
        method = data[at + 8] & 0xF0
        size = int.from_bytes(data[at + 9 : at + 13], "little")
        at += _LZ4_HEADER_BYTES
        block = data[at : at + size]
        yield block if method == _LZ4_STORED else _unpack_lz4(block)
        at += size


def _unpack_lz4(block: bytes) -> bytes:
    out = bytearray()
    at = 0
    while at < len(block):
        token = block[at]
        literals, at = _length(block, at + 1, token >> 4)
        out += block[at : at + literals]
        at += literals
        if at < len(block):  # the last sequence ends with its literals
            distance = int.from_bytes(block[at : at + 2], "little")
            more, at = _length(block, at + 2, token & _NIBBLE)
            _repeat(out, distance, more + _LZ4_SHORTEST_MATCH)
    return bytes(out)


def _length(block: bytes, at: int, length: int) -> tuple[int, int]:
    if length < _NIBBLE:
        return length, at
    while block[at] == _BYTE:
        length += _BYTE
        at += 1
    return length + block[at], at + 1


def _repeat(out: bytearray, distance: int, length: int) -> None:
    """Append *length* bytes that begin *distance* before the end, which they may run over."""
    if not 0 < distance <= len(out):
        raise ValueError(distance)
    start = len(out) - distance
    piece = bytes(out[start : start + length])
    out += (piece * (length // len(piece) + 1))[:length]


def _snappy_blocks(data: bytes) -> Iterator[bytes]:
    at = _SNAPPY_HEADER_BYTES
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        at += 4
        yield _unpack_snappy(data[at : at + size])
        at += size


def _unpack_snappy(block: bytes) -> bytes:
    at = 0
    while block[at] & 0x80:  # the length of the result, which its end tells as well
        at += 1
    at += 1
    out = bytearray()
    while at < len(block):
        tag = block[at]
        kind, at = tag & 3, at + 1
        if kind == 0:
            size, at = _snappy_literals(block, at, tag >> 2)
            out += block[at : at + size]
            at += size
        elif kind == 1:
            _repeat(out, (tag >> 5) << 8 | block[at], (tag >> 2 & 7) + 4)
            at += 1
        else:
            width = 2 if kind == 2 else 4  # noqa: PLR2004 - the format's own numbers
            _repeat(out, int.from_bytes(block[at : at + width], "little"), (tag >> 2) + 1)
            at += width
    return bytes(out)


def _snappy_literals(block: bytes, at: int, length: int) -> tuple[int, int]:
    width = max(0, length - 59)  # from 60 on, it is the number of bytes that hold the length
    if not width:
        return length + 1, at
    return int.from_bytes(block[at : at + width], "little") + 1, at + width


def _lzf_blocks(data: bytes) -> Iterator[bytes]:
    at = 0
    while data[at : at + len(_LZF_MAGIC)] == _LZF_MAGIC:
        is_packed = data[at + 2]
        size = int.from_bytes(data[at + 3 : at + 5], "big")
        at += 7 if is_packed else 5
        block = data[at : at + size]
        yield _unpack_lzf(block) if is_packed else block
        at += size


def _unpack_lzf(block: bytes) -> bytes:
    out = bytearray()
    at = 0
    while at < len(block):
        control = block[at]
        at += 1
        if control < 32:  # noqa: PLR2004 - the format's own number
            out += block[at : at + control + 1]
            at += control + 1
            continue
        length = control >> 5
        if length == 7:  # noqa: PLR2004 - the format's own number
            length += block[at]
            at += 1
        _repeat(out, (control & 31) << 8 | block[at] + 1, length + 2)
        at += 1
    return bytes(out)


def _zstd_blocks(data: bytes, *, where: str) -> Iterator[bytes]:
    try:
        # Not a dependency: it comes with PyIceberg.
        import zstandard
    except ImportError as error:
        msg = (
            f"{where}: compressed with zstd, and its lineage is needed because Spark's commit log "
            "does not reach back far enough; install zstandard, or raise "
            "spark.sql.streaming.minBatchesToRetain"
        )
        raise UnknownFormatError(msg) from error
    try:
        return iter([zstandard.ZstdDecompressor().decompressobj().decompress(data)])
    except zstandard.ZstdError as error:
        raise ValueError(where) from error
