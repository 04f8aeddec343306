"""Catalog of savepoints: opens one by its address, lists a folder, pins and verifies."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import logging
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.checkpoint.logs import CheckpointLogs, OffsetEntry
from airflow_provider.runtime.checkpoint.operator_kinds import kind_named
from airflow_provider.runtime.checkpoint.operators import has_one_partition
from airflow_provider.runtime.checkpoint.state_files import has_hadoop_checksum, has_spark_checksum
from airflow_provider.runtime.errors import (
    CheckpointError,
    ConfigError,
    JobDrainedError,
    RefusedCheckpointError,
    UnknownJobError,
    UnsupportedVersionError,
    refusing,
)
from airflow_provider.runtime.savepoints.record import (
    MANIFEST,
    SavepointClaimRecord,
    SavepointRecord,
    claim_names,
    last_claim,
)
from airflow_provider.runtime.storage.file_tree import files_under, folders_in
from airflow_provider.runtime.storage.open import local_path_of, open_storage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.savepoints.record import QuerySavepoint, SavedFile, SavedOperator

log = logging.getLogger(__name__)

_JOBS: Final = frozenset({"job.json", "leases", "runs"})
"""One of these makes a folder a job directory, in which no savepoint is looked for or removed."""
# What the filesystem says of files and folders that were never ours to read.
_STRANGE: Final = frozenset(
    {errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG}
)


@dataclasses.dataclass(frozen=True)
class Savepoint:
    """A complete savepoint: its folder, which may have moved since, and its record."""

    url: str
    record: SavepointRecord

    @property
    def folder(self) -> str:
        return self.url.rstrip("/").rpartition("/")[2]


@dataclasses.dataclass(frozen=True)
class IncompleteSavepoint:
    """A folder with the mark of a savepoint that is incomplete, removed or damaged.

    Attributes:
        claim: the claim of its last writer; None if unknown.
        damage: why it cannot be read; None if it is incomplete. A damaged savepoint is never
            removed with others, and the files that it shares with them are unknown.
    """

    location: Storage
    claim: SavepointClaimRecord | None
    damage: str | None = None

    @property
    def folder(self) -> str:
        return self.location.url.rpartition("/")[2]


def open_savepoint(url: str) -> Savepoint:
    """Return the savepoint in the folder *url*.

    Raises:
        UnknownJobError: there is none, or it is not complete.
        UnsupportedVersionError: it was taken by a newer version of this package.
        RefusedCheckpointError: its record is damaged.
        ConfigError: it cannot be read.
    """
    storage, record = open_storage(url), None
    with refusing(storage.url, "read"):
        with contextlib.suppress(NotADirectoryError, IsADirectoryError):
            record = SavepointRecord.read(storage, MANIFEST)
        if record is not None:
            return Savepoint(storage.url, record)
        held = last_claim(storage)
        names = storage.list("")
    if held is not None:
        msg = (
            f"{storage.url}: this savepoint is not complete: it is being taken or removed since "
            f"{held.began} on {held.owner.host}, or that process died"
        )
    elif names:
        msg = f"{storage.url}: no savepoint there (no {MANIFEST}); was it disposed of?"
    else:
        msg = f"{storage.url}: no savepoint there; check the path"
    raise UnknownJobError(msg)


def check_no_job(location: Storage) -> None:
    """Refuse to remove anything in a job directory."""
    if is_job(location.list("")):
        raise ConfigError(
            f"{location.url}: this is a job directory and no savepoint; name one of its savepoints"
        )


def is_job(names: Iterable[str]) -> bool:
    """Whether these names in a folder make it a job directory."""
    return not _JOBS.isdisjoint(names)


def find_savepoints(root: Storage) -> tuple[list[Savepoint], list[IncompleteSavepoint]]:
    """Return all savepoints of a folder, and the folders that have only the mark of one.

    Ignored are files, symbolic links, job directories, folders without a mark, and folders that
    cannot be read. The savepoints are ordered by their writers' clocks, which is for people. Claim
    one before you remove it: another process may be using it.
    """
    found: list[Savepoint] = []
    leftovers: list[IncompleteSavepoint] = []
    for name in folders_in(root):
        each = read_folder(root.at(name))
        if isinstance(each, Savepoint):
            found.append(each)
        elif each is not None:
            leftovers.append(each)
    return sorted(found, key=lambda s: (s.record.taken, s.folder)), leftovers


def last_of_each_origin(names: Iterable[str]) -> list[str]:
    """Return of sorted names the last one of each origin, one of which is the newest savepoint."""
    last: dict[str, str] = {}
    for name in names:
        last[re.split(r"\d", name, maxsplit=1)[0]] = name
    return list(last.values())


def read_folder(location: Storage) -> Savepoint | IncompleteSavepoint | None:
    """Return the savepoint, or leftover, in one folder; None without the mark of a savepoint."""
    try:
        names = location.list("")
    except OSError as error:
        if not _is_strange(error):
            raise
        is_local = local_path_of(location.url) is not None
        # In a store it may share files; on a disk it belongs to others.
        return None if is_local else IncompleteSavepoint(location, None, str(error))
    is_claimed = bool(claim_names(names))
    if is_job(names) or (MANIFEST not in names and not is_claimed):
        return None
    held = None
    try:
        # In this order: a taker removes the first only after it has put the second.
        held = last_claim(location) if is_claimed else None
        record = SavepointRecord.read(location, MANIFEST)
    except (CheckpointError, UnsupportedVersionError) as error:
        return IncompleteSavepoint(location, held, str(error))
    except OSError as error:
        if not _is_strange(error):
            raise
        return IncompleteSavepoint(location, held, str(error))
    if record is not None:
        return Savepoint(location.url, record)
    return IncompleteSavepoint(location, held) if held is not None else None


def _is_strange(error: OSError) -> bool:
    return isinstance(error, PermissionError) or error.errno in _STRANGE


def folder_of(location: Storage, name: str, holder: str | None) -> Storage:
    """Return the folder of a query's files."""
    if holder is None:
        return location.at(f"queries/{name}")
    return open_storage(location.url.rpartition("/")[0]).at(f"{holder}/queries/{name}")


