"""Reference model of restores: what each command must do, what it must refuse and why.

It is written from the promises of docs/savepoints.md, change-a-job.md and replay-a-day.md, and knows
nothing of how they are kept. One truth decides nearly all of it: after each command the outputs of a
job have exactly the rows that its state has read, each once, and the rows that a start-over leaves.
What would break that must be refused; what would not must be done; where the docs allow a refusal
for less, either may happen.

A world is a value. A command is a function that returns what may follow (:class:`Expected`).
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from airflow_provider.runtime.errors import (
    CheckpointError,
    ConfigError,
    RevertError,
    SavepointError,
    StopError,
    UnknownJobError,
)

QUERIES = ("q", "p")


class Reason(enum.Enum):
    """Why a command is refused: the errors that say so, and words of their message."""

    def __init__(self, word: str, *errors: type[Exception]) -> None:
        self.word, self.errors = word, errors

    MISSING = "no savepoint there|not complete", UnknownJobError
    NO_RUN = "no run of a job is recorded", UnknownJobError
    NOT_STOPPED = "cannot be saved from here", StopError
    REJECTED = "was rejected", StopError
    UNKNOWN_RUN = "nothing to rewind", UnknownJobError
    LATER_ROWS = "after this savepoint", ConfigError
    REVERTED = "was set back since", ConfigError, RevertError
    STARTED_OVER = "was reset", ConfigError, RevertError
    FOREIGN = "another job directory", ConfigError, RevertError
    OPEN = "did not end", CheckpointError, ConfigError
    BEING_SET = "is being set to", SavepointError
    NOTHING_SAVED = "no job there|nothing to save|no batch of query|not published", ConfigError
    TAKEN = "a savepoint of this name", ConfigError
    NEEDED = "it is needed", ConfigError
    UNPUBLISHED = "is not published", ConfigError
    UNMATCHED = "give them the same names", ConfigError
    BEGUN = "has begun already", ConfigError
    BEGUN_OTHERWISE = "was set to", ConfigError
    REWOUND = "no longer counts", ConfigError
    LATER_RUNS = "later runs have built on it", RevertError
    NOT_REPLAYABLE = "cannot be rewound", RevertError
    IN_PART = "rewound in part", RevertError
    NOT_ALONE = "cannot be rewound alone", RevertError
    REPLACED = "upgrade", ConfigError
    TAKEN_OVER = "has taken over", ConfigError
    NEW_QUERY = "is new in a job that has begun", ConfigError
    CLAIMED = "continues from the checkpoint", ConfigError


class Row(NamedTuple):
    """A row that readers see; *job* is empty when no restore may revert it any more."""

    output: str
    query: str
    row: str
    job: str
    epoch: int
    run: str


@dataclasses.dataclass(frozen=True)
class Query:
    """What a query has read, one row by epoch.

    Attributes:
        planned: the row of the batch in flight, which the next run executes.
        lags: the last row is committed by Spark and not published yet.
        by: the run that has committed the last row.
        age: how often the query has started over.
        base: of how many epochs the rows are in the output of another job.
    """

    read: tuple[str, ...] = ()
    planned: str | None = None
    lags: bool = False
    by: str = ""
    age: int = 0
    base: int = 0

    @property
    def published(self) -> tuple[str, ...]:
        return self.read[: len(self.read) - self.lags]


Queries = Mapping[str, Query]
NEW: Queries = {name: Query() for name in QUERIES}


@dataclasses.dataclass(frozen=True)
class Saved:
    """A savepoint: whose, and what its queries have read."""

    job: str
    queries: Queries


@dataclasses.dataclass(frozen=True)
class Run:
    """A run of a job.

    Attributes:
        begins: what the queries had read when it began.
        saved: whether its first savepoint is kept; None if a death left that open.
        wrote: whether it has written; None if a row may be staged, which another run then executes.
        ends: the epochs at its end; None if it has not ended.
    """

    begins: Queries
    saved: bool | None = False
    wrote: bool | None = False
    rewound: bool = False
    ends: Mapping[str, int] | None = None


@dataclasses.dataclass(frozen=True)
class Open:
    """A restore, a rewind or a start-over that was begun and has not ended.

    Attributes:
        savepoint: None for the beginning, or for the first savepoint of a run.
        back: after which epoch of each query the job's rows are reverted; empty for a start-over.
        lost: the rows that are being reverted.
    """

    savepoint: str | None
    queries: Queries
    back: Mapping[str, int]
    reverts: bool = False
    rewinds: frozenset[str] = frozenset()
    lost: frozenset[Row] = frozenset()


class Step(enum.Enum):
    """How far an upgrade has come."""

    STOPPING = "the old version is being stopped"
    TRIAL = "the new version is on trial"
    REJECTED = "the rows of the new version are being reverted"
    ACCEPTED = "the new version is active"


@dataclasses.dataclass(frozen=True)
class Upgrade:
    """An upgrade of a job, as far as it has come; *run_id* is the run of the new version."""

    to: str
    run_id: str
    step: Step = Step.STOPPING

    @property
    def savepoint(self) -> str:
        return f"up-{self.to}"


@dataclasses.dataclass(frozen=True)
class Job:
    """A job directory.

    Attributes:
        starts: the savepoints that it was ever set to.
        wrote: whether it has ever written a row.
        upgrade: by which another version takes, or has taken, its place.
        pending: runs that no longer count, and may not be marked yet.
    """

    output: str
    queries: Queries = dataclasses.field(default_factory=lambda: NEW)
    runs: Mapping[str, Run] = dataclasses.field(default_factory=dict)
    open: Open | None = None
    starts: frozenset[str] = frozenset()
    wrote: bool = False
    upgrade: Upgrade | None = None
    pending: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True)
class World:
    """All job directories, their savepoints, and the rows that readers see.

    Attributes:
        plain: what the checkpoints of plain Spark's have read.
        claimed: the job that has taken them over.
    """

    jobs: Mapping[str, Job]
    saved: Mapping[str, Saved] = dataclasses.field(default_factory=dict)
    rows: frozenset[Row] = frozenset()
    plain: Queries = dataclasses.field(default_factory=dict)
    claimed: str | None = None

    def with_job(self, name: str, **changes: object) -> World:
        job = dataclasses.replace(self.jobs[name], **changes)  # type: ignore[arg-type]
        return dataclasses.replace(self, jobs={**self.jobs, name: job})

    def with_query(self, name: str, query: str, **changes: object) -> World:
        now = dataclasses.replace(self.jobs[name].queries[query], **changes)  # type: ignore[arg-type]
        return self.with_job(name, queries={**self.jobs[name].queries, query: now})

    def with_run(self, name: str, run_id: str, **changes: object) -> World:
        runs = self.jobs[name].runs
        run = dataclasses.replace(runs[run_id], **changes)  # type: ignore[arg-type]
        return self.with_job(name, runs={**runs, run_id: run})

    def own(self, name: str, back: Mapping[str, int]) -> frozenset[Row]:
        """Return the rows that a job may revert: its own, after an epoch of each query."""
        return frozenset(
            r for r in self.rows if r.job == name and r.epoch > back.get(r.query, r.epoch)
        )

    def barred(self, name: str, rewinds: str = "") -> Reason | None:
        """Return why an upgrade forbids to run a version or to set it back.

        The run of the version on trial may be rewound, which rejects it.
        """
        mine = self.jobs[name].upgrade
        if mine is not None:
            return Reason.TAKEN_OVER if mine.step is Step.ACCEPTED else Reason.REPLACED
        own = (job.upgrade for job in self.jobs.values())
        tried = next((each for each in own if each is not None and each.to == name), None)
        is_tried = tried is not None and tried.step is not Step.ACCEPTED
        runs = self.jobs[name].runs
        is_barred = is_tried and tried and tried.run_id in runs and tried.run_id != rewinds
        return Reason.REPLACED if is_barred else None

    def has_exactly(self, name: str, query: str) -> bool:
        """Whether the output has what the state has read, and what start-overs have left."""
        job = self.jobs[name]
        rows = {r.row for r in self.rows if (r.output, r.query) == (job.output, query) and r.job}
        state = job.queries[query]
        return rows == {*state.published[state.base :]}


@dataclasses.dataclass(frozen=True)
class Expected:
    """What may follow a command.

    Attributes:
        must: it must be refused, for one of these reasons; empty if it must not.
        may: it may be refused for these.
        after: the worlds that it may leave when it is done.
        cut: the worlds that a death or an outage may leave, besides.
        refused: the worlds that a refusal may leave.
    """

    after: tuple[World, ...]
    refused: tuple[World, ...]
    must: frozenset[Reason] = frozenset()
    may: frozenset[Reason] = frozenset()
    cut: tuple[World, ...] = ()


# --- the parts ------------------------------------------------------------------------------------


def complete(world: World, name: str) -> World:
    """Return the world after the open operation of a job has ended."""
    job = world.jobs[name]
    begun = job.open
    if begun is None:
        return world
    if begun.back:
        rows = world.rows - world.own(name, begun.back)
    else:  # what a query has written before it starts over stays, and nobody reverts it
        left = {q for q in QUERIES if begun.queries[q].age > job.queries[q].age}
        rows = frozenset(
            r._replace(job="") if r.output == job.output and r.query in left else r
            for r in world.rows
        )
    done = dataclasses.replace(world, rows=rows)
    for run_id in begun.rewinds:
        done = done.with_run(name, run_id, rewound=True)
    starts = job.starts | ({begun.savepoint} if begun.savepoint is not None else set())
    return done.with_job(name, queries=begun.queries, open=None, starts=starts)


def begin(world: World, name: str, operation: Open) -> World:
    """Return the world when an operation has begun; runs that it rewinds are marked one by one."""
    pending = world.jobs[name].pending | operation.rewinds
    return world.with_job(name, open=operation, pending=pending)


def set_to(job: Job, queries: Queries) -> Queries:
    """Return the queries of a job that was set to what a savepoint has of them."""
    ages = {name: job.queries[name].age for name in QUERIES}
    return {
        name: dataclasses.replace(queries[name], age=ages[name], lags=False)
        if queries[name].read
        else Query(age=ages[name])
        for name in QUERIES
    }


def why_wrong(world: World, name: str, saved: Saved, *, reverts: bool) -> Iterator[Reason]:
    """Yield why a job would not have the rows that its state has read, set to a savepoint."""
    job = world.jobs[name]
    back = {q: len(saved.queries[q].read) - 1 for q in QUERIES}
    if not reverts and world.own(name, back):
        yield Reason.LATER_ROWS
    operation = Open(None, set_to(job, saved.queries), back)
    after = complete(world.with_job(name, open=operation), name)
    for query in QUERIES:
        if not after.has_exactly(name, query):
            left = {r.row for r in world.rows if not r.job}
            if left & {*saved.queries[query].read}:
                yield Reason.STARTED_OVER
            if saved.job != name:
                yield Reason.FOREIGN
            elif saved.queries[query].age != job.queries[query].age:
                yield Reason.STARTED_OVER
            else:
                yield Reason.REVERTED


def as_seen_from(world: World, name: str, saved: Saved) -> Saved:
    """Return a savepoint whose rows are not in this job's output, if it is of another output."""
    if saved.job == name or world.jobs[saved.job].output == world.jobs[name].output:
        return saved
    queries = {q: dataclasses.replace(s, base=len(s.read)) for q, s in saved.queries.items()}
    return dataclasses.replace(saved, queries=queries)


