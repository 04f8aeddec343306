"""The lineage at the head of a RocksDB changelog that carries a unique id in its name.

Decompressed, such a changelog begins with two strings of Java's, each after its length in two
bytes: its version, and the states that it builds on, back to the snapshot that was the newest when
it was begun::

    v3                           v4 when the store has column families
    [{"version":6,"checkpointUniqueId":"8ba18d39-…"},{"version":7,"checkpointUniqueId":"d450…"}]

Python's standard library has none of the codecs that Spark offers for it. LZ4, with which Spark
writes unless it is configured otherwise, is simple enough to be read here. Snappy and zstd need
libraries, which the extra ``codecs`` brings. For LZF there is none that is maintained.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.base.typed_json import read_json
from airflow_provider.runtime.errors import CorruptDocumentError, UnknownFormatError

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
_OR_RAISE = (
    "or, since its lineage is needed only where Spark's commit log does not reach back far enough, "
    "raise spark.sql.streaming.minBatchesToRetain"
)
_NIBBLE = 15  # a length that does not fit goes on in the bytes after it,
_BYTE = 255  # as long as they are full


def read_lineage(data: bytes, *, where: str) -> dict[int, str]:
    """Return the unique id of each version that the changelog builds on.

    Args:
        data: the changelog, or enough of its beginning.
        where: its address, named in errors.

    Raises:
        UnknownFormatError: it is of another version, or compressed with a codec that is not read
            here, or whose library is not installed.
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
        return _snappy_blocks(data, where=where)
    if data.startswith(_ZSTD_MAGIC):
        return _zstd_blocks(data, where=where)
    if data.startswith(_LZF_MAGIC):
        msg = (
            f"{where}: compressed with LZF, which is not read: configure another codec {_OR_RAISE}"
        )
        raise UnknownFormatError(msg)
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


def _snappy_blocks(data: bytes, *, where: str) -> Iterator[bytes]:
    cramjam = _library("Snappy", "cramjam", where=where)
    at = _SNAPPY_HEADER_BYTES
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        at += 4
        try:
            yield bytes(cramjam.snappy.decompress_raw(data[at : at + size]))
        except cramjam.DecompressionError as error:
            raise ValueError(where) from error
        at += size


def _zstd_blocks(data: bytes, *, where: str) -> Iterator[bytes]:
    zstandard = _library("zstd", "zstandard", where=where)
    try:
        return iter([zstandard.ZstdDecompressor().decompressobj().decompress(data)])
    except zstandard.ZstdError as error:
        raise ValueError(where) from error


def _library(codec: str, package: str, *, where: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        msg = (
            f"{where}: compressed with {codec}, which needs {package}: pip install "
            f"'airflow-provider-spark-streaming[codecs]' {_OR_RAISE}"
        )
        raise UnknownFormatError(msg) from error