def _read_saved(location: Storage, name: str, file: SavedFile) -> bytes:
    return folder_of(location, name, file.holder).read(file.path)


def saved_offsets(savepoint: Savepoint, name: str, batch: int) -> OffsetEntry:
    """Return the offsets of a query's batch, or of the one in flight after it."""
    path = f"offsets/{batch}"
    file = next(file for file in savepoint.record.queries[name].files if file.path == path)
    data = _read_saved(open_storage(savepoint.url), name, file)
    return OffsetEntry.parse(data, where=f"{savepoint.url}/queries/{name}/{path}")


VERIFIED_BYTES: Final = 4 * 1024 * 1024
"""How much a taker reads again by default: enough for logs, not so much that state shows."""


def verify_savepoint(savepoint: Savepoint) -> list[str]:
    """Read every file of a savepoint that has a checksum; return a line for each damage."""
    location = open_storage(savepoint.url)
    return [
        line
        for name, query in savepoint.record.queries.items()
        for line in find_damage(location, name, query, verified_bytes=None)
    ]


def find_damage(
    location: Storage,
    name: str,
    query: QuerySavepoint,
    verified_bytes: int | None,
    *,
    just_copied: bool = False,
) -> list[str]:
    """Compare one query's files with the savepoint's record; return a line for each damage."""
    folders = _Folders(location, name, {file.holder for file in query.files})
    unsized = [file for file in query.files if file.holder or not just_copied]
    wrong = list(folders.without_right_size(unsized))
    if wrong:
        return wrong
    return [
        f"{folders.url(file)}: its content does not have the checksum that was stored with it"
        for file, checksum in _with_checksums(query, verified_bytes)
        if not folders.is_intact(file, checksum)
    ]


class _Folders:
    def __init__(self, location: Storage, name: str, holders: Iterable[str | None]) -> None:
        self._at = {holder: folder_of(location, name, holder) for holder in holders}

    def without_right_size(self, files: Sequence[SavedFile]) -> Iterator[str]:
        holders = {file.holder for file in files}
        listed = {holder: dict(files_under(self._at[holder])) for holder in holders}
        for file in files:
            size = listed[file.holder].get(file.path)
            if size is None:
                yield f"{self.url(file)}: is missing"
            elif size != file.size:
                yield f"{self.url(file)}: has {size} bytes instead of {file.size}"

    def is_intact(self, file: SavedFile, checksum: SavedFile) -> bool:
        data, summed = (self._at[each.holder].read(each.path) for each in (file, checksum))
        is_hadoops = checksum.path.rpartition("/")[2].startswith(".")
        check = has_hadoop_checksum if is_hadoops else has_spark_checksum
        return check(data, summed, where=self.url(checksum))

    def url(self, file: SavedFile) -> str:
        return f"{self._at[file.holder].url}/{file.path}"


