"""Corrections of published output: what was taken away or executed again, and late repairs.

A correction is not written anywhere: it follows from an operation that is done
(:mod:`~.jobdir.revised_runs` has the crash table), from the upgrade of a version that was rolled
back, and from the record of an epoch that has read corrected records of a folder ``also``. Each has
a number, by which a reader knows those that it has seen.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base.clock import from_iso, millis_to_iso
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.errors import SparkStreamError
from airflow_provider.runtime.jobdir.epochs import EpochRecords, query_ids
from airflow_provider.runtime.jobdir.event_times import EventTimes, joined
from airflow_provider.runtime.jobdir.journal import Journal
from airflow_provider.runtime.jobdir.layout import directory_at
from airflow_provider.runtime.jobdir.query_records import kept_topology
from airflow_provider.runtime.jobdir.revised_runs import RevisedQuery, RevisedRun, merged
from airflow_provider.runtime.jobdir.upgrade_record import (
    UpgradeRecord,
    UpgradeStep,
    steps_newest_first,
)
from airflow_provider.runtime.savepoints.restores import replay_in

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from airflow_provider.runtime.jobdir.epoch_documents import EpochRecord
    from airflow_provider.runtime.jobdir.journal import OperationRecord
    from airflow_provider.runtime.jobdir.layout import JobDirectory

REWIND: Final = "rewind"
REPLAY: Final = "replay"
RESTORE: Final = "restore"
UPGRADE: Final = "upgrade"
ALSO: Final = "also"

_ALSO: Final = ".also"  # ends the name of a source of corrected records
_PLAIN: Final[dict[str, set[int]]] = {}
"""By folder of records, those epochs of this process's last read that have no corrected records.

A record never changes, and a watcher whose position stays the same reads them every few seconds.
"""
_UPGRADE: Final = re.compile(r"u([0-9]+)")


@dataclasses.dataclass(frozen=True)
class Correction:
    """Published output that is not as it was.

    Attributes:
        id: unique in the job directory.
        number: of the operation, of the upgrade's step, or of the epoch.
        reason: a word for what has corrected it.
        runs: the removed output; of ``also`` the run that has published corrected records.
        replay: the run that executes it again; None for none.
        is_replaying: whether that run still counts and has not committed.
        after: what the replay has written in its place, by query, when it has committed; else None.
        query: of ``also``, the query.
        query_id: of ``also``, the id under which the epoch is recorded.
    """

    id: str
    number: int
    reason: str
    runs: Sequence[RevisedRun]
    replay: str | None = None
    is_replaying: bool = False
    after: Mapping[str, RevisedQuery] | None = None
    query: str = ""
    query_id: str = ""

    @property
    def run_id(self) -> str:
        """The newest run whose output it is about."""
        return self.runs[-1].run_id

    def of(self, queries: Collection[str]) -> list[RevisedQuery]:
        """Return the removed parts that are of some queries; of all for none."""
        return _of(queries, [run.queries for run in self.runs])

    def event_times(self, queries: Collection[str] = ()) -> EventTimes | None:
        """Return the range that it may have changed; None when not known."""
        written = [self.after] if self.after is not None else []
        parts = [*self.of(queries), *_of(queries, written)]
        known = [part.event_times for part in parts]
        if any(known) and not any(part.is_partial for part in parts):
            return joined(known)
        intervals = [_interval_times(run) for run in self.runs]
        return joined([*known, *intervals]) if all(intervals) else None

    def describe(self) -> dict[str, Any]:
        """Return it for the consumers of an event, as plain JSON values."""
        times = self.event_times()
        before = sum(part.rows for part in self.of(()))
        is_also = self.reason == ALSO
        return {
            "correction": self.id,
            "reason": self.reason,
            "run_id": self.run_id,
            "least": millis_to_iso(times.least_ms) if times is not None else None,
            "greatest": millis_to_iso(times.greatest_ms) if times is not None else None,
            "rows_before": None if is_also else before,
            "rows_after": self._rows_after(),
            "replayed_by": self.replay,
            "runs": [_described(run) for run in self.runs],
        }

    def _rows_after(self) -> int | None:
        if self.after is not None:
            return sum(part.rows for part in self.after.values())
        return None if self.reason == ALSO or self.replay is not None else 0


def _of(
    queries: Collection[str], found: Iterable[Mapping[str, RevisedQuery]]
) -> list[RevisedQuery]:
    parts = (part for each in found for part in each.items())
    return [part for name, part in parts if not queries or name in queries]


def _described(run: RevisedRun) -> dict[str, Any]:
    interval = run.interval
    return {
        "run_id": run.run_id,
        "interval": {"start": interval[0], "end": interval[1]} if interval is not None else None,
        "rows": sum(part.rows for part in run.queries.values()),
        "epochs": sum(part.epochs for part in run.queries.values()),
        "queries": sorted(run.queries),
    }


def _interval_times(run: RevisedRun) -> EventTimes | None:
    if run.interval is None:
        return None
    start, end = (int(from_iso(each).timestamp() * 1000) for each in run.interval)
    return EventTimes(start, max(end - 1, start))


# --- the corrections of a job directory ----------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class CorrectionPosition:
    """The corrections up to which a reader has come.

    Attributes:
        directory: the job directory that the numbers are of: after an upgrade it is another one.
        operation: the newest correction of the journal.
        upgrade: the newest step of a rolled-back upgrade.
        epochs: per query with corrected records, the id and the epoch up to which they were read.
    """

    directory: str
    operation: int = 0
    upgrade: int = 0
    epochs: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, state: Mapping[str, Any] | None, directory: str) -> CorrectionPosition:
        """Return the position that a state has, or the beginning of the directory's history."""
        if state is None or state.get("directory") != directory:
            return cls(directory)
        return cls(**{field.name: state[field.name] for field in dataclasses.fields(cls)})

    def after(self, correction: Correction) -> CorrectionPosition:
        """Return the position after the next correction."""
        if correction.reason == UPGRADE:
            return dataclasses.replace(self, upgrade=correction.number)
        if correction.reason == ALSO:
            read = [correction.query_id, correction.number]
            return dataclasses.replace(self, epochs={**self.epochs, correction.query: read})
        return dataclasses.replace(self, operation=correction.number)

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "epochs": {name: [*each] for name, each in self.epochs.items()}}