def refused(world: World, *reasons: Reason | None) -> Expected:
    return Expected((world,), (world,), must=frozenset(r for r in reasons if r is not None))


# --- the commands ---------------------------------------------------------------------------------


def run(
    world: World, name: str, run_id: str, writes: Sequence[tuple[str, str]], keep: int
) -> Expected:
    """A driver publishes what is committed, executes the batch in flight again, and writes on."""
    job = world.jobs[name]
    now = job.runs.get(run_id)
    if now is not None and now.ends is not None:
        return refused(world, Reason.REWOUND) if now.rewound else Expected((world,), (world,))
    must = {world.barred(name), Reason.OPEN if job.open else None}
    must |= {Reason.REWOUND if now is not None and now.rewound else None}
    if must - {None}:
        return refused(world, *must)
    steps = [world]
    if now is None:
        runs = {**job.runs, run_id: Run(job.queries)}
        steps.append(world.with_job(name, runs=runs))
    for query in QUERIES:
        if job.queries[query].lags:
            steps.append(_publish(steps[-1], name, query))
    steps += _keep_start(steps[-1], name, run_id, keep)
    for query, new_row in writes:
        state = steps[-1].jobs[name].queries[query]
        if new_row in state.read:  # by this run, before it was paused
            continue
        row = state.planned or new_row
        staged = steps[-1].with_query(name, query, planned=row)
        wrote = staged.jobs[name].runs[run_id].wrote or None
        steps.append(staged.with_run(name, run_id, wrote=wrote))
        changes = {"read": (*state.read, row), "planned": None, "lags": True, "by": run_id}
        lags = staged.with_query(name, query, **changes).with_run(name, run_id, wrote=True)
        steps.append(lags.with_job(name, wrote=True))
        steps.append(_publish(steps[-1], name, query))
    ends = {q: len(state.read) for q, state in steps[-1].jobs[name].queries.items()}
    after = steps[-1].with_run(name, run_id, ends=ends)
    return Expected((after,), (world,), cut=tuple(steps))


