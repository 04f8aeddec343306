"""Needs of a table's jobs: the epochs that can be reverted, and the positions of readers.

Only reads. A fact that changes meanwhile changes in the safe direction: an epoch that is published
later is newer than all that was found, and a savepoint that is taken later is of the newest batch.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.checkpoint.source_end import offset_value
from airflow_provider.runtime.errors import SparkStreamError
from airflow_provider.runtime.jobdir.epochs import EpochRecords, query_ids
from airflow_provider.runtime.jobdir.layout import known_job
from airflow_provider.runtime.jobdir.runs import runs_newest_first
from airflow_provider.runtime.jobdir.upgrade_record import active_upgrade, upgrade_over
from airflow_provider.runtime.savepoints.catalog import find_savepoints, open_savepoint
from airflow_provider.runtime.savepoints.record import REWIND
from airflow_provider.runtime.savepoints.restores import Restores
from airflow_provider.runtime.storage.open import open_storage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from airflow_provider.runtime.jobdir.epochs import EpochListing
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.jobdir.run_records import RunRecord
    from airflow_provider.runtime.savepoints.catalog import Savepoint

_LAST: Final = 2**62  # later than any epoch
_KEPT_OFFSETS: Final = 2  # Spark may plan the last two batches of a query again


class Point(NamedTuple):
    """A batch that a query may go back to, and the thing that allows it.

    Attributes:
        batch: the last one that stays; -1 for the query's beginning.
        holder: the thing, for people.
        is_certain: whether it counts even if records of later epochs were folded.
    """

    batch: int
    holder: str
    is_certain: bool = False


@dataclasses.dataclass(frozen=True)
class QueryEpochs:
    """The epochs of one query id.

    Attributes:
        newest: the newest published epoch; later ones are always held.
        points: where the query may go back to.
    """

    query_id: str
    newest: int
    points: tuple[Point, ...] = ()


class NamedVersion(NamedTuple):
    """A version, or snapshot, of a table that a final checkpoint names."""

    sink: str
    version: int
    holder: str


class ReaderPosition(NamedTuple):
    """A position of a query in one of its sources, as Spark's offset log has it."""

    offset: Mapping[str, Any]
    holder: str


@dataclasses.dataclass(frozen=True)
class Facts:
    """What a table's jobs and readers need."""

    queries: tuple[QueryEpochs, ...] = ()
    versions: tuple[NamedVersion, ...] = ()
    positions: tuple[ReaderPosition, ...] = ()


def collect(
    job_dirs: Sequence[str], readers: Sequence[str] = (), savepoints: Sequence[str] = ()
) -> Facts:
    """Read the job directories of a table's writers and readers.

    Args:
        job_dirs: of the jobs that write to the table.
        readers: of the jobs that read it.
        savepoints: further folders of savepoints, of either.

    Raises:
        UnknownJobError: there is no job in one of them.
    """
    jobs = [version for each in job_dirs for version in _with_successors(each)]
    further = [s for folder in savepoints for s in find_savepoints(open_storage(folder))[0]]
    found = Facts()
    for job in jobs:
        own = [*find_savepoints(job.storage.at("savepoints"))[0], *further]
        own += _named_savepoints(job, {each.url for each in own})
        found = dataclasses.replace(
            found,
            queries=(*found.queries, *_queries(job, own)),
            versions=(*found.versions, *_versions(job, own)),
        )
    for reader in [*jobs, *(version for each in readers for version in _with_successors(each))]:
        own = [*find_savepoints(reader.storage.at("savepoints"))[0], *further]
        positions = (*found.positions, *_positions(reader, own))
        found = dataclasses.replace(found, positions=positions)
    return found


def _with_successors(job_dir: str) -> list[JobDirectory]:
    """Return the directory of a version, and of those that have taken over from it."""
    found = [known_job(job_dir)]
    while True:
        upgrade = active_upgrade(found[-1])
        if upgrade is None or not upgrade.is_accepted:
            return found
        successor = known_job(upgrade.to)
        if successor.url in {each.url for each in found}:
            return found
        found.append(successor)


def _named_savepoints(job: JobDirectory, known: Iterable[str]) -> Iterator[Savepoint]:
    """Yield the savepoints elsewhere with which runs have ended."""
    seen = set(known)
    for record in runs_newest_first(job):
        final = job.run(record.run_id).final()
        url = final.savepoint if final is not None else None
        if url is None or url in seen:
            continue
        seen.add(url)
        try:
            yield open_savepoint(url)
        except SparkStreamError:  # disposed of, or moved to a folder that the caller must name
            continue


# --- epochs of the writers ------------------------------------------------------------------------