@dataclasses.dataclass(frozen=True)
class SeenCorrections:
    """The corrections after a position, and the position after them."""

    items: Sequence[Correction]
    position: CorrectionPosition


def newest_corrections(directory: JobDirectory) -> CorrectionPosition:
    """Return the position after all corrections of today."""
    return read_corrections(directory, CorrectionPosition(directory.url)).position


def read_corrections(
    directory: JobDirectory, position: CorrectionPosition, again: Collection[str] = ()
) -> SeenCorrections:
    """Return the corrections after a position, oldest first, and those whose ids are *again*."""
    journal = Journal(directory.storage)
    operations = list(_of_operations(directory, journal, position.operation, again))
    upgrades = list(_of_upgrades(directory, position.upgrade, again))
    epochs, corrected = dict(position.epochs), list[Correction]()
    for name in directory.query_names():
        found = _of_epochs(directory, name, epochs.get(name), again)
        if found is not None:
            epochs[name], more = found
            corrected += more
    replays = _replays(journal) if corrected else set()
    corrected = [each for each in corrected if each.run_id not in replays]
    return SeenCorrections(
        [*operations, *upgrades, *corrected],
        CorrectionPosition(
            directory.url,
            max([position.operation, *(each.number for each in operations)]),
            max([position.upgrade, *(each.number for each in upgrades)]),
            epochs,
        ),
    )


def _of_operations(
    directory: JobDirectory, journal: Journal, after: int, again: Collection[str]
) -> Iterator[Correction]:
    numbers = [int(each) for each in again if each.isdecimal()]
    for operation in journal.corrections(min([after, *(number - 1 for number in numbers)])):
        if operation.correction > after or str(operation.correction) in again:
            yield _of_operation(directory, operation)


def _of_operation(directory: JobDirectory, operation: OperationRecord) -> Correction:
    replay = replay_in(operation.by)
    run = directory.run(replay) if replay is not None else None
    counts = run is not None and run.rewound() is None
    after = _replayed(directory, str(replay)) if run and counts and run.final() else None
    reason = REPLAY if replay is not None else REWIND if operation.by else RESTORE
    number = operation.correction
    return Correction(
        id=str(number),
        number=number,
        reason=reason,
        runs=operation.revises or [],
        replay=replay,
        is_replaying=counts and after is None,
        after=after,
    )