def _publish(world: World, name: str, query: str) -> World:
    job = world.jobs[name]
    state = job.queries[query]
    row = Row(job.output, query, state.read[-1], name, len(state.read) - 1, state.by)
    published = dataclasses.replace(world, rows=world.rows | {row})
    return published.with_query(name, query, lags=False)


def _keep_start(world: World, name: str, run_id: str, keep: int) -> list[World]:
    job = world.jobs[name]
    if not keep:
        return []
    counting = [each for each, run in [*job.runs.items()][::-1] if not run.rewound]
    kept = [run_id, *(each for each in counting if each != run_id)][:keep]
    unsure = done = world
    if not job.runs[run_id].wrote and any(s.read for s in job.queries.values()):
        unsure, done = (world.with_run(name, run_id, saved=saves) for saves in (None, True))
    for each in job.runs:
        if each not in kept and job.runs[each].saved is not False:
            unsure = unsure.with_run(name, each, saved=None)
            done = done.with_run(name, each, saved=False)
    return [unsure, done]


def strayed(world: World, cut: Iterable[World]) -> Iterator[World]:
    """Yield what a run that was overtaken may still plan, of a query that nobody knew of.

    Its next driver leaves that location, and executes the batch.
    """
    for each in cut:
        for name, job in each.jobs.items():
            for query, state in job.queries.items():
                if state.planned and not state.read and world.jobs[name].queries[query] == Query():
                    yield world.with_query(name, query, planned=state.planned)


