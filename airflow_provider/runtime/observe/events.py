"""Events of a stream, decided from its job directory, each once.

Events follow from the job directory and the *state* after the last event, plain JSON that the
caller stores. The decision is pure: it compares watermarks, numbers and names, never times.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

from airflow_provider.runtime.base.clock import millis_to_iso
from airflow_provider.runtime.errors import EXIT_OK
from airflow_provider.runtime.errors.explanation import Failure
from airflow_provider.runtime.jobdir.query_reports import run_counts
from airflow_provider.runtime.jobdir.run_records import FAILED
from airflow_provider.runtime.jobdir.runs import RECENT, runs_newest_first
from airflow_provider.runtime.observe.completeness import completeness
from airflow_provider.runtime.observe.corrections import (
    CorrectionPosition,
    SeenCorrections,
    newest_corrections,
    read_corrections,
)
from airflow_provider.runtime.observe.endings import silent_failure
from airflow_provider.runtime.observe.revised_periods import (
    RevisedPeriods,
    no_revisions,
    period_id,
)
from airflow_provider.runtime.savepoints.catalog import find_savepoints
from airflow_provider.runtime.savepoints.record import REWIND_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from airflow_provider.runtime.jobdir.layout import JobDirectory, RunDirectory
    from airflow_provider.runtime.jobdir.run_records import AttemptRecord, RunRecord
    from airflow_provider.runtime.observe.completeness import Completeness
    from airflow_provider.runtime.observe.revised_periods import RevisedPeriod
    from airflow_provider.runtime.savepoints.catalog import Savepoint

State: TypeAlias = dict[str, Any]
Seen = TypeVar("Seen")

_REVISIONS: Final = "revisions"


@dataclasses.dataclass(frozen=True)
class EventStep:
    """One event, and the state after it.

    Attributes:
        id: the same when another triggerer reports the event again.
        payload: plain JSON for the event's consumers.
        state: to be stored together with the event.
    """

    id: str
    payload: dict[str, Any]
    state: State


class EventSource(Protocol[Seen]):
    """A kind of events."""

    def read(self, directory: JobDirectory, state: State | None) -> Seen:
        """Read what the events follow from.

        Args:
            directory: the job directory; there may be no job in it yet.
            state: the state after the last event or :meth:`begin`; None for the first read.
        """

    def describe(self, seen: Seen) -> str:
        """Return a few words for a log, which change when the read changes."""

    def begin(self, seen: Seen) -> State:
        """Return the first state, with which what is there already is not reported."""

    def steps(self, state: State, seen: Seen) -> Iterator[EventStep]:
        """Yield the events that follow, in order, each with the state after it."""


# --- complete up to ------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class SeenPeriods:
    """How far a job's output is complete, and the corrections that were there before that read."""

    complete: Completeness
    corrections: SeenCorrections | None = None


