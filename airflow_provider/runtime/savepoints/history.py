"""The history of a job's queries, read once, and rules of what may be set back in it; pure.

A savepoint may be restored where the outputs have exactly the rows that it has read, each once,
and after a revert no others. Since it was taken, a query may have been reset while its output was
kept, or been set back, which has reverted its rows; or the savepoint is of another job directory,
of whose rows and reverts nothing here is known.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.errors import ConfigError, RevertError
from airflow_provider.runtime.errors.fixes import RESTORE_ELSEWHERE
from airflow_provider.runtime.jobdir.epochs import EpochRecords, left_ids, query_ids
from airflow_provider.runtime.jobdir.identity import lineage_of
from airflow_provider.runtime.jobdir.journal import Journal
from airflow_provider.runtime.savepoints.restores import Restores, is_of, open_restore

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from airflow_provider.runtime.errors import SparkStreamError
    from airflow_provider.runtime.jobdir.epochs import Span
    from airflow_provider.runtime.jobdir.journal import OperationRecord, RestorePlan, SetBack
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.savepoints.catalog import Savepoint


@dataclasses.dataclass(frozen=True)
class Written:
    """What a query has written under one of its ids.

    Attributes:
        url: the folder of its records.
        waiting: epochs that are pre-committed and not recorded as published.
        standing: epochs that are, or may still be, published; none that were reverted or left.
        has_own: whether an epoch was written under this id at all.
        copied: the last epoch of another id from which a restored copy continues; -1 for none.
        reverted_from: from this epoch on all was reverted; None for nothing.
        is_left: whether the query was reset, and its output under this id stays.
    """

    query_id: str
    url: str
    waiting: Sequence[int] = ()
    standing: Sequence[Span] = ()
    has_own: bool = False
    copied: int = -1
    reverted_from: int | None = None
    is_left: bool = False

    @classmethod
    def read(cls, records: EpochRecords) -> Written:
        found = records.find()
        history = records.history(found)
        own = [(first, last) for first, last, _, run_id in history.ranges if run_id]
        own += [(epoch, epoch) for epoch in (*found.published, *found.precommitted)]
        own += found.packed
        before = found.reverted_from
        standing = [
            (first, last if before is None else min(last, before - 1))
            for first, last in own
            if not found.is_abandoned and (before is None or first < before)
        ]
        return cls(
            query_id=records.query_id,
            url=records.url,
            waiting=[each for each in found.precommitted if not found.is_published(each)],
            standing=standing,
            has_own=bool(own),
            copied=max((last for _, last, _, run_id in history.ranges if not run_id), default=-1),
            reverted_from=before,
            is_left=found.is_abandoned,
        )

    def first_after(self, epoch: int) -> int | None:
        """Return the first standing epoch after one; None for none."""
        after = (max(first, epoch + 1) for first, last in self.standing if last > epoch)
        return min(after, default=None)


@dataclasses.dataclass(frozen=True)
class QueryHistory:
    """A query as it is now: the id of the checkpoint that counts, and what it wrote under each."""

    query_id: str | None
    written: Sequence[Written] = ()

    @property
    def has_left(self) -> bool:
        return any(each.is_left for each in self.written)


@dataclasses.dataclass(frozen=True)
class JobHistory:
    """What was done with a job.

    Attributes:
        lineage: the identity of its directory, and those of the jobs that it continues.
        changes: per query what restores did to it, the newest first.
        open: the restore that has begun and not ended; None for none.
        starts: the restores that are no rewinds, the newest first.
        queries: per name.
    """

    url: str
    lineage: Sequence[str]
    changes: Mapping[str, Sequence[SetBack]]
    open: OperationRecord | None
    starts: Sequence[OperationRecord]
    queries: Mapping[str, QueryHistory]

    @classmethod
    def read(cls, directory: JobDirectory, names: Iterable[str]) -> JobHistory:
        journal = Journal(directory.storage)
        last = journal.last_restore()
        return cls(
            url=directory.url,
            lineage=lineage_of(directory.storage),
            changes=journal.changes(),
            open=last if last is not None and last.is_open else None,
            starts=[*Restores(directory).starts(journal)],
            queries=read_queries(directory, names),
        )


def read_queries(directory: JobDirectory, names: Iterable[str]) -> dict[str, QueryHistory]:
    """Return queries as they are now, by name."""
    return {name: _read_query(directory, name) for name in names}


def _read_query(directory: JobDirectory, name: str) -> QueryHistory:
    storage = directory.committables(name)
    return QueryHistory(
        CheckpointLogs(directory.checkpoint(name)).query_id(),
        [Written.read(EpochRecords(storage, query_id)) for query_id in query_ids(storage)],
    )


def why_not_of_history(
    history: JobHistory, savepoint: Savepoint, names: Mapping[str, str]
) -> SparkStreamError | None:
    """Return why a savepoint has read rows that the job's outputs do not have, or not alone; pure.

    *names* has for each query the savepoint's that it would continue from, or "" for a reset.
    """
    record = savepoint.record
    is_own = bool(history.lineage) and record.lineage[:1] == [*history.lineage[:1]]
    for name, theirs in names.items():
        query, saved = history.queries[name], record.queries.get(theirs)
        since = [
            change
            for change in history.changes.get(name, ())
            if is_own and change.number > record.restores
        ]
        if saved is None:
            is_parted = query.query_id is not None
        else:
            is_parted = not is_own or any(change.keeps_output for change in since)
        if is_parted and query.has_left:
            why = "was reset after it was taken, and its output was kept, so these rows cannot "
            why += "be distinguished from those after the savepoint"
        elif saved is None:
            why = "" if is_own else _why_begun_again(query)
        elif is_own:
            back = [change for change in since if change.batch < saved.epoch]
            opened = _reverted_by(history, query, saved.epoch, back)
            if opened is not None:
                return open_restore(history.url, opened)
            why = _why_reverted(query, saved.epoch, back)
        else:
            why = _why_foreign(history, query, saved.epoch, savepoint)
        if why:
            where = f"{history.url}: the savepoint {savepoint.url} cannot be restored here"
            return ConfigError(f"{where}: query {name!r} {why}; {RESTORE_ELSEWHERE}")
    return None


def _reverted_by(
    history: JobHistory, query: QueryHistory, epoch: int, back: Sequence[SetBack]
) -> OperationRecord | None:
    """Return the open restore by which the rows may be gone from some sinks already."""
    opened = history.open
    if opened is None or not back or opened.number != back[0].number or not opened.plan.reverts:
        return None
    written = [_written_since(each, back) for each in query.written]
    return opened if any(each is not None and each <= epoch for each in written) else None


def _written_since(written: Written, back: Sequence[SetBack]) -> int | None:
    return written.first_after(min(change.batch for change in back))


def _why_reverted(query: QueryHistory, epoch: int, back: Sequence[SetBack]) -> str:
    ended = [change for change in back if change.has_ended]
    # The rows may be of any earlier id: a query need not write between two restores.
    for each in query.written if back else ():
        what = f"was set back since then, by operation {back[0].number}"
        if each.reverted_from is not None and each.reverted_from <= epoch and each.has_own:
            return (
                f"{what}, so its epochs from {each.reverted_from} on were reverted, and the "
                "savepoint has read them"
            )
        written = _written_since(each, ended) if ended else None
        if written is not None and written <= epoch:  # the job had begun with rows of another one
            return (
                f"{what}, and has written epoch {written} since, and the savepoint has read other "
                f"rows up to {epoch}"
            )
    return ""


def _why_foreign(history: JobHistory, query: QueryHistory, epoch: int, savepoint: Savepoint) -> str:
    first = [at for each in query.written if (at := each.first_after(-1)) is not None]
    if first and min(first) <= epoch:
        return (
            f"has written epoch {min(first)} here, and the savepoint, which is of another job "
            f"directory, has read other rows up to epoch {epoch}"
        )
    own = [each for each in query.written if each.has_own]
    gone = min((e.reverted_from for e in own if e.reverted_from is not None), default=epoch + 1)
    if gone <= epoch and {*history.lineage[:1]} & {*savepoint.record.lineage}:
        return (
            f"has reverted its epochs from {gone} on here, and the savepoint, which is of "
            "another job directory that continues from this one, has read them"
        )
    begun = min((each.copied for each in own), default=-1)
    is_start = any(is_of(start, savepoint) for start in history.starts)
    # The output may be the same, as after an upgrade, also of a query that began without state.
    continued = {*savepoint.record.lineage[:1]} & {*history.lineage}
    is_other = (
        begun not in {-1, epoch}
        if is_start
        else begun >= 0 or (own and history.starts and continued)
    )
    if is_other:
        return (
            "has begun here with another savepoint of another job directory, and nothing here "
            f"knows what that one has written, or reverted, of the epochs up to {epoch} in this one"
        )
    return ""


def _why_begun_again(query: QueryHistory) -> str:
    if not any(each.has_own and each.copied >= 0 for each in query.written):
        return ""
    return (
        "has begun here with another savepoint of another job directory, whose rows may be in this "
        "output, and this savepoint, which does not have the query, would let it write them again"
    )


def check_same_history(
    directory: JobDirectory, savepoint: Savepoint, names: Mapping[str, str]
) -> None:
    """Refuse a savepoint that is not of the job's history, by :func:`why_not_of_history`."""
    error = why_not_of_history(JobHistory.read(directory, names), savepoint, names)
    if error is not None:
        raise error