def take(world: World, name: str, savepoint: str) -> Expected:
    """A savepoint has what is committed and published, and the plan of the batch after it."""
    job = world.jobs[name]
    has_none = not any(state.published for state in job.queries.values())
    why = [
        Reason.TAKEN if savepoint in world.saved else None,
        Reason.BEING_SET if job.open is not None else None,
        Reason.NOTHING_SAVED if has_none else None,
    ]
    all_begun = all(state.published for state in job.queries.values())
    may = frozenset() if all_begun else frozenset({Reason.NOTHING_SAVED})
    if any(why):
        return dataclasses.replace(refused(world, *why), may=may)
    after = []
    for unrecorded in _subsets(job):
        queries = {q: _saved(state, unrecorded=q in unrecorded) for q, state in job.queries.items()}
        if any(state.read for state in queries.values()):
            saved = {**world.saved, savepoint: Saved(name, queries)}
            after.append(dataclasses.replace(world, saved=saved))
        if not all(state.read for state in queries.values()):
            may |= {Reason.NOTHING_SAVED}
    return Expected(tuple(after), (world,), may=may, cut=(world, *after))


def _subsets(job: Job) -> list[frozenset[str]]:
    """Return the queries whose last row may be visible without a record, after a death."""
    unsure = [
        q
        for q, state in job.queries.items()
        if state.published and state.by in job.runs and job.runs[state.by].ends is None
    ]
    return [frozenset(each) for n in range(len(unsure) + 1) for each in combinations(unsure, n)]


def _saved(state: Query, *, unrecorded: bool) -> Query:
    if not (state.lags or unrecorded):
        return state
    return dataclasses.replace(state, read=state.read[:-1], planned=state.read[-1], lags=False)


def as_taken(world: World, savepoint: str, seen: Seen) -> World:
    """Return the world with what a savepoint has of a job that has run while it was taken.

    Its queries are saved one after the other, each at one batch.
    """
    found, saved = seen.saved.get(savepoint), world.saved.get(savepoint)
    if found is None or saved is None:
        return world
    queries = dict(saved.queries)
    for query, state in world.jobs[saved.job].queries.items():
        length, is_planned = found.get(query, (0, False))
        longest = max((state, saved.queries[query]), key=lambda each: len(each.read))
        known = (*longest.read, *([longest.planned] if longest.planned is not None else []))
        planned = known[length] if is_planned and length < len(known) else None
        queries[query] = dataclasses.replace(
            longest, read=known[:length], planned=planned, lags=False
        )
    return dataclasses.replace(
        world, saved={**world.saved, savepoint: dataclasses.replace(saved, queries=queries)}
    )


def dispose(world: World, savepoint: str) -> Expected:
    """A savepoint is removed, unless a job can go on from nothing else."""
    if savepoint not in world.saved:  # the leftovers of one may be collected
        return Expected((world,), (world,), may=frozenset({Reason.MISSING}))
    needs = [job.open.savepoint for job in world.jobs.values() if job.open]
    upgrades = [job.upgrade for job in world.jobs.values() if job.upgrade]
    needs += [each.savepoint for each in upgrades if each.step is not Step.ACCEPTED]
    if savepoint in needs:
        return refused(world, Reason.NEEDED)
    saved = {name: each for name, each in world.saved.items() if name != savepoint}
    after = dataclasses.replace(world, saved=saved)
    return Expected((after,), (world,), cut=(world,))