@dataclasses.dataclass(frozen=True)
class CompletePeriods:
    """An event for each period of event time of which the output is complete, and one for the end.

    With *revisions* a period has an event again when a correction has revised it. Without, periods
    are not reported again, also after an older savepoint was restored.

    Attributes:
        every_ms: the length of the periods, which are aligned to 1970.
        queries: the queries that count; none for all.
        since_ms: events begin with the period that contains this moment; None for those that
            complete after the first read. If the stream has no watermark then, the first event is
            that of the newest period.
        revisions: whether revised periods are reported.
    """

    every_ms: int
    queries: tuple[str, ...] = ()
    since_ms: int | None = None
    revisions: bool = False

    def read(self, directory: JobDirectory, state: State | None) -> SeenPeriods:
        corrections = None
        if self.revisions:
            # First: rows that are removed after this are complete before their correction is seen.
            known = (state or {}).get(_REVISIONS)
            if known is None:
                newest = newest_corrections(directory)
                corrections = SeenCorrections((), newest)
            else:
                position = CorrectionPosition.of(known, directory.url)
                corrections = read_corrections(directory, position, known["open"])
        return SeenPeriods(completeness(directory, self.queries), corrections)

    def describe(self, seen: SeenPeriods) -> str:
        return f"complete up to: {seen.complete.describe() or 'nothing yet'}"

    def begin(self, seen: SeenPeriods) -> State:
        reached = seen.complete.reached_ms
        if self.since_ms is not None:
            state: State = {"boundary_ms": self._boundary(self.since_ms), "ended_by": None}
        else:
            boundary = None if reached is None else self._boundary(reached)
            state = {"boundary_ms": boundary, "ended_by": seen.complete.finished_by}
        return self.complement(state, seen)

    def complement(self, state: State, seen: SeenPeriods) -> State:
        """Return a state with the newest corrections as known, if it has none."""
        if seen.corrections is None or _REVISIONS in state:
            return state
        return {**state, _REVISIONS: no_revisions(seen.corrections.position)}

    def steps(self, state: State, seen: SeenPeriods) -> Iterator[EventStep]:
        revised = RevisedPeriods(self.every_ms, self.queries)
        if seen.corrections is not None:
            state = self.complement(state, seen)
            known, reported = state[_REVISIONS], state["boundary_ms"]
            state = {**state, _REVISIONS: revised.entered(known, seen.corrections, reported)}
        for step in self._complete(state, seen.complete):
            state = step.state
            yield step
        if seen.corrections is not None:
            due = revised.due(state[_REVISIONS], seen.corrections, seen.complete)
            yield from (self._revised(state, each, seen.complete) for each in due)

    def _complete(self, state: State, seen: Completeness) -> Iterator[EventStep]:
        complete = seen.describe()
        last = state["boundary_ms"]
        for boundary in self._boundaries(last, seen.reached_ms):
            at = millis_to_iso(boundary)
            start = None if last is None else millis_to_iso(last)
            period = {"event": "complete", "start": start, "boundary": at, "complete": complete}
            state = {**state, "boundary_ms": boundary}
            last = boundary
            yield EventStep(f"complete:{at}", period, state)
        run_id = seen.finished_by
        if run_id is not None and run_id != state["ended_by"]:
            start = None if last is None else millis_to_iso(last)
            rest = {"event": "end", "start": start, "boundary": None, "complete": complete}
            yield EventStep(
                f"end:{run_id}", {**rest, "run_id": run_id}, {**state, "ended_by": run_id}
            )

    def _revised(self, state: State, period: RevisedPeriod, seen: Completeness) -> EventStep:
        end = period.end_ms
        payload = {
            "event": "revised",
            "start": millis_to_iso(end - self.every_ms) if end is not None else None,
            "boundary": millis_to_iso(end) if end is not None else None,
            "complete": seen.describe(),
            "corrections": [each.describe() for each in period.corrections],
        }
        id_ = period_id(end, period.corrections[-1])
        return EventStep(id_, payload, {**state, _REVISIONS: period.revisions})

    def _boundary(self, moment_ms: int) -> int:
        return moment_ms // self.every_ms * self.every_ms

    def _boundaries(self, last: int | None, reached_ms: int | None) -> Sequence[int]:
        if reached_ms is None:
            return ()
        newest = self._boundary(reached_ms)
        first = newest if last is None else last + self.every_ms
        return range(first, newest + 1, self.every_ms)


# --- corrections ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Corrections:
    """An event for each correction of published output, as soon as it is done.

    For a replay that is when its rows are removed.
    """

    from_start: bool = False

    def read(self, directory: JobDirectory, state: State | None) -> SeenCorrections:
        if state is None and not self.from_start:
            return SeenCorrections((), newest_corrections(directory))
        return read_corrections(directory, CorrectionPosition.of(state, directory.url))

    def describe(self, seen: SeenCorrections) -> str:
        return f"corrections: up to {seen.position.operation}"

    def begin(self, seen: SeenCorrections) -> State:
        position = seen.position
        if self.from_start:
            position = CorrectionPosition(position.directory)
        return position.to_dict()

    def steps(self, state: State, seen: SeenCorrections) -> Iterator[EventStep]:
        position = CorrectionPosition.of(state, seen.position.directory)
        for each in seen.items:
            position = position.after(each)
            payload = {"event": "revised", **each.describe()}
            yield EventStep(f"revised:{each.run_id}:{each.id}", payload, position.to_dict())


