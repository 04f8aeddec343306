"""The files of state stores, by their names.

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
import io
import re
import zipfile
from typing import TYPE_CHECKING

from airflow_provider.runtime.base.typed_json import read_json
from airflow_provider.runtime.errors import CorruptDocumentError, UnknownFormatError
from airflow_provider.runtime.storage.numbered_files import number_in

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
    """The files of one state store of one partition.

    Attributes:
        snapshots: where each state that is stored as a whole lies.
        changes: where the change that led to each state lies.
        others: all that is neither, nor shared by snapshots.
    """

    snapshots: dict[State, str] = dataclasses.field(default_factory=dict)
    changes: dict[State, str] = dataclasses.field(default_factory=dict)
    others: list[str] = dataclasses.field(default_factory=list)

    def is_rocksdb(self) -> bool:
        """Whether the files are those of the RocksDB provider."""
        return any(
            path.rpartition(".")[2] in ROCKSDB
            for paths in (self.snapshots, self.changes)
            for path in paths.values()
        )


@dataclasses.dataclass(frozen=True)
class Chain:
    """The files from which a store restores one state.

    Attributes:
        snapshot: the newest state that is stored as a whole; None when all began with nothing.
        changes: all changes after it, the last one first.
        missing: a file without which there is no chain; None when there is one.
    """

    snapshot: str | None
    changes: tuple[str, ...]
    missing: str | None = None


@dataclasses.dataclass
class OperatorFiles:
    """The files of one stateful operator.

    Attributes:
        own: those outside of its partitions.
        stores: those of each partition and store.
    """

    own: list[str] = dataclasses.field(default_factory=list)
    stores: dict[tuple[int, str], StoreFiles] = dataclasses.field(default_factory=dict)

    def partitions_with(self, version: int) -> set[int]:
        """Return the partitions of which a file holds the state, or the change, of a version."""
        return {
            partition
            for (partition, _), files in self.stores.items()
            if any(version == found for found, _ in (*files.snapshots, *files.changes))
        }


def sort_files(paths: Iterable[str]) -> tuple[list[str], dict[int, OperatorFiles]]:
    """Sort the files of a checkpoint, all but its two logs.

    Returns:
        Those that belong to no stateful operator, and those of each one. What is still being
        written, under a temporary name, is left out.
    """
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
    """Find the files from which Spark restores a state.

    Args:
        files: those of the store.
        state: the state.
        folder: the store's, for the name of a file that is missing.
        writer_before: gives, for a version and the change that follows it, the id of who wrote the
            version that the change was made to.
    """
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
    """Return what a store writes with every batch, as far as its files tell."""
    paths = (*files.changes.values(), *files.snapshots.values())
    return next((path.rpartition(".")[2] for path in paths), "*")


def shared_files(snapshot: bytes, *, where: str) -> Iterator[tuple[str, int]]:
    """Return the files that a snapshot of RocksDB shares with others, from its zip.

    Returns:
        Their paths relative to the store's folder, and their sizes in bytes.

    Raises:
        UnknownFormatError: its metadata is of a version unknown here.
        CorruptDocumentError: it is not a snapshot of RocksDB.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(snapshot)) as archive:
            version, _, text = archive.read(_ZIP_METADATA).decode().partition("\n")
        document = read_json(text) if version == _ZIP_VERSION else None
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        msg = f"{where}: not a snapshot of RocksDB"
        raise CorruptDocumentError(msg) from error
    if document is None:
        msg = f"{where}: {version[:20]!r} is not a known version of a snapshot's metadata"
        raise UnknownFormatError(msg)
    try:
        for file in document.get("sstFiles") or ():
            yield f"SSTs/{file['dfsSstFileName']}", int(file["sizeBytes"])
        for file in document.get("logFiles") or ():
            yield f"logs/{file['dfsLogFileName']}", int(file["sizeBytes"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        msg = f"{where}: not a snapshot of RocksDB"
        raise CorruptDocumentError(msg) from error


def companions_of(path: str) -> tuple[str, str, str]:
    """Return where the checksums of a file may lie: Spark's, Hadoop's, and Hadoop's of Spark's."""
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