def restore(world: World, name: str, savepoint: str, *, reverts: bool) -> Expected:
    """The job is set to a savepoint; its rows after it are reverted if that is allowed."""
    job, found = world.jobs[name], world.saved.get(savepoint)
    barred = world.barred(name)
    if barred or found is None:
        return refused(world, barred, None if found else Reason.MISSING)
    saved = as_seen_from(world, name, found)
    if job.open is not None and job.open.savepoint == savepoint:
        after = complete(world, name)
        is_left = job.open.reverts and not reverts
        may = frozenset({Reason.LATER_ROWS}) if is_left else frozenset[Reason]()
        return Expected((after,), (world,), may=may, cut=(world,))
    must, may = (
        {*why_wrong(world, name, saved, reverts=reverts)},
        _why_unsure(world, name, saved, reverts=reverts),
    )
    back = {q: len(saved.queries[q].read) - 1 for q in QUERIES}
    if job.open is not None:
        again = {row for each in saved.queries.values() for row in each.read}
        if job.open.reverts and again & {r.row for r in job.open.lost}:
            must |= {Reason.OPEN, Reason.REVERTED}
        if not job.open.back:
            may |= {Reason.STARTED_OVER}
    ended = {run_id for run_id, each in job.runs.items() if _is_within(each, back)}
    operation = Open(
        savepoint,
        set_to(job, saved.queries),
        back,
        reverts,
        frozenset({*job.runs} - ended) | (job.open.rewinds if job.open else frozenset()),
        world.own(name, back) | (job.open.lost if job.open else frozenset()),
    )
    begun = begin(world, name, operation)
    return Expected(
        (complete(begun, name),),
        (world,),
        frozenset(must),
        frozenset(may),
        () if must else (world, begun),
    )


def _is_within(run: Run, back: Mapping[str, int]) -> bool:
    return run.ends is not None and all(run.ends[q] - 1 <= back[q] for q in QUERIES)


def _why_unsure(world: World, name: str, saved: Saved, *, reverts: bool) -> set[Reason]:
    """Return why the docs let a restore be refused that would do no harm."""
    job, may = world.jobs[name], set[Reason]()
    if not reverts and any(s.lags or s.planned for s in job.queries.values()):
        may.add(Reason.LATER_ROWS)  # its rows may be staged, and become visible
    has_left = any(r.output == job.output and not r.job for r in world.rows)
    if has_left or any(state.age for state in job.queries.values()):
        may.add(Reason.STARTED_OVER)  # these cannot be told from those after the savepoint
    if saved.job != name and job.wrote:
        may.add(Reason.FOREIGN)
    return may


def begin_from(world: World, name: str, savepoint: str, *, allows: bool) -> Expected:
    """A new job begins from a savepoint; one that has begun from it goes on."""
    job, found = world.jobs[name], world.saved.get(savepoint)
    if barred := world.barred(name):
        return refused(world, barred)
    if job.open is not None and not job.open.back and allows:
        done = complete(world, name)
        may = {Reason.OPEN, Reason.BEGUN, Reason.BEGUN_OTHERWISE, Reason.MISSING}
        return Expected((done,), (world, done), may=frozenset(may), cut=(world, done))
    is_part = found is not None and not all(s.read for s in found.queries.values())
    unmatched = Reason.UNMATCHED if is_part and not allows else None
    if job.open is not None:
        if job.open.savepoint != savepoint:
            return refused(world, Reason.OPEN, unmatched)
        if unmatched:
            return refused(world, unmatched)
        return Expected((complete(world, name),), (world,), cut=(world,))
    if savepoint in job.starts:
        return Expected((world,), (world,))
    begun = any(state.read or state.planned for state in job.queries.values())
    must = {Reason.MISSING} if found is None else set()
    must |= {unmatched} if unmatched else set()
    must |= {Reason.BEGUN_OTHERWISE} if job.starts else {Reason.BEGUN} if begun else set()
    may = {Reason.BEGUN} if job.runs else set()
    if must or found is None:
        return dataclasses.replace(refused(world, *must), may=frozenset(may))
    saved = as_seen_from(world, name, found)
    back = {q: len(state.read) - 1 for q, state in saved.queries.items()}
    started = begin(world, name, Open(savepoint, set_to(job, saved.queries), back))
    return Expected((complete(started, name),), (world,), may=frozenset(may), cut=(world, started))


