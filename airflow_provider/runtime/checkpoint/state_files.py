"""Files of state stores: their names, the lineage in RocksDB's changelogs, and checksums.

::

    state/<operator>/<partition>/[<store>/]      no folder for the store that is called "default"
      <version>.zip         RocksDB: a snapshot; its entry "metadata" names files of SSTs/ and logs/
      <version>.changelog   RocksDB: what one batch changed
      <version>.snapshot    HDFS-backed: a snapshot
      <version>.delta       HDFS-backed: what one batch changed
      <version>_<id>.zip    in checkpoint format 2, and so on; several attempts of a batch may have
                            written one version, and the commit log says whose counts
      SSTs/ logs/           what RocksDB's snapshots share
      _metadata/schema      in partition 0

Beside each file may lie checksums: ``.<file>.crc`` of Hadoop's, ``<file>.crc`` of Spark's.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import io
import re
import zipfile
import zlib
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.base.names import number_in
from airflow_provider.runtime.base.typed_json import read_json
from airflow_provider.runtime.errors import CorruptDocumentError, UnknownFormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


# A version, and its writer's id: "" in checkpoint format 1.
State = tuple[int, str]

DEFAULT_STORE = "default"
SNAPSHOTS = ("zip", "snapshot")
ROCKSDB = frozenset({"zip", "changelog"})
_STATE_FILE = re.compile(r"(\d+)(?:_([^._]+))?\.(zip|changelog|snapshot|delta)")
_SHARED = frozenset({"SSTs", "logs"})
_FOLDERS = _SHARED | {"_metadata"}
_ZIP_METADATA = "metadata"
_ZIP_VERSION = "v1"


@dataclasses.dataclass
class StoreFiles:
    """The files of one store of one partition: by state, and those that are unshared."""

    snapshots: dict[State, str] = dataclasses.field(default_factory=dict)
    changes: dict[State, str] = dataclasses.field(default_factory=dict)
    others: list[str] = dataclasses.field(default_factory=list)

    def is_rocksdb(self) -> bool:
        return any(
            path.rpartition(".")[2] in ROCKSDB
            for paths in (self.snapshots, self.changes)
            for path in paths.values()
        )


@dataclasses.dataclass(frozen=True)
class Chain:
    """The newest usable snapshot, all later changes from the last one, and any *missing* file."""

    snapshot: str | None
    changes: tuple[str, ...]
    missing: str | None = None


@dataclasses.dataclass
class OperatorFiles:
    """The files of one stateful operator: outside of its partitions, and by partition and store."""

    own: list[str] = dataclasses.field(default_factory=list)
    stores: dict[tuple[int, str], StoreFiles] = dataclasses.field(default_factory=dict)

    def partitions_with(self, version: int) -> set[int]:
        return {
            partition
            for (partition, _), files in self.stores.items()
            if any(version == found for found, _ in (*files.snapshots, *files.changes))
        }


def sort_files(paths: Iterable[str]) -> tuple[list[str], dict[int, OperatorFiles]]:
    """Return the files of no stateful operator, and those of each operator."""
    plain: list[str] = []
    operators: dict[int, OperatorFiles] = {}
    for path in paths:
        parts = path.split("/")
        if parts[0] in {"offsets", "commits"} or _is_temporary(parts[-1]):
            continue
        is_state = parts[0] == "state" and len(parts) > 3  # noqa: PLR2004
        number = number_in(parts[1]) if is_state else None
        if number is None:
            plain.append(path)
            continue
        operator = operators.setdefault(number, OperatorFiles())
        partition = number_in(parts[2])
        if partition is not None:
            _add(operator, partition, parts[3:], path)
        else:
            operator.own.append(path)
    return plain, operators


def find_chain(
    files: StoreFiles, state: State, *, folder: str, writer_before: Callable[[int, str], str]
) -> Chain:
    """Find the files from which Spark restores a state."""
    version, writer = state
    changes: list[str] = []
    while version > 0 and (version, writer) not in files.snapshots:
        change = files.changes.get((version, writer))
        if change is None:
            missing = f"{folder}/{version}{'_' * bool(writer)}{writer}.{_next_kind(files)}"
            return Chain(None, tuple(changes), missing)
        changes.append(change)
        version -= 1
        writer = writer_before(version, change) if version else ""
    return Chain(files.snapshots.get((version, writer)), tuple(changes))


def _next_kind(files: StoreFiles) -> str:
    paths = (*files.changes.values(), *files.snapshots.values())
    return next((path.rpartition(".")[2] for path in paths), "*")


def shared_files(snapshot: bytes, *, where: str) -> Iterator[tuple[str, int]]:
    """Yield paths and sizes in bytes of the files that a snapshot of RocksDB shares with others."""
    try:
        with zipfile.ZipFile(io.BytesIO(snapshot)) as archive:
            version, _, text = archive.read(_ZIP_METADATA).decode().partition("\n")
        document = read_json(text) if version == _ZIP_VERSION else None
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise CorruptDocumentError(f"{where}: not a snapshot of RocksDB") from error
    if document is None:
        raise UnknownFormatError(
            f"{where}: {version[:20]!r} is not a known version of a snapshot's metadata"
        )
    try:
        for file in document.get("sstFiles") or ():
            yield f"SSTs/{file['dfsSstFileName']}", int(file["sizeBytes"])
        for file in document.get("logFiles") or ():
            yield f"logs/{file['dfsLogFileName']}", int(file["sizeBytes"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptDocumentError(f"{where}: not a snapshot of RocksDB") from error


def companions_of(path: str) -> tuple[str, str, str]:
    """Return the paths of a file's checksums: Spark's, Hadoop's, and Hadoop's of Spark's."""
    folder, slash, name = path.rpartition("/")
    return f"{path}.crc", f"{folder}{slash}.{name}.crc", f"{folder}{slash}.{name}.crc.crc"