# --- savepoints ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class SeenSavepoints:
    """The savepoints of a job directory.

    Attributes:
        complete: the complete ones, by the clocks of their writers.
        folders: of all, also of incomplete and unreadable ones.
    """

    complete: Sequence[Savepoint]
    folders: frozenset[str]


@dataclasses.dataclass(frozen=True)
class NewSavepoints:
    """An event for each complete savepoint in the job's folder ``savepoints``, except for replays.

    The state names the reported and initial savepoints, while their folders exist.

    Attributes:
        from_start: also report the savepoints that are there at the first read.
    """

    from_start: bool = False

    def read(self, directory: JobDirectory, state: State | None) -> SeenSavepoints:
        del state
        complete, others = find_savepoints(directory.storage.at("savepoints"))
        folders = {each.folder for each in complete} | {each.folder for each in others}
        own = [each for each in complete if not each.folder.startswith(REWIND_PREFIX)]
        return SeenSavepoints(own, frozenset(folders))

    def describe(self, seen: SeenSavepoints) -> str:
        return f"savepoints: {len(seen.complete)}"

    def begin(self, seen: SeenSavepoints) -> State:
        return {"known": [] if self.from_start else [_mark(each) for each in seen.complete]}

    def steps(self, state: State, seen: SeenSavepoints) -> Iterator[EventStep]:
        known = [mark for mark in state["known"] if mark.rpartition("@")[0] in seen.folders]
        for savepoint in seen.complete:
            if _mark(savepoint) in state["known"]:
                continue
            known = [*known, _mark(savepoint)]
            record = savepoint.record
            payload = {
                "event": "savepoint",
                "name": savepoint.folder,
                "url": savepoint.url,
                "origin": record.origin,
                "taken": record.taken,
                "batches": {name: query.batch for name, query in record.queries.items()},
            }
            id_ = f"savepoint:{savepoint.folder}:{record.taken}"
            yield EventStep(id_, payload, {"known": known})


def _mark(savepoint: Savepoint) -> str:
    return f"{savepoint.folder}@{savepoint.record.taken}"


# --- runs ----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class RunItem:
    """Something that happened to a run; the items of one run have the order of their numbers."""

    run_id: str
    number: int
    payload: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class SeenRuns:
    """What happened to runs.

    Attributes:
        job: identifies the job among those that used the same folder.
        tokens: the lease under which each run was begun, newest first.
        items: oldest first.
    """

    job: str | None
    tokens: Mapping[str, int]
    items: Sequence[RunItem]

    @property
    def settled(self) -> int:
        """The token of the tenth run; 0 if there are fewer."""
        return next(itertools.islice(self.tokens.values(), RECENT - 1, None), 0)