def take_over(world: World, name: str, replaces: str | None) -> Expected:
    """A new job continues from checkpoints of plain Spark's, which no second job does."""
    job, begins = world.jobs[name], f"taken over by {name}"
    is_ours = job.open is not None and job.open.savepoint == begins
    if barred := world.barred(name):
        return refused(world, barred)
    if job.open is not None and not is_ours:
        return refused(world, Reason.OPEN, Reason.NEW_QUERY)
    if is_ours:
        return Expected((complete(world, name),), (world,), cut=(world,))
    begun = [state for state in job.queries.values() if state.read or state.planned]
    if job.starts or begun:
        is_new = len(begun) < len(QUERIES) and world.claimed != name
        return refused(world, Reason.NEW_QUERY) if is_new else Expected((world,), (world,))
    # A run may have begun a query, and have died before it planned a batch.
    may = frozenset({Reason.NEW_QUERY} if job.runs else ())
    if world.claimed is not None and world.claimed not in {name, replaces}:
        return dataclasses.replace(refused(world, Reason.CLAIMED), may=may)
    claimed = dataclasses.replace(world, claimed=world.claimed or name)
    started = begin(claimed, name, Open(begins, world.plain, {q: -1 for q in QUERIES}))
    after = (complete(started, name), *((world,) if job.runs else ()))
    return Expected(after, (world,), may=may, cut=(world, claimed, started))


def start_over(world: World, name: str, query: str) -> Expected:
    """A query that was changed reads from its beginning; what it has written stays."""
    job = world.jobs[name]
    barred = world.barred(name)
    if barred or (job.open is not None and job.open.back):
        return refused(world, barred, Reason.OPEN if job.open else None)
    done = complete(world, name)
    state = done.jobs[name].queries[query]
    if state.lags:
        return dataclasses.replace(refused(world, Reason.UNPUBLISHED), refused=(world, done))
    if not state.read and not state.planned:
        return Expected((done,), (world,), cut=(world,))
    queries = {**done.jobs[name].queries, query: Query(age=state.age + 1)}
    begun = done.with_job(name, open=Open(None, queries, {}))
    after = complete(begun, name)
    marked = dataclasses.replace(begun, rows=after.rows)
    # A row that is visible may have no record yet, and count as not published.
    unsure = any(each.ends is None for each in job.runs.values())
    may = frozenset({Reason.UNPUBLISHED} if unsure else ())
    return Expected((after,), (world, done), may=may, cut=(world, done, begun, marked))


def rewind(world: World, name: str, run_id: str, *, with_later: bool) -> Expected:
    """The rows of a run, and of those that have built on it, are reverted."""
    unsure = [each for each, run in world.jobs[name].runs.items() if run.wrote is None]
    if not unsure:
        return _rewind(world, name, run_id, with_later=with_later)
    both = [
        rewind(world.with_run(name, unsure[0], wrote=wrote), name, run_id, with_later=with_later)
        for wrote in (False, True)
    ]
    whys = frozenset(why for each in both for why in (*each.must, *each.may))
    worlds = [
        [w.with_run(name, unsure[0], wrote=None) for each in both for w in getattr(each, which)]
        for which in ("refused", "cut")
    ]
    after = [w.with_run(name, unsure[0], wrote=None) for e in both if not e.must for w in e.after]
    must = whys if all(each.must for each in both) else frozenset[Reason]()
    return Expected(tuple(after) or (world,), tuple(worlds[0]), must, whys, tuple(worlds[1]))


def _rewind(world: World, name: str, run_id: str, *, with_later: bool) -> Expected:
    job = world.jobs[name]
    barred = world.barred(name, run_id)
    if barred or run_id not in job.runs:
        return refused(world, barred, None if run_id in job.runs else Reason.UNKNOWN_RUN)
    order = [*job.runs]
    later = order[order.index(run_id) + 1 :][::-1]
    chain = [each for each in later if with_later or job.runs[each].rewound] + [run_id]
    left, must, may, cut, now = [world], set[Reason](), set[Reason](), [world], world
    for each in chain:
        why, unsure = _why_not_rewound(now, name, each)
        must |= why
        may |= unsure
        if must:
            break
        now, begun = _rewound(now, name, each)
        cut += [begun, now]
        left.append(now)
    if any(r.run == run_id for r in world.rows) and job.runs[run_id].rewound:
        may |= {Reason.IN_PART}
    after = (now,)
    if job.open is not None and run_id in job.open.rewinds and not job.runs[run_id].wrote:
        after = (now, world.with_run(name, run_id, rewound=True))
    return Expected(after, tuple(left), frozenset(must), frozenset(may), tuple(cut))


def _rewound(world: World, name: str, run_id: str) -> tuple[World, World]:
    """Return the world when a run is rewound, and when that has begun."""
    job = world.jobs[name]
    run = job.runs[run_id]
    if job.open is not None and run_id in job.open.rewinds:
        return complete(world, name), world
    if run.rewound:
        return world, world
    if not run.wrote:
        pending = world.with_job(name, pending=job.pending | {run_id})
        return world.with_run(name, run_id, rewound=True), pending
    back = {q: len(run.begins[q].read) - 1 for q in QUERIES}
    queries = set_to(job, run.begins)
    lost = world.own(name, back)
    begun = begin(world, name, Open(None, queries, back, True, frozenset({run_id}), lost))
    return complete(begun, name), begun