def _is_temporary(name: str) -> bool:
    return name.startswith(".") and name.endswith((".tmp", ".tmp.crc"))


def _add(operator: OperatorFiles, partition: int, parts: list[str], path: str) -> None:
    store = DEFAULT_STORE
    if len(parts) > 1 and parts[0] not in _FOLDERS:
        store, parts = parts[0], parts[1:]
    files = operator.stores.setdefault((partition, store), StoreFiles())
    if len(parts) > 1 and parts[0] in _SHARED:
        return
    match = _STATE_FILE.fullmatch(parts[-1]) if len(parts) == 1 else None
    if match:
        version, writer, kind = match.groups()
        states = files.snapshots if kind in SNAPSHOTS else files.changes
        states[int(version), writer or ""] = path
    elif not parts[-1].endswith(".crc"):  # a file's checksums come with it
        files.others.append(path)


# --- the lineage of a changelog -----------------------------------------------------------------

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
_NIBBLE = 15  # a length that does not fit continues in the bytes after it,
_BYTE = 255  # as long as they are full


def read_lineage(data: bytes, *, where: str) -> dict[int, str]:
    """Return the unique id of each version that a changelog of RocksDB builds on.

    Decompressed, a changelog with a unique id in its name begins with two strings of Java's, each
    after its length in two bytes: its version (v3; v4 when the store has column families), and the
    states that it builds on, back to the snapshot that was the newest when it was begun:
    ``[{"version":6,"checkpointUniqueId":"8ba18d39-…"},…]``. LZ4, Spark's default codec, is read
    here. Snappy and zstd need libraries, which the extra ``codecs`` brings. For LZF there is none
    that is maintained.

    Raises:
        UnknownFormatError: its version or codec is unknown, or the codec's library is missing.
        CorruptDocumentError: it is not a changelog with a lineage.
    """
    try:
        head = _Head(_blocks(data, where=where))
        version = head.string()
        if version not in _VERSIONS:
            raise UnknownFormatError(
                f"{where}: {version[:20]!r} is not a version of changelogs with a lineage"
            )
        items = read_json(head.string())
        return {int(item["version"]): str(item["checkpointUniqueId"]) for item in items}
    except (IndexError, ValueError, KeyError, TypeError, StopIteration) as error:
        raise CorruptDocumentError(f"{where}: not a changelog with a lineage") from error