def _queries(job: JobDirectory, savepoints: Sequence[Savepoint]) -> Iterator[QueryEpochs]:
    runs = [r for r in runs_newest_first(job) if job.run(r.run_id).rewound() is None]
    everything = [*_open_operations(job)]
    upgrade = active_upgrade(job)
    is_replaced = upgrade is not None and upgrade.is_accepted  # it is never set back
    for name in job.query_names():
        storage = job.committables(name)
        read = [EpochRecords(storage, query_id) for query_id in query_ids(storage)]
        listed = [(records, records.find()) for records in read]
        folded = max((_last_folded(r, found) for r, found in listed), default=-1)
        points = [*everything, *_run_points(job, runs), *_saved_points(job, savepoints, name)]
        allowed = tuple(p for p in points if p.is_certain or p.batch >= folded)
        allowed = () if is_replaced else allowed
        for records, found in listed:
            if found.is_abandoned:  # the query was reset, and its output stays
                yield QueryEpochs(records.query_id, _LAST)
            else:
                waiting = _unpublished(job, records, found)
                yield QueryEpochs(records.query_id, _newest(found), (*allowed, *waiting))


def _open_operations(job: JobDirectory) -> Iterator[Point]:
    last = Restores(job).last()
    if last is not None and last.is_open:
        yield Point(
            -1, f"operation {last.number} of {job.url}, which has not ended", is_certain=True
        )
    upgrade = upgrade_over(job)
    if upgrade is not None and upgrade[1].is_open:
        yield Point(
            -1, f"upgrade {upgrade[1].id} of {upgrade[0].url}, which has not ended", is_certain=True
        )


def _last_folded(records: EpochRecords, found: EpochListing) -> int:
    """Return the last epoch whose record is gone, so that no revert goes back behind it."""
    if found.is_abandoned:
        return -1
    own = records.history(found).own_epochs_after(-1)
    end = _LAST if found.reverted_from is None else found.reverted_from
    return max((epoch for epoch in own if epoch < end), default=-1)


def _newest(found: EpochListing) -> int:
    if found.reverted_from is None:
        return found.newest
    return min(found.newest, found.reverted_from - 1)


def _unpublished(job: JobDirectory, records: EpochRecords, found: EpochListing) -> Iterator[Point]:
    waiting = [epoch for epoch in found.precommitted if not found.is_published(epoch)]
    if waiting:
        first = min(waiting)
        record = records.counting(first, found)
        run = f"run {record.run_id}" if record is not None else "a run"
        yield Point(
            first - 1, f"{run} of {job.url}, which has not published epoch {first}", is_certain=True
        )


def _run_points(job: JobDirectory, runs: Sequence[RunRecord]) -> Iterator[Point]:
    for record in runs:
        if all(batch < 0 for batch in record.starting.values()):
            yield Point(-1, f"run {record.run_id} of {job.url}, which began without state")


def _saved_points(job: JobDirectory, savepoints: Iterable[Savepoint], name: str) -> Iterator[Point]:
    for savepoint in savepoints:
        if not _is_of(savepoint, job):
            continue
        query = savepoint.record.queries.get(name)
        batch = min(query.batch, query.epoch) if query is not None else -1
        yield Point(batch, _holder(savepoint, job))


def _is_of(savepoint: Savepoint, job: JobDirectory) -> bool:
    """Whether a job may be set to it; one whose job is not known counts, too."""
    record = savepoint.record
    return savepoint.url.startswith(f"{job.url}/") or record.job in {None, job.name()}


def _holder(savepoint: Savepoint, job: JobDirectory) -> str:
    record = savepoint.record
    if record.origin == REWIND and savepoint.url.startswith(f"{job.url}/"):
        return f"run {_run_of(savepoint)} of {job.url}, which can be replayed"
    return f"savepoint {savepoint.url}"


def _run_of(savepoint: Savepoint) -> str:
    return savepoint.record.name.removeprefix(f"{REWIND}-").partition("+")[0]


# --- what consumers need --------------------------------------------------------------------------


def _versions(job: JobDirectory, savepoints: Iterable[Savepoint]) -> Iterator[NamedVersion]:
    """Yield the versions that the newest run has published, and each run that can be replayed."""
    replayable = {_run_of(s) for s in savepoints if s.record.origin == REWIND}
    is_newest = True
    for record in runs_newest_first(job):
        final = job.run(record.run_id).final()
        if final is None or not (is_newest or record.run_id in replayable):
            continue
        is_newest = False
        holder = f"the final checkpoint of run {record.run_id} of {job.url}"
        for query in final.queries.values():
            for sink in query.sinks:
                if sink.version is not None:
                    yield NamedVersion(sink.name, sink.version, holder)


def _positions(job: JobDirectory, savepoints: Iterable[Savepoint]) -> Iterator[ReaderPosition]:
    for name in job.query_names():
        logs = CheckpointLogs(job.checkpoint(name))
        for batch in logs.batches("offsets")[-_KEPT_OFFSETS - 1 :]:
            for line in logs.offsets(batch).by_source().values():
                yield from _position(offset_value(line), f"query {name!r} of {job.url}")
    for savepoint in savepoints:
        if _is_of(savepoint, job):
            for query in savepoint.record.queries.values():
                for offset in query.sources:
                    yield from _position(offset, _holder(savepoint, job))


def _position(offset: Any, holder: str) -> Iterator[ReaderPosition]:
    if isinstance(offset, dict):
        yield ReaderPosition(offset, holder)
