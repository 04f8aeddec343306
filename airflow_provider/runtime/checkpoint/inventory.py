"""Inventory of a checkpoint: the files that a copy needs, to resume after a committed batch.

The files that a committed batch has written never change, so they can be copied while the query
runs on. This module decides which ones, from a listing and a few small files.

===========================  =====================================================================
restarted after batch N      Spark reads
===========================  =====================================================================
``metadata``                 the query's id
``offsets/`` N-1, N          where the sources are; settings and watermarks
``offsets/`` N+1             if it is there: the batch to run again; then N-1 is not read
``commits/`` N               the watermark; in checkpoint format 2 the ids of the states
``sources/``                 what the sources themselves keep
``state/<op>/_metadata/``    what the operator is: the newest entry of a batch up to N; not there
                             when Spark before 4.0 has planned the batch
``state/<op>/_stateSchema``  the schemas that this entry names
state of version N+1         of every operator, partition and store: the newest snapshot up to it
                             and all changes after that
===========================  =====================================================================

``commits/`` N-1 is not read, it is copied so that both logs end alike. So is all that is unknown.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import re
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.checkpoint.logs import OffsetEntry
from airflow_provider.runtime.checkpoint.needed_files import RequiredFiles, Store, take_store
from airflow_provider.runtime.checkpoint.operators import (
    OperatorMetadata,
    has_one_partition,
    infer_operator,
)
from airflow_provider.runtime.checkpoint.state_files import sort_files
from airflow_provider.runtime.errors import UnknownFormatError
from airflow_provider.runtime.spark.versions import describes_operators

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from airflow_provider.runtime.checkpoint.state_files import OperatorFiles

_PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
_PROVIDER_NAMES: Final = {
    "RocksDBStateStoreProvider": "rocksdb",
    "HDFSBackedStateStoreProvider": "hdfs",
}
_METADATA_ENTRY = re.compile(r"state/\d+/_metadata/v2/(\d+)")
_SCHEMA_FILE = re.compile(r"state/\d+/_stateSchema/.+/(\d+)_[^/]+")
_SOURCE_ENTRY = re.compile(r"sources/([^/]+)/(\d+)(?:\.compact)?")
_FILE_OFFSET = re.compile(r'(?:[^{]*:)?\{"logOffset":(\d+)\}')


@dataclasses.dataclass(frozen=True, order=True)
class NeededFile:
    """One file of a checkpoint.

    Attributes:
        path: relative to the checkpoint.
        size_bytes: its size.
    """

    path: str
    size_bytes: int


class StateProvider(str, enum.Enum):
    """What keeps an operator's state."""

    ROCKSDB = "rocksdb"
    HDFS = "hdfs"


def provider_name(class_name: str) -> str:
    """Return how savepoints call a class of Spark's that keeps state, or its name as it is."""
    return _PROVIDER_NAMES.get(class_name.rpartition(".")[2], class_name)


@dataclasses.dataclass(frozen=True)
class StateOperator:
    """One stateful operator.

    Attributes:
        id: its number in the query's plan.
        name: what Spark calls its kind.
        partitions: how many partitions its state has.
        stores: the names of each partition's stores.
        provider: what keeps them.
    """

    id: int
    name: str
    partitions: int
    stores: tuple[str, ...]
    provider: StateProvider


@dataclasses.dataclass(frozen=True)
class Inventory:
    """What a self-contained copy of a checkpoint consists of.

    Attributes:
        batch: the committed batch after which a query goes on from the copy.
        planned: whether the batch after it is planned in the copy, and is run again.
        format_version: of the state: 1, or 2 when its files carry unique ids.
        files: all files, by path.
        addressed: those of them that name the checkpoint's address. The copy needs them as
            :func:`~airflow_provider.runtime.checkpoint.operators.readdress` returns them, and not
            the checksums that lie beside them.
        operators: the stateful operators, by id.
    """

    batch: int
    planned: bool
    format_version: int
    files: tuple[NeededFile, ...]
    addressed: tuple[str, ...]
    operators: tuple[StateOperator, ...]

    @property
    def size_bytes(self) -> int:
        """Return the size of all files."""
        return sum(file.size_bytes for file in self.files)


def take_inventory(
    listing: Mapping[str, int],
    read: Callable[[str], bytes],
    *,
    batch: int,
    planned: bool = False,
    where: str,
) -> Inventory:
    """Say which files of a checkpoint, which may be in use, a copy needs.

    Taken of the copy, the inventory also tells whether the copy is complete.

    Args:
        listing: the size in bytes of every file under the checkpoint, by relative path. It is made
            after the batch has been seen to be committed, or some files may not be in it yet.
        read: gives a file's bytes; raises FileNotFoundError when it is gone.
        batch: the committed batch to go on after.
        planned: whether the copy shall contain the plan of the batch after it, too.
        where: the checkpoint's address, named in errors.

    Raises:
        MissingStateError: a needed file is not there. Spark may have cleaned it up since: list
            again, and take a newer batch.
        TruncatedStateError: a file of RocksDB's is not as long as it was written.
        UnknownFormatError: something is of a version, format or codec unknown here.
        CorruptDocumentError: something is not what its name says.
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
    """Notice a listing in which a file source's log ends before the offsets that refer to it.

    The offset log does not tell which of its lines belongs to which folder, but there is no way to
    match them if the n-th longest log is shorter than the n-th greatest offset. A source that is
    read at several places has a line for each, all the same, and one folder.
    """
    wanted = [int(found[1]) for line in offsets.sources if (found := _FILE_OFFSET.fullmatch(line))]
    ends: dict[str, int] = {}
    for path in plain:
        if entry := _SOURCE_ENTRY.fullmatch(path):
            ends[entry[1]] = max(ends.get(entry[1], -1), int(entry[2]))
    wanted.sort(reverse=True)
    repeated = [offset for place, offset in enumerate(wanted) if offset in wanted[:place]]
    for again in repeated[: max(len(wanted) - len(ends), 0)]:
        wanted.remove(again)
    longest = sorted(ends, key=lambda folder: -ends[folder])[: len(wanted)]
    for offset, folder in itertools.zip_longest(wanted, longest, fillvalue="*"):
        if ends.get(str(folder), -1) < int(offset):
            needs.lack(f"sources/{folder}/{offset}")


def _check_operators(needs: RequiredFiles, found: Mapping[int, OperatorFiles]) -> None:
    """Notice a stateful operator without a single file.

    Spark numbers them from 0, and each one writes state in every batch.
    """
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
    """Take what belongs to an operator as a whole; return what it is.

    Entries of later batches stay behind: Spark would keep them instead of writing those of the
    batch with the same number that the copy will have.
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
    """Return where an operator is described, as a batch knows it; the file may be missing."""
    entries = {int(found[1]): path for path in own if (found := _METADATA_ENTRY.fullmatch(path))}
    newest = max((entry for entry in entries if entry <= batch), default=None)
    return f"state/{number}/_metadata/metadata" if newest is None else entries[newest]


def _count_partitions(
    needs: RequiredFiles, metadata: OperatorMetadata, files: OperatorFiles, offsets: OffsetEntry
) -> int:
    """Return how many partitions an operator's state has, in checkpoint format 1.

    The settings in the offset log decide and not the operator's metadata, which Spark does not
    rewrite when it repartitions state.
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
        msg = f"{needs.at(f'state/{number}')}: state of {provider}, whose files are not known here"
        raise UnknownFormatError(msg)