def _why_not_rewound(world: World, name: str, run_id: str) -> tuple[set[Reason], set[Reason]]:
    job = world.jobs[name]
    run = job.runs[run_id]
    if job.open is not None and run_id in job.open.rewinds:  # it may not be marked yet
        return set(), {Reason.OPEN, Reason.NOT_REPLAYABLE, Reason.LATER_RUNS, Reason.NOT_ALONE}
    if run.rewound or not run.wrote:
        return set(), set()
    must, may = set[Reason](), set[Reason]()
    if job.open is not None:
        must.add(Reason.OPEN)
        may |= set() if job.open.back else {Reason.STARTED_OVER}
    order = [*job.runs]
    later = [job.runs[each] for each in order[order.index(run_id) + 1 :]]
    if any(each.wrote and not each.rewound for each in later):
        must.add(Reason.LATER_RUNS)
    if any(state.read for state in run.begins.values()) and run.saved is not True:
        (must if run.saved is False else may).add(Reason.NOT_REPLAYABLE)
    must |= {*why_wrong(world, name, Saved(name, run.begins), reverts=True)}
    may |= _why_unsure(world, name, Saved(name, run.begins), reverts=True)
    if any(r.run != run_id for r in _rewound(world, name, run_id)[1].jobs[name].open.lost):
        may.add(Reason.NOT_ALONE)
    return must, may


def upgrade(
    world: World, name: str, to: str, run_id: str, writes: Sequence[tuple[str, str]], *, good: bool
) -> Expected:
    """Another version takes the place of a job, or its rows are reverted and the job goes on."""
    job = world.jobs[name]
    if job.upgrade == Upgrade(to, run_id, Step.ACCEPTED):
        return run(world, to, run_id, writes, 1)
    if job.upgrade is None or (job.upgrade.to != to and job.upgrade.step is not Step.ACCEPTED):
        if barred := world.barred(name):
            return refused(world, barred)
        if not job.runs:
            return refused(world, Reason.NO_RUN)
    elif job.upgrade.to != to:
        return refused(world, Reason.TAKEN_OVER)
    steps, left = [world], (world,)
    may = frozenset[Reason]()
    mine = job.upgrade or Upgrade(to, run_id)
    if job.upgrade is None:
        steps.append(world.with_job(name, upgrade=mine))
    if mine.step is Step.STOPPING:
        for query in QUERIES:
            if job.queries[query].lags:
                steps.append(_publish(steps[-1], name, query))
        saved = _take(steps[-1], name, mine.savepoint)
        left = (steps[-1].with_job(name, upgrade=None),)
        if job.open is not None or saved.must:
            return Expected((), left, must=frozenset({Reason.NOT_STOPPED}), cut=(*steps, *left))
        may = frozenset({Reason.NOT_STOPPED} if saved.may else ())
        steps += [*saved.after, _step(saved.after[0], name, Step.TRIAL)]
        mine = dataclasses.replace(mine, step=Step.TRIAL)
    tried = world.jobs[to].runs.get(run_id)
    if mine.step is Step.TRIAL and tried is not None and tried.rewound:
        steps.append(_step(steps[-1], name, Step.REJECTED))
    elif mine.step is Step.TRIAL:
        steps += _tried(steps[-1], mine, writes)
        ended = steps[-1].with_run(to, run_id, ends=_ends(steps[-1], to))
        if good:
            steps.append(_step(steps[-1], name, Step.ACCEPTED))
            after = _step(ended, name, Step.ACCEPTED)
            return Expected((after,), left, may=may, cut=(*steps, *left))
        steps.append(_step(steps[-1], name, Step.REJECTED))
    begun = steps[-1]
    if run_id in begun.jobs[to].runs:
        now, opened = _rewound(begun, to, run_id)
        marked = begun.with_run(to, run_id, rewound=True)
        steps += [opened, now, marked]
        begun = now
    after = begun.with_job(name, upgrade=None)
    must = frozenset({Reason.REJECTED, *may})
    return Expected((), (after, *left), must=must, cut=(*steps, after))


def _take(world: World, name: str, savepoint: str) -> Expected:
    if savepoint in world.saved:
        return Expected((world,), (world,))
    return take(world, name, savepoint)


def _step(world: World, name: str, step: Step) -> World:
    mine = world.jobs[name].upgrade
    assert mine is not None
    return world.with_job(name, upgrade=dataclasses.replace(mine, step=step))


def _ends(world: World, name: str) -> Mapping[str, int]:
    return {q: len(state.read) for q, state in world.jobs[name].queries.items()}


