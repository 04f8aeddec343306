"""Inventory of a checkpoint: the files that a copy needs, to resume after a committed batch.

The files that a committed batch has written never change, so they can be copied while the query
runs. This module chooses them, from a listing and a few small files.

===========================  =====================================================================
restarted after batch N      Spark reads
===========================  =====================================================================
``metadata``                 the query's id
``offsets/`` N-1, N          the positions of the sources; settings and watermarks
``offsets/`` N+1             if present: the batch to run again; then N-1 is not read
``commits/`` N               the watermark; in checkpoint format 2 the ids of the states
``sources/``                 what the sources themselves keep
``state/<op>/_metadata/``    the operator: the newest entry of a batch up to N; absent if Spark
                             before 4.0 has planned the batch
``state/<op>/_stateSchema``  the schemas that this entry names
state of version N+1         of every operator, partition and store: the newest snapshot up to it
                             and all changes after that
===========================  =====================================================================

``commits/`` N-1 is copied so that both logs end alike. Unknown files are copied, too.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import re
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.checkpoint.logs import CommitEntry, OffsetEntry
from airflow_provider.runtime.checkpoint.operators import (
    OperatorMetadata,
    has_one_partition,
    infer_operator,
)
from airflow_provider.runtime.checkpoint.source_end import file_position
from airflow_provider.runtime.checkpoint.state_files import (
    DEFAULT_STORE,
    StoreFiles,
    companions_of,
    find_chain,
    read_lineage,
    shared_files,
    sort_files,
)
from airflow_provider.runtime.errors import (
    CorruptDocumentError,
    MissingStateError,
    TruncatedStateError,
    UnknownFormatError,
)
from airflow_provider.runtime.spark.versions import describes_operators

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from airflow_provider.runtime.checkpoint.logs import StateIds
    from airflow_provider.runtime.checkpoint.state_files import OperatorFiles


_PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
_PROVIDER_NAMES: Final = {
    "RocksDBStateStoreProvider": "rocksdb",
    "HDFSBackedStateStoreProvider": "hdfs",
}
_METADATA_ENTRY = re.compile(r"state/\d+/_metadata/v2/(\d+)")
_SCHEMA_FILE = re.compile(r"state/\d+/_stateSchema/.+/(\d+)_[^/]+")
_SOURCE_ENTRY = re.compile(r"sources/([^/]+)/(\d+)(?:\.compact)?")


@dataclasses.dataclass(frozen=True, order=True)
class NeededFile:
    """One file of a checkpoint; its path is relative to the checkpoint."""

    path: str
    size_bytes: int


class StateProvider(str, enum.Enum):
    """The kind of store that keeps an operator's state."""

    ROCKSDB = "rocksdb"
    HDFS = "hdfs"


def provider_name(class_name: str) -> str:
    """Return savepoints' name of a state store provider's class, else the class's own name."""
    return _PROVIDER_NAMES.get(class_name.rpartition(".")[2], class_name)


@dataclasses.dataclass(frozen=True)
class StateOperator:
    """A stateful operator, by its number in the query's plan, with the names of its stores."""

    id: int
    name: str
    partitions: int
    stores: tuple[str, ...]
    provider: StateProvider