@dataclasses.dataclass(frozen=True)
class _OfRuns:
    """Events of runs.

    The state has the token before which runs are not read any more, ten runs later at the latest,
    and for each later run the number of its last item. All runs of another job are new.
    """

    from_start: bool = False

    def read(self, directory: JobDirectory, state: State | None) -> SeenRuns:
        record = directory.job()
        job = record.created if record is not None else None
        runs: Iterable[RunRecord] = runs_newest_first(directory)
        known: dict[str, int] = {}
        if state is not None and state["job"] == job:
            known = state["known"]
            runs = itertools.takewhile(lambda run: run.token >= state["token"], runs)
        elif state is None and not self.from_start:
            runs = itertools.islice(runs, RECENT)
        tokens = {run.run_id: run.token for run in runs}
        items = [
            RunItem(run_id, number, payload)
            for run_id in reversed(tokens)
            for number, payload in self._items(directory.run(run_id), known.get(run_id, 0))
        ]
        return SeenRuns(job, tokens, items)

    def describe(self, seen: SeenRuns) -> str:
        return f"newest run: {next(iter(seen.tokens), None)}"

    def begin(self, seen: SeenRuns) -> State:
        if self.from_start:
            return {"job": seen.job, "token": 0, "known": {}}
        known = {item.run_id: item.number for item in seen.items}
        return {"job": seen.job, "token": seen.settled, "known": known}

    def steps(self, state: State, seen: SeenRuns) -> Iterator[EventStep]:
        if state["job"] != seen.job:
            state = {"job": seen.job, "token": 0, "known": {}}
        known = {run_id: n for run_id, n in state["known"].items() if run_id in seen.tokens}
        new = [item for item in seen.items if item.number > known.get(item.run_id, 0)]
        for position, item in enumerate(new, start=1):
            known = {**known, item.run_id: item.number}
            # Not before the runs of which there is more to report.
            token = min([seen.settled, *(seen.tokens[later.run_id] for later in new[position:])])
            token = max(token, state["token"])
            known = {run_id: n for run_id, n in known.items() if seen.tokens[run_id] >= token}
            payload = {**item.payload, "run_id": item.run_id}
            attempt = f":{item.number}" if "attempt" in item.payload else ""
            id_ = f"{item.payload['event']}:{item.run_id}{attempt}"
            yield EventStep(id_, payload, {"job": seen.job, "token": token, "known": known})

    def _items(self, run: RunDirectory, known: int) -> Iterator[tuple[int, dict[str, Any]]]:
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class FinalCheckpoints(_OfRuns):
    """An event for each run that has its final checkpoint, unless it was rewound before a read."""

    def _items(self, run: RunDirectory, known: int) -> Iterator[tuple[int, dict[str, Any]]]:
        if known:
            return
        final = run.final()
        if final is not None and run.rewound() is None:
            yield (
                1,
                {
                    "event": "final",
                    "outcome": final.outcome,
                    "attempts": final.attempts,
                    "rows_read": final.rows_read,
                    "late_rows": final.late_rows,
                    **run_counts(final.queries),
                    "savepoint": final.savepoint,
                    "queries": sorted(final.queries),
                },
            )


_SHOWN: Final = ("reason", "condition", "root_cause", "query", "batch", "host")


@dataclasses.dataclass(frozen=True)
class Failures(_OfRuns):
    """An event for each attempt that has failed, or whose driver has died without recording why."""

    def _items(self, run: RunDirectory, known: int) -> Iterator[tuple[int, dict[str, Any]]]:
        last = run.attempt_count()
        if last <= known:
            return
        for attempt in run.attempts():
            failure = _failure(run, attempt, is_last=attempt.attempt == last)
            if attempt.attempt > known and failure is not None:
                yield (
                    attempt.attempt,
                    {
                        "event": "failure",
                        "attempt": attempt.attempt,
                        "failure_class": failure.failure_class.value,
                        **{name: getattr(failure, name) for name in _SHOWN},
                        "retryable": not failure.failure_class.is_permanent,
                    },
                )


def _failure(run: RunDirectory, attempt: AttemptRecord, *, is_last: bool) -> Failure | None:
    if attempt.outcome is not None:
        is_failed = attempt.outcome == FAILED
        return Failure.from_dict({**(attempt.failure or {})}) if is_failed else None
    ended = run.exit_of(attempt.driver_id)
    if is_last and (ended is None or ended.exit_code in {None, EXIT_OK}):
        return None
    code, lines = (ended.exit_code, ended.last_lines) if ended is not None else (None, ())
    return silent_failure(code, lines, host=attempt.host)