def _tried(world: World, mine: Upgrade, writes: Sequence[tuple[str, str]]) -> list[World]:
    """Return the worlds of a new version that begins, and writes."""
    job, steps = world.jobs[mine.to], list[World]()
    if mine.savepoint not in job.starts:
        saved = world.saved[mine.savepoint]
        back = {q: len(state.read) - 1 for q, state in saved.queries.items()}
        started = Open(mine.savepoint, set_to(job, saved.queries), back)
        steps.append(begin(world, mine.to, started))
        steps.append(complete(steps[-1], mine.to))
    now = steps[-1] if steps else world
    free = dataclasses.replace(
        now, jobs={k: dataclasses.replace(j, upgrade=None) for k, j in now.jobs.items()}
    )
    upgrades = {k: j.upgrade for k, j in now.jobs.items()}
    ran = run(free, mine.to, mine.run_id, writes, 1)
    for each in (*ran.cut, *(() if ran.cut else ran.after)):
        jobs = {k: dataclasses.replace(j, upgrade=upgrades[k]) for k, j in each.jobs.items()}
        steps.append(dataclasses.replace(each, jobs=jobs))
    return steps


# --- what is seen ---------------------------------------------------------------------------------


class SeenJob(NamedTuple):
    """What can be seen of a job: what each query has read and planned, its runs, what is marked."""

    is_open: bool
    queries: Mapping[str, tuple[tuple[str, ...], str | None]]
    runs: Mapping[str, bool]
    rewound: frozenset[str]
    upgrade: str | None


@dataclasses.dataclass(frozen=True)
class Seen:
    """What can be seen of a world: per job what is open, read and planned, and which runs count."""

    jobs: Mapping[
        str, tuple[bool, Mapping[str, tuple[tuple[str, ...], str | None]], frozenset[str]]
    ]
    saved: Mapping[str, Mapping[str, tuple[int, bool]]]
    rows: frozenset[tuple[str, str, str]]


def is_seen(world: World, seen: Seen) -> bool:
    """Whether a world looks like that; while an operation is open, some of its rows may be gone."""
    saved = {
        name: {q: (len(s.read), s.planned is not None) for q, s in each.queries.items() if s.read}
        for name, each in world.saved.items()
    }
    if seen.saved != saved:
        return False
    least = most = world
    for name, (is_open, queries, runs, rewound, step) in seen.jobs.items():
        job = world.jobs[name]
        if runs != {run_id: each.ends is not None for run_id, each in job.runs.items()}:
            return False
        if step != (job.upgrade.step.name if job.upgrade else None):
            return False
        if is_open != (job.open is not None):
            return False
        least = complete(least, name)
        flagged = {run_id for run_id, each in job.runs.items() if each.rewound}
        if not flagged <= rewound <= flagged | job.pending:
            return False
        if is_open:
            continue
        if queries != {q: (state.read, state.planned) for q, state in job.queries.items()}:
            return False
    return _shown(least.rows) <= seen.rows <= _shown(most.rows)


def _shown(rows: Iterable[Row]) -> frozenset[tuple[str, str, str]]:
    return frozenset((r.output, r.query, r.row) for r in rows)


def as_seen(world: World, seen: Seen) -> World:
    """Return the world with the rows that are seen, and the runs that are marked."""
    there = frozenset(r for r in world.rows if (r.output, r.query, r.row) in seen.rows)
    world = dataclasses.replace(world, rows=there)
    for name, job in seen.jobs.items():
        for run_id in world.jobs[name].runs:
            world = world.with_run(name, run_id, rewound=run_id in job.rewound)
    return world


def merged(worlds: Iterable[World]) -> list[World]:
    """Return the worlds, with one in the place of those that differ in what is unsure of runs."""
    found: list[tuple[World, World]] = []
    for world in worlds:
        plain = _without_flags(world)
        at = next((n for n, (each, _) in enumerate(found) if each == plain), None)
        if at is None:
            found.append((plain, world))
        elif found[at][1] != world:
            found[at] = (plain, _both(found[at][1], world))
    return [world for _, world in found]


def _without_flags(world: World) -> World:
    for name, job in world.jobs.items():
        runs = {r: dataclasses.replace(run, saved=None, wrote=None) for r, run in job.runs.items()}
        world = world.with_job(name, runs=runs, pending=frozenset())
    return world


def _both(one: World, other: World) -> World:
    for name, job in one.jobs.items():
        for run_id, run in job.runs.items():
            theirs = other.jobs[name].runs[run_id]
            saved = run.saved if run.saved is theirs.saved else None
            wrote = run.wrote if run.wrote is theirs.wrote else None
            one = one.with_run(name, run_id, saved=saved, wrote=wrote)
        one = one.with_job(name, pending=job.pending | other.jobs[name].pending)
    return one