@dataclasses.dataclass(frozen=True)
class Inventory:
    """The files of a self-contained copy of a checkpoint.

    Attributes:
        planned: whether the batch after it is planned in the copy, and runs again.
        format_version: of the state: 1, or 2 when its files carry unique ids.
        addressed: the files that name the checkpoint's address. The copy needs them as
            :func:`~.checkpoint.operators.readdress` returns them, without the checksums beside
            them.
    """

    batch: int
    planned: bool
    format_version: int
    files: tuple[NeededFile, ...]
    addressed: tuple[str, ...]
    operators: tuple[StateOperator, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def take_inventory(
    listing: Mapping[str, int],
    read: Callable[[str], bytes],
    *,
    batch: int,
    planned: bool = False,
    where: str,
) -> Inventory:
    """Return the files of a checkpoint, which may be in use, that a copy needs.

    Taken of the copy, the inventory also shows whether the copy is complete.

    Args:
        listing: the size in bytes of every file under the checkpoint, by relative path; made after
            the batch was seen to be committed, or it may lack files.
        read: returns a file's bytes; raises FileNotFoundError when it is gone.
        batch: the committed batch.
        planned: whether the copy also gets the plan of the next batch.
        where: the checkpoint's address, named in errors.

    Raises:
        MissingStateError: a needed file is missing or has another size. Spark may have removed it:
            list again, and take a newer batch.
        CorruptDocumentError: a file is not what its name says, or of an unknown format.
    """
    plain, found = sort_files(listing)
    needs = RequiredFiles(listing, read, batch=batch, where=where)
    for path in (*plain, "metadata"):
        needs.add(path)
    _take_logs(needs, batch, planned=planned)
    offsets = _read_offsets(needs, batch)
    _check_sources(needs, plain, _read_offsets(needs, batch + 1) if planned else offsets)
    _check_operators(needs, found)
    operators = tuple(_take_operator(needs, n, found[n], offsets) for n in sorted(found))
    needs.refuse_if_incomplete()
    return Inventory(
        batch=batch,
        planned=planned,
        format_version=2 if needs.state_ids(batch) else 1,
        files=tuple(NeededFile(*item) for item in sorted(needs.sizes.items())),
        addressed=tuple(sorted(needs.addressed)),
        operators=operators,
    )


def _take_logs(needs: RequiredFiles, batch: int, *, planned: bool) -> None:
    before = f"offsets/{batch - 1}"
    if batch > 0 and (before in needs.listing or not planned):
        needs.add(before)
    if f"commits/{batch - 1}" in needs.listing:
        needs.add(f"commits/{batch - 1}")
    for path in (f"commits/{batch}", f"offsets/{batch}"):
        needs.add(path)
    if planned:
        needs.add(f"offsets/{batch + 1}")
    needs.refuse_if_incomplete()


def _read_offsets(needs: RequiredFiles, batch: int) -> OffsetEntry:
    path = f"offsets/{batch}"
    return OffsetEntry.parse(needs.read(path), where=needs.at(path))


def _check_sources(needs: RequiredFiles, plain: Iterable[str], offsets: OffsetEntry) -> None:
    """Refuse a listing in which a file source's log ends before the offsets that refer to it.

    The offset log does not name the folder of a line, but no assignment exists if the n-th longest
    log is shorter than the n-th greatest offset. A source read at several locations has one folder.
    """
    positions = map(file_position, offsets.sources)
    wanted = [position for position in positions if position is not None]
    ends: dict[str, int] = {}
    for path in plain:
        if entry := _SOURCE_ENTRY.fullmatch(path):
            ends[entry[1]] = max(ends.get(entry[1], -1), int(entry[2]))
    wanted.sort(reverse=True)
    repeated = [offset for position, offset in enumerate(wanted) if offset in wanted[:position]]
    for again in repeated[: max(len(wanted) - len(ends), 0)]:
        wanted.remove(again)
    longest = sorted(ends, key=lambda folder: -ends[folder])[: len(wanted)]
    for offset, folder in itertools.zip_longest(wanted, longest, fillvalue="*"):
        if ends.get(str(folder), -1) < int(offset):
            needs.lack(f"sources/{folder}/{offset}")


def _check_operators(needs: RequiredFiles, found: Mapping[int, OperatorFiles]) -> None:
    for number in itertools.chain(range(max(found, default=0)), needs.state_ids(needs.batch)):
        if number not in found:
            needs.lack(f"state/{number}/_metadata")
    needs.refuse_if_incomplete()


def _take_operator(
    needs: RequiredFiles, number: int, files: OperatorFiles, offsets: OffsetEntry
) -> StateOperator:
    metadata = _take_metadata(needs, number, files, offsets)
    ids = needs.state_ids(needs.batch).get(number)
    partitions = len(ids) if ids else _count_partitions(needs, metadata, files, offsets)
    _refuse_unknown_provider(needs, number, files, offsets.conf)
    for (partition, _), store in files.stores.items():
        if partition < partitions:
            for path in store.others:
                needs.add(path)
    for partition in range(partitions):
        for index, name in enumerate(metadata.stores):
            take_store(needs, Store(number, partition, index, name), files)
    is_rocksdb = any(store.is_rocksdb() for store in files.stores.values())
    return StateOperator(
        id=number,
        name=metadata.name,
        partitions=partitions,
        stores=metadata.stores,
        provider=StateProvider.ROCKSDB if is_rocksdb else StateProvider.HDFS,
    )


def _take_metadata(
    needs: RequiredFiles, number: int, files: OperatorFiles, offsets: OffsetEntry
) -> OperatorMetadata:
    """Take the files of an operator as a whole but later batches' entries; return its metadata.

    Spark would keep those entries instead of writing the copy's own with the same numbers.
    """
    for other in files.own:
        schema = _SCHEMA_FILE.fullmatch(other)
        is_later = schema is not None and int(schema[1]) > needs.batch
        if not (is_later or other.endswith(".crc") or _METADATA_ENTRY.fullmatch(other)):
            needs.add(other)
    path = _metadata_of(needs.batch, number, files.own)
    if path not in files.own and not describes_operators(offsets.conf):
        folders = {name for _, name in files.stores}
        return infer_operator(number, folders, offsets.partitions or 1)
    metadata = OperatorMetadata.parse(needs.read(path), where=needs.at(path))
    for schema_file in metadata.schema_files:
        needs.add(schema_file)
    (needs.add_addressed if metadata.schema_files else needs.add)(path)
    return metadata


def _metadata_of(batch: int, number: int, own: Sequence[str]) -> str:
    """Return the path of an operator's metadata for a batch; the file may be missing."""
    entries = {int(found[1]): path for path in own if (found := _METADATA_ENTRY.fullmatch(path))}
    newest = max((entry for entry in entries if entry <= batch), default=None)
    return f"state/{number}/_metadata/metadata" if newest is None else entries[newest]


def _count_partitions(
    needs: RequiredFiles, metadata: OperatorMetadata, files: OperatorFiles, offsets: OffsetEntry
) -> int:
    """Return the number of partitions of an operator's state in checkpoint format 1.

    The offset log's settings decide: Spark rewrites no metadata when it repartitions state.
    """
    partitions = offsets.partitions or metadata.partitions
    # Repartitioning writes an empty state for each of the others, once.
    if partitions > 1 and files.partitions_with(needs.batch + 1) <= {0}:
        schemas = [p for s in files.stores.values() for p in s.others if p.endswith("/schema")]
        if any(has_one_partition(needs.read(path)) for path in schemas):
            return 1
    return partitions


def _refuse_unknown_provider(
    needs: RequiredFiles, number: int, files: OperatorFiles, conf: Mapping[str, str]
) -> None:
    stores = files.stores.values()
    is_known = any(store.snapshots or store.changes for store in stores)
    unknown = any("/_metadata/" not in path for store in stores for path in store.others)
    if unknown and not is_known:
        provider = conf.get(_PROVIDER, "a provider that is not named")
        raise UnknownFormatError(
            f"{needs.at(f'state/{number}')}: state of {provider}, whose files are not known here"
        )


# --- the files of one batch ---------------------------------------------------------------------

_MOST_MISSING: Final = 10_000


class RequiredFiles:
    """The files that one batch needs, collected; arguments as of :func:`take_inventory`."""

    def __init__(
        self, listing: Mapping[str, int], read: Callable[[str], bytes], *, batch: int, where: str
    ) -> None:
        self.listing = listing
        self.batch = batch
        self.where = where
        self.sizes: dict[str, int] = {}
        self.addressed: list[str] = []
        self._read = read
        self._missing: dict[str, None] = {}
        self._state_ids: dict[int, StateIds] = {}

    def add(self, path: str) -> None:
        if path not in self.listing:
            self.lack(path)
            return
        self.sizes[path] = self.listing[path]
        for companion in companions_of(path):
            if companion in self.listing:
                self.sizes[companion] = self.listing[companion]

    def add_addressed(self, path: str) -> None:
        """Add a needed file that the copy gets with another content, without checksums."""
        self.sizes[path] = self.listing[path]
        self.addressed.append(path)

    def lack(self, path: str) -> None:
        """Record a missing file; raise MissingStateError immediately if too many are missing."""
        self._missing[path] = None
        if len(self._missing) >= _MOST_MISSING:
            self.refuse_if_incomplete()

    def refuse_if_incomplete(self) -> None:
        if self._missing:
            raise MissingStateError(self.where, self.batch, tuple(self._missing))

    def at(self, path: str) -> str:
        return f"{self.where}/{path}"

    def read(self, path: str) -> bytes:
        try:
            data = self._read(path) if path in self.listing else None
        except FileNotFoundError as error:
            raise MissingStateError(self.where, self.batch, (path,)) from error
        if data is None or len(data) != self.listing[path]:
            raise MissingStateError(self.where, self.batch, (path,))
        return data

    def state_ids(self, batch: int) -> StateIds:
        """Return the ids of the states of a batch; empty for an earlier batch without a commit."""
        if batch not in self._state_ids:
            path = f"commits/{batch}"
            try:
                ids = CommitEntry.parse(self.read(path), where=self.at(path)).state_ids
            except MissingStateError:
                if batch == self.batch:
                    raise
                ids = {}
            self._state_ids[batch] = ids
        return self._state_ids[batch]


@dataclasses.dataclass(frozen=True)
class Store:
    """One state store of one partition; *index* is its position among the operator's stores."""

    operator: int
    partition: int
    index: int
    name: str

    @property
    def folder(self) -> str:
        folder = f"state/{self.operator}/{self.partition}"
        return folder if self.name == DEFAULT_STORE else f"{folder}/{self.name}"

    def id_in(self, ids: StateIds) -> str | None:
        try:
            return ids[self.operator][self.partition][self.index]
        except (KeyError, IndexError):
            return None


def take_store(needs: RequiredFiles, store: Store, operator: OperatorFiles) -> None:
    """Add the files from which Spark restores a store as the batch left it."""
    writers = _Writers(needs, store)
    chain = find_chain(
        operator.stores.get((store.partition, store.name)) or StoreFiles(),
        (needs.batch + 1, writers.of_the_batch()),
        folder=store.folder,
        writer_before=writers.before,
    )
    if chain.missing:
        needs.lack(chain.missing)
        return
    for change in chain.changes:
        needs.add(change)
    if chain.snapshot:
        needs.add(chain.snapshot)
        if chain.snapshot.endswith(".zip"):
            _take_shared(needs, store.folder, chain.snapshot)


def _take_shared(needs: RequiredFiles, folder: str, snapshot: str) -> None:
    for name, size in shared_files(needs.read(snapshot), where=needs.at(snapshot)):
        path = f"{folder}/{name}"
        needs.add(path)
        listed = needs.listing.get(path, size)
        if listed != size:
            raise TruncatedStateError(needs.where, needs.batch, (path,), (listed, size))


class _Writers:
    """The ids of the attempts whose state counts, where several wrote one version.

    Spark takes the id of the last state from the commit log, and the ids before it from the head of
    its changelog. Older commits say the same, and one of them speaks for all stores.
    """

    def __init__(self, needs: RequiredFiles, store: Store) -> None:
        self._needs = needs
        self._store = store
        self._has_ids = store.operator in needs.state_ids(needs.batch)
        self._lineage: dict[int, str] = {}

    def of_the_batch(self) -> str:
        if not self._has_ids:
            return ""
        writer = self._store.id_in(self._needs.state_ids(self._needs.batch))
        if writer is None:
            where = self._needs.at(f"commits/{self._needs.batch}")
            raise CorruptDocumentError(f"{where}: no id for the state in {self._store.folder}")
        return writer

    def before(self, version: int, change: str) -> str:
        if not self._has_ids:
            return ""
        # The state of version 1 is the one that batch 0 led to.
        writer = self._store.id_in(self._needs.state_ids(version - 1)) or self._lineage.get(version)
        if writer is None:
            where = self._needs.at(change)
            self._lineage |= read_lineage(self._needs.read(change), where=where)
            writer = self._lineage.get(version)
            if writer is None:
                raise CorruptDocumentError(
                    f"{where}: its lineage does not name version {version}, which was before it"
                )
        return writer