def _replayed(directory: JobDirectory, run_id: str) -> dict[str, RevisedQuery]:
    found: dict[str, RevisedQuery] = {}
    for name in directory.query_names():
        for record in _published(directory, name):
            if record.run_id == run_id:
                before = found.get(name) or RevisedQuery(0, 0)
                found[name] = before.with_epoch(record.rows_written, record.event_times)
    return found


def _published(directory: JobDirectory, name: str) -> Iterator[EpochRecord]:
    storage = directory.committables(name)
    for query_id in query_ids(storage):
        for record in EpochRecords(storage, query_id).all():
            if record.committed is not None:
                yield record


def _of_upgrades(
    directory: JobDirectory, after: int, again: Collection[str]
) -> Iterator[Correction]:
    """Yield the rejected versions whose output was reverted; the journal is in their directory."""
    steps = list[UpgradeRecord]()
    numbers = {int(found[1]) for each in again if (found := _UPGRADE.fullmatch(each))}
    least = min([after, *(number - 1 for number in numbers)])
    for step in steps_newest_first(directory):
        if step.number <= least:
            break
        is_new = step.number > after or step.number in numbers
        if step.step is UpgradeStep.ROLLED_BACK and is_new:
            steps.append(step)
    for step in reversed(steps):
        runs = _reverted_by(step)
        if runs:
            yield Correction(f"u{step.number}", step.number, UPGRADE, runs)


def _reverted_by(step: UpgradeRecord) -> list[RevisedRun]:
    try:
        operations = Journal(directory_at(step.to).storage).corrections()
    except (OSError, SparkStreamError):  # its directory may be removed once it is rejected
        return []
    ours = [each.revises or [] for each in operations if step.id in each.rewinds]
    return merged((), (run for runs in ours for run in runs))


def _of_epochs(
    directory: JobDirectory, name: str, position: Sequence[Any] | None, again: Collection[str]
) -> tuple[list[Any], list[Correction]] | None:
    """Return the position and the corrections of a query that reads corrected records, else None.

    An epoch corrects what was complete before it, as far as it has both read and written it.
    """
    topology = kept_topology(directory, name)
    if topology is None or not any(str(each).endswith(_ALSO) for each in topology.sources):
        return None
    logs = CheckpointLogs(directory.checkpoint(name))
    query_id = str(logs.query_id())
    records = EpochRecords(directory.committables(name), query_id)
    found = records.find()
    after = position[1] if position is not None and position[0] == query_id else records.copied()
    corrections = []
    plain = _PLAIN.setdefault(records.url, set())
    plain.intersection_update(found.published)
    for epoch in found.published:
        is_asked = (epoch > after and epoch not in plain) or f"{name}:{epoch}" in again
        record = records.published(epoch, found) if is_asked else None
        if record is not None and record.corrected is None:
            plain.add(epoch)
        if record is not None and record.corrected and record.event_times and epoch > 0:
            complete_ms = logs.complete_ms(epoch - 1) if logs.is_committed(epoch - 1) else None
            times = record.event_times.within(record.corrected)
            times = times.up_to(complete_ms) if times and complete_ms is not None else None
            if times is not None:
                corrections.append(_of_epoch(directory, name, record, times))
    return [query_id, max(after, found.newest)], corrections


def _of_epoch(
    directory: JobDirectory, name: str, record: EpochRecord, times: EventTimes
) -> Correction:
    run = directory.run(record.run_id).record()
    interval = run.interval if run is not None else None
    part = RevisedQuery(1, record.rows_written, times)
    runs = [RevisedRun(record.run_id, interval, {name: part})]
    epoch = record.epoch
    return Correction(f"{name}:{epoch}", epoch, ALSO, runs, query=name, query_id=record.query_id)


def _replays(journal: Journal) -> set[str]:
    """Return the runs that replay others: what they read again is a part of that correction."""
    return {replay for each in journal.corrections() if (replay := replay_in(each.by))}
