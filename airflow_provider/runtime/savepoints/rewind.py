"""Rewind of a run: sets the job back to before it, and its outputs too.

A replayable run begins with a savepoint of origin ``rewind``, or at the very beginning of its job.
Rewinding is a restore of it (:mod:`.restore`) that reverts what the run has committed, and with
which the run no longer counts. The savepoints of the newest runs are kept, older ones are disposed
of when another run begins.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.base.clock import Clock, to_iso
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.errors import (
    ConfigError,
    RevertError,
    SavepointBusyError,
    UnknownJobError,
)
from airflow_provider.runtime.jobdir.later_runs import (
    has_written,
    is_current,
    later_runs,
    runs_since,
)
from airflow_provider.runtime.jobdir.runs import runs_newest_first
from airflow_provider.runtime.savepoints.catalog import Savepoint, open_savepoint
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.savepoints.history import check_not_parted_in, check_same_history
from airflow_provider.runtime.savepoints.needed_input import LISTED_HERE, InputCheck
from airflow_provider.runtime.savepoints.record import REWIND, REWIND_PREFIX
from airflow_provider.runtime.savepoints.restore import Restore
from airflow_provider.runtime.savepoints.restore_plan import RestoreSettings
from airflow_provider.runtime.savepoints.restores import Restores
from airflow_provider.runtime.savepoints.retention import (
    collect_leftover,
    dispose,
    pinned_savepoint,
    retain,
)
from airflow_provider.runtime.savepoints.take import take_savepoint
from airflow_provider.runtime.sinks.revert import runs_after

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Collection, Sequence

    from airflow_provider.runtime.api.sinks import Fence
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.jobdir.run_records import RunRecord
    from airflow_provider.runtime.savepoints.checkpoint_source import Source
    from airflow_provider.runtime.sinks.revert import OutputOfQuery


log = logging.getLogger(__name__)

_TRIES: Final = 5  # machines that were lost while a driver of the same run took its savepoint
_FURTHER: Final = re.compile(r"(\+\d+)?")


def starting_savepoint(directory: JobDirectory, run_id: str) -> Savepoint | None:
    """Return the savepoint that a run began with, or None."""
    root = directory.storage.at("savepoints")
    named = [_find(root.at(name).url) for name in root.list("") if _is_of(name, run_id)]
    found = [s for s in named if s is not None and s.record.is_start_of(run_id)]
    # A driver presumed dead may have completed its own later: the earlier one is right.
    return min(found, key=lambda s: sum(q.batch for q in s.record.queries.values()), default=None)


def replayable_runs(directory: JobDirectory, run_id: str, keep: int) -> list[str]:
    """Return the newest *keep* runs that count, newest first; this one is the first of them."""
    newest = [run_id]
    for other in runs_newest_first(directory) if keep > 1 else ():
        if other.run_id != run_id and directory.run(other.run_id).rewound() is None:
            newest.append(other.run_id)
        if len(newest) >= keep:
            break
    return newest[:keep]


def begin_rewindable(directory: JobDirectory, record: RunRecord, clock: Clock) -> None:
    """Take the savepoint to which the run can be rewound, unless it exists or there is no state.

    Crash safety: calling it again takes it, or finds it. Idempotent: by run id.
    """
    found = starting_savepoint(directory, record.run_id)
    if has_written(directory, record):
        if found is None and not _begins_without_state(record):
            log.warning("run=%s cannot be replayed: it began without a savepoint", record.run_id)
        return
    # A query that has not had a batch has nothing to save, and is reset when rewound.
    now = {name: at for name in record.starting if (at := _position(directory, name))[1] >= 0}
    if found is not None:
        if now == {name: (q.query_id, q.batch) for name, q in found.record.queries.items()}:
            return
        dispose(found.url, clock=clock)  # since then other runs have written, or were rewound
    if now:
        source = job_source(directory.url, clock)
        queries = tuple(query for query in source.queries if query.name in now)
        _take(
            directory,
            dataclasses.replace(source, run_id=record.run_id, queries=queries),
            _folder(record.run_id),
            clock,
        )


def _take(directory: JobDirectory, source: Source, name: str, clock: Clock) -> None:
    root = directory.storage.at("savepoints")
    for number in range(1, _TRIES + 1):
        location = root.at(name if number == 1 else f"{name}+{number}")
        try:
            if location.list(""):
                collect_leftover(location.url, clock=clock)
            take_savepoint(source, location.url, origin=REWIND, aligned_timeout_s=0, clock=clock)
        except SavepointBusyError as error:
            if number == _TRIES:
                raise
            log.warning("%s", error)
        else:
            return


def forget_older(
    directory: JobDirectory, kept: Collection[str], clock: Clock, *, token: int
) -> None:
    """Dispose of the savepoints with which runs have begun, except those of the runs *kept*.

    A driver that was presumed dead, whose lease has the number *token*, leaves those of later ones.
    """
    rule = _Older(frozenset(kept), token)
    root = directory.storage.at("savepoints")
    if not any(rule.is_about(name) for name in root.list("")):
        return  # what others keep there need not be read
    try:
        for name in retain(root.url, rule, clock=clock):
            log.info("%s/%s: disposed of, the run can no longer be replayed", root.url, name)
    except OSError as error:  # the next run removes it; this one does not need it gone
        log.warning("%s: old savepoints could not be removed: %s", root.url, error)


@dataclasses.dataclass(frozen=True)
class _Older:
    kept: frozenset[str]
    token: int

    def is_about(self, folder: str) -> bool:
        ours = folder.startswith(_folder(""))
        return ours and not any(_is_of(folder, run_id) for run_id in self.kept)

    def expired(self, savepoints: Sequence[Savepoint], now: dt.datetime) -> list[Savepoint]:
        del now
        starts = [s for s in savepoints if s.record.origin == REWIND and self.is_about(s.folder)]
        return [s for s in starts if s.record.token <= self.token]


def check_start(
    directory: JobDirectory, run_id: str, *, with_later: bool = False
) -> Savepoint | None:
    """Return the savepoint that a run began with; None if there is nothing to revert.

    With *with_later* the runs that have built on it are rewound first.
    """
    built_on = later_runs(directory, run_id)
    record = directory.run(run_id).record()
    if record is None or not is_current(directory, run_id):
        return None
    later = [] if with_later else built_on
    if later:
        raise RevertError(
            f"{directory.url}: run {run_id!r} cannot be rewound, because later runs have built on "
            f"it; rewind them first, the newest first: {', '.join(reversed(later))} (all of them "
            f"at once: spark-stream rewind --with-later). To execute all of them again: "
            "spark-stream replay"
        )
    savepoint = starting_savepoint(directory, run_id)
    if savepoint is None and not _begins_without_state(record):
        raise RevertError(f"{directory.url}: run {run_id!r} cannot be rewound: {_why_none(record)}")
    return savepoint


@dataclasses.dataclass(frozen=True)
class Rewind:
    """Rewinds one run; the caller holds the lease *fence*.

    If *is_replay*, a run follows that replaces slices of the outputs.
    """

    directory: JobDirectory
    run_id: str
    queries: Sequence[OutputOfQuery]
    fence: Fence
    clock: Clock
    by: str = "rewind"
    input: InputCheck = LISTED_HERE
    is_replay: bool = False

    def check(self, after: Collection[str] = ()) -> Savepoint | None:
        """Refuse what cannot be rewound exactly; nothing is removed. See :func:`check_start`.

        *after* are the runs that are rewound before it.
        """
        savepoint = check_start(self.directory, self.run_id, with_later=bool(after))
        record = self.directory.run(self.run_id).record()
        if record is None or not is_current(self.directory, self.run_id):
            return None
        self._check_declared(record)
        self._check_same_history(savepoint)
        plan = self._restore.plan(self._settings(savepoint))
        for name, query in plan.queries.items():
            self._check_alone(name, query["batch"], after)
        return savepoint

    def rewind(self) -> None:
        """Revert what the run has committed, and set the queries to their state before it."""
        restore = self._restore
        with contextlib.ExitStack() as holding:  # the savepoint, from the intent to the end
            if self.directory.run(self.run_id).rewound() is not None:
                operation = Restores(self.directory).last()
                if operation is None or self.run_id not in operation.rewinds:
                    return
                url = operation.plan.savepoint if operation.is_open else None
            else:
                found, operation = self.check(), None
                url = found.url if found is not None else None
                if not is_current(self.directory, self.run_id):
                    put_rewound(self.directory, self.run_id, self.fence, self.clock, by=self.by)
                    return
            savepoint = None
            if url is not None:
                pinned = pinned_savepoint(url, self.clock, self.directory.url)
                savepoint = holding.enter_context(pinned)
            if operation is None:
                operation = restore.begin(self._settings(savepoint))
            restore.finish(operation, savepoint)

    @property
    def _restore(self) -> Restore:
        return Restore(
            self.directory, self.fence, self.clock, self.queries, self.input, self.is_replay
        )

    def _settings(self, savepoint: Savepoint | None) -> RestoreSettings:
        saved = savepoint.record.queries if savepoint is not None else {}
        names = {q.name: q.name if q.name in saved else "" for q in self.queries}
        return RestoreSettings(savepoint, names, rewinds=[self.run_id], by=self.by)

    def _check_declared(self, record: RunRecord) -> None:
        gone = sorted(set(record.starting) - {query.name for query in self.queries})
        if gone:
            raise RevertError(
                f"{self.directory.url}: run {self.run_id!r} ran query {gone[0]!r}, which the job "
                "no longer has, so its rows cannot be found; put it back"
            )

    def _check_same_history(self, savepoint: Savepoint | None) -> None:
        for query in self.queries:
            check_not_parted_in(self.directory, query.name, self.run_id)
        if savepoint is not None:
            saved = savepoint.record.queries
            names = {query.name: query.name for query in self.queries if query.name in saved}
            try:
                check_same_history(self.directory, savepoint, names)
            except ConfigError as error:
                raise RevertError(str(error)) from error

    def _check_alone(self, query: str, epoch: int, after: Collection[str]) -> None:
        """Refuse when an older run was resumed after this one began: its rows would go, too."""
        committed = CheckpointLogs(self.directory.checkpoint(query)).position().last_commit
        written = runs_after(self.directory.committables(query), epoch, committed)
        others = written - {self.run_id, *after}
        if others:
            raise RevertError(
                f"{self.directory.url}: run {self.run_id!r} cannot be rewound alone: "
                f"{', '.join(sorted(others))} has written to query {query!r} since it began; set "
                "the job to a savepoint from before both: spark-stream savepoint restore "
                "--revert"
            )


def runs_to_rewind(
    directory: JobDirectory, run_id: str, *, with_later: bool, is_replay: bool = False
) -> list[str]:
    """Return the runs to rewind, the newest first and *run_id* last.

    One that was rewound before is among them, since its rewind may have been interrupted. With
    *is_replay* runs that have begun since *run_id* was rewound are not: they are replays.
    """
    if is_replay and directory.run(run_id).rewound() is not None:
        return [run_id]
    later = reversed(runs_since(directory, run_id))
    return [*(each for each in later if with_later or directory.run(each).rewound()), run_id]


def check_rewinds(rewinds: Sequence[Rewind]) -> Savepoint | None:
    """Refuse to rewind runs, the newest first, before the first of them is.

    Returns:
        The savepoint to which the last of them goes back, that of the oldest run.
    """
    oldest, after = rewinds[-1], list[str]()
    last = Restores(oldest.directory).last()
    is_open = last is not None and last.is_open  # it has to end before the others can be checked
    savepoint = None
    for rewind in rewinds[:1] if is_open else rewinds:
        savepoint = rewind.check(after)
        if rewind.directory.run(rewind.run_id).rewound() is None:  # else its rows stay, if any do
            after.append(rewind.run_id)
    if is_open and len(rewinds) > 1:
        return check_start(oldest.directory, oldest.run_id, with_later=True)
    return savepoint


def put_rewound(
    directory: JobDirectory, run_id: str, fence: Fence, clock: Clock, *, by: str
) -> None:
    """Record that a run without output no longer counts."""
    Restores(directory).begin(fence, to_iso(clock.now()), rewinds=[run_id], by=by)


def _folder(run_id: str) -> str:
    return f"{REWIND_PREFIX}{run_id}"


def _begins_without_state(record: RunRecord) -> bool:
    return all(batch < 0 for batch in record.starting.values())


def _is_of(folder: str, run_id: str) -> bool:
    name = _folder(run_id)
    return folder.startswith(name) and _FURTHER.fullmatch(folder[len(name) :]) is not None


def _position(directory: JobDirectory, query: str) -> tuple[str | None, int]:
    logs = CheckpointLogs(directory.checkpoint(query))
    return logs.query_id(), logs.position().last_commit


def _why_none(record: RunRecord) -> str:
    if not record.replayable:
        return (
            "it did not begin with a savepoint; run with on_clear='replay' from its first attempt "
            "on"
        )
    return (
        "the savepoint that it began with was disposed of, because only the newest runs stay "
        "replayable; replayable_runs says how many"
    )


def _find(url: str) -> Savepoint | None:
    try:
        return open_savepoint(url)
    except UnknownJobError:
        return None