def _with_checksums(
    query: QuerySavepoint, budget: int | None
) -> Iterator[tuple[SavedFile, SavedFile]]:
    by_path = {file.path: file for file in query.files}
    read = 0
    for file in sorted(query.files, key=lambda file: file.size):
        folder, _, name = file.path.rpartition("/")
        if name.startswith(".") and name.endswith(".crc"):
            continue  # Hadoop's own, of which there are no checksums
        inside = f"{folder}/" if folder else ""
        checksum = by_path.get(f"{inside}.{name}.crc") or by_path.get(f"{file.path}.crc")
        if checksum is None:
            continue
        read += file.size
        if budget is not None and read > budget:
            return
        yield file, checksum


def check_restorable(savepoint: Savepoint) -> None:
    """Refuse a savepoint of a drained job, or one that lacks files."""
    if savepoint.record.drained:
        raise JobDrainedError(
            f"{savepoint.url}: the job was drained when this savepoint was taken. Its windows are "
            "flushed and their state is gone, so continuing would repeat them; use an earlier one"
        )
    location = open_storage(savepoint.url)
    for name, query in savepoint.record.queries.items():
        with refusing(location.url, "read"):
            damage = find_damage(location, name, query, verified_bytes=0)
        if damage:
            more = f", and {len(damage) - 1} more" if len(damage) > 1 else ""
            raise RefusedCheckpointError(
                f"{damage[0]}{more}; this savepoint cannot be restored, use another one"
            )


Repartition = Callable[[str, CheckpointLogs, int], None]
"""Appends the batch to a checkpoint: its address as Spark writes it, its logs, how many."""


PROVIDER: Final = "rocksdb"


def check_repartitionable(
    savepoint: Savepoint, names: Iterable[str], *, skip_in_flight: bool = False
) -> None:
    """Refuse a savepoint whose state Spark's offline repartitioning cannot spread."""
    stateful = {
        name: query
        for name, query in savepoint.record.queries.items()
        if name in set(names) and query.operators
    }
    if not stateful:
        raise ConfigError(
            f"{savepoint.url}: no query in it keeps state; restore it without partitions"
        )
    for name in stateful:
        reason = _find_obstacle(savepoint, name, skip_in_flight=skip_in_flight)
        if reason is not None:
            raise ConfigError(
                f"{savepoint.url}: the state of query {name!r} cannot be repartitioned: {reason}"
            )


def partitions_of(savepoint: Savepoint, name: str) -> int | None:
    """Return how many partitions Spark gives a query's state; None when its log does not say."""
    return saved_offsets(savepoint, name, savepoint.record.queries[name].batch).partitions


def _find_obstacle(savepoint: Savepoint, name: str, *, skip_in_flight: bool) -> str | None:
    query = savepoint.record.queries[name]
    for operator in query.operators:
        what = f"stateful operator {operator['id']} ({operator['name']})"
        if operator["provider"] != PROVIDER:
            return (
                f"{what} keeps it in {operator['provider']}, and Spark repartitions only "
                f"{PROVIDER}; restore it without partitions"
            )
        if not kind_named(operator["name"]).is_repartitionable:
            return f"Spark does not know how to, for {what}; restore it without partitions"
        if _has_one_partition(savepoint, name, operator):
            # Spark would put its only row where its only partition does not look for it.
            return f"{what} has no keys, so it always has one; restore it without partitions"
    if query.planned and not skip_in_flight:
        return (
            f"batch {query.batch + 1} was in flight, and runs with the partitions that it was "
            "planned with; take an aligned savepoint, or restore it without partitions"
        )
    return None


def _has_one_partition(savepoint: Savepoint, name: str, operator: SavedOperator) -> bool:
    files = savepoint.record.queries[name].files
    folder, location = f"state/{operator['id']}/", open_storage(savepoint.url)
    schemas = [f for f in files if f.path.startswith(folder) and f.path.endswith("/schema")]
    planned = partitions_of(savepoint, name)
    return (planned is not None and operator["partitions"] == 1 < planned) or any(
        has_one_partition(_read_saved(location, name, schema)) for schema in schemas
    )
