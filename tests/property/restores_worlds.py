"""Worlds of the model of restores: jobs, runs, savepoints and the rows that readers see.

A world is a value. While an operation is open, :func:`complete` says what it leads to.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Mapping
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
    """A savepoint: whose, what its queries have read, and whether an upgrade has taken it."""

    job: str
    queries: Queries
    is_upgrades: bool = False


@dataclasses.dataclass(frozen=True)
class Run:
    """A run of a job.

    Attributes:
        begins: what the queries had read when it began.
        saved: whether its first savepoint is kept; None if a death left that open.
        wrote: whether it has written; None if a row may be staged, which another run then executes.
        ends: the epochs at its end; None if it has not ended.
        moved: whether it was resumed where its record does not say that it begins.
    """

    begins: Queries
    saved: bool | None = False
    wrote: bool | None = False
    rewound: bool = False
    ends: Mapping[str, int] | None = None
    moved: bool = False


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
        was_reset: whether a start-over was ever begun, also one that did not end.
        upgrade: by which another version takes, or has taken, its place.
        pending: runs that no longer count, and may not be marked yet.
        follows: the job that it has said it replaces.
    """

    output: str
    queries: Queries = dataclasses.field(default_factory=lambda: NEW)
    runs: Mapping[str, Run] = dataclasses.field(default_factory=dict)
    open: Open | None = None
    starts: frozenset[str] = frozenset()
    wrote: bool = False
    was_reset: bool = False
    upgrade: Upgrade | None = None
    pending: frozenset[str] = frozenset()
    follows: str | None = None


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

    def barred(self, name: str, run_id: str = "") -> Reason | None:
        """Return why an upgrade forbids to run a version or to set it back.

        The run that is tried may be rewound, or ended, which rejects the version.
        """
        mine = self.jobs[name].upgrade
        if mine is not None:
            return Reason.TAKEN_OVER if mine.step is Step.ACCEPTED else Reason.REPLACED
        own = (job.upgrade for job in self.jobs.values())
        tried = next((each for each in own if each is not None and each.to == name), None)
        is_tried = tried is not None and tried.step is not Step.ACCEPTED
        runs = self.jobs[name].runs
        is_barred = is_tried and tried and tried.run_id in runs and tried.run_id != run_id
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
    job = world.jobs[name]
    replaced = {job.open.savepoint} if job.open is not None and job.open.savepoint else set()
    pending, starts = job.pending | operation.rewinds, job.starts | replaced
    return world.with_job(name, open=operation, pending=pending, starts=starts)


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