def why_written_twice(
    queries: Mapping[str, QueryHistory], plan: RestorePlan, reverted: Collection[str] = ()
) -> ConfigError | None:
    """Return which rows would be written again, as nothing reverts those after the plan; pure.

    *reverted* are the queries whose rows are.
    """
    for name, query in plan.queries.items():
        is_kept = name in reverted or plan.keep_outputs
        for each in () if is_kept else queries[name].written:
            if each.first_after(query["batch"]) is None:
                continue
            first, newest = query["batch"] + 1, max(last for _, last in each.standing)
            return ConfigError(
                f"{each.url}: query {name!r} has written epochs {first} to {newest} after this "
                "savepoint; continuing from it would write their rows again. Revert them in its "
                "sinks first ('spark-stream savepoint restore --revert'), which removes their "
                f"rows, or {RESTORE_ELSEWHERE}"
            )
    return None


def check_not_parted_in(directory: JobDirectory, name: str, run_id: str) -> None:
    """Refuse to rewind a run in the middle of which a query was reset."""
    for query_id in left_ids(directory.committables(name)):
        records = EpochRecords(directory.committables(name), query_id)
        runs = {run for *_, run in records.history().ranges}
        if run_id in runs or any(record.run_id == run_id for record in records.all()):
            raise RevertError(
                f"{directory.url}: run {run_id!r} cannot be rewound: query {name!r} was reset "
                "in it, or since, and its earlier output was kept"
            )