class _Head:
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
        raise UnknownFormatError(
            f"{where}: compressed with LZF, which is not read: configure another codec {_OR_RAISE}"
        )
    raise UnknownFormatError(
        f"{where}: compressed with a codec that is not known here (it begins {data[:8]!r})"
    )


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
    """Append *length* bytes that begin *distance* before the end, which they may overlap."""
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
        raise UnknownFormatError(
            f"{where}: compressed with {codec}, which needs {package}: pip install "
            f"'airflow-provider-spark-streaming[codecs]' {_OR_RAISE}"
        ) from error


# --- checksums ----------------------------------------------------------------------------------

_ALGORITHM = "CRC32C"
_POLYNOMIAL = 0x82F63B78  # Castagnoli's, its bits reversed
_MASK = 0xFFFF_FFFF
_HADOOP_MAGIC = b"crc\0"
_HADOOP_HEADER_BYTES = 8


def has_spark_checksum(data: bytes, checksum: bytes, *, where: str) -> bool:
    """Whether *data* is what Spark wrote, by the CRC-32C in ``<file>.crc`` of checkpoint format 2.

    It is ``{"algorithm":"CRC32C","value":826206989,"mainFileSize":222,…}``; anything else, named by
    *where*, is a CorruptDocumentError.
    """
    try:
        document = read_json(checksum)
        algorithm, size, value = (document[k] for k in ("algorithm", "mainFileSize", "value"))
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDocumentError(f"{where}: not one of Spark's checksum files") from error
    if algorithm != _ALGORITHM:
        raise UnknownFormatError(
            f"{where}: checksum algorithm {algorithm!r} is not known here, {_ALGORITHM} is"
        )
    # Java's int is signed.
    return bool(size == len(data) and value & _MASK == crc32c(data))


def has_hadoop_checksum(data: bytes, checksum: bytes, *, where: str) -> bool:
    """Whether *data* is what Hadoop's local filesystem wrote, by ``.<file>.crc``.

    It has ``crc`` and a zero byte, the length of a chunk, and a CRC-32 for each chunk, big-endian;
    anything else is a CorruptDocumentError.
    """
    chunk_bytes = int.from_bytes(checksum[len(_HADOOP_MAGIC) : _HADOOP_HEADER_BYTES], "big")
    if not checksum.startswith(_HADOOP_MAGIC) or not chunk_bytes:
        raise CorruptDocumentError(f"{where}: not one of Hadoop's checksum files")
    view = memoryview(data)
    sums = b"".join(
        zlib.crc32(view[start : start + chunk_bytes]).to_bytes(4, "big")
        for start in range(0, len(data), chunk_bytes)
    )
    return sums == checksum[_HADOOP_HEADER_BYTES:]


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of *data*."""
    return _implementation()(data)


@functools.cache
def _implementation() -> Callable[[bytes], int]:
    try:
        # Not a dependency: it comes with Google Cloud Storage's client.
        import google_crc32c
    except ImportError:
        return crc32c_in_python
    if google_crc32c.implementation != "c":
        return crc32c_in_python
    compiled: Callable[[bytes], int] = google_crc32c.value
    return compiled


def crc32c_in_python(data: bytes) -> int:
    """Return the CRC-32C of *data* at some MB/s, where the compiled one makes GB/s."""
    table = _table()
    value = _MASK
    for byte in data:
        value = table[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ _MASK


@functools.cache
def _table() -> tuple[int, ...]:
    return tuple(functools.reduce(_shift, range(8), byte) for byte in range(256))


def _shift(value: int, _: int) -> int:
    return value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
