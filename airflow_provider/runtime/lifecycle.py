"""The life of one attempt as a pure state machine: events in, instructions out.

No I/O, no clock, no Spark. The driver feeds events and carries out instructions one by one, in
order; what an instruction brings about comes back as an event. The order is Flink's (FLIP-147):
last row, intent to drain, MAX_WATERMARK once for each query, ``finish()``, commit of the last
epochs, final checkpoint, ``close()``.

::

    OPENED ─▶ READING ─▶ DRAINING ─▶ FINISHING ─▶ COMMITTING ─▶ SEALING ─▶ CLOSING ─▶ ENDED
                 └──────────(at_end = suspend)────────▲                       ▲
    any phase before CLOSING ──(failure, cancel)──────────────────────────────┘
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.checkpoint.steps import DrainStep
from airflow_provider.runtime.errors import IllegalTransitionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_provider.runtime.failures import Failure


class JobPhase(str, enum.Enum):
    """Where the attempt stands."""

    OPENED = "opened"  # the lease is held, sinks are recovered, no query has started
    READING = "reading"  # queries read input
    DRAINING = "draining"  # all input is read; drain batches run, their output is held back
    FINISHING = "finishing"  # the last row is produced; on_finish callbacks run
    COMMITTING = "committing"  # sinks publish the last epochs
    SEALING = "sealing"  # the final checkpoint is put
    CLOSING = "closing"  # queries are stopped, on_close callbacks run
    ENDED = "ended"


# The one table of moves; anything else is a bug of ours.
_MOVES: Final[Mapping[JobPhase, frozenset[JobPhase]]] = {
    JobPhase.OPENED: frozenset({JobPhase.READING, JobPhase.DRAINING, JobPhase.CLOSING}),
    JobPhase.READING: frozenset({JobPhase.DRAINING, JobPhase.COMMITTING, JobPhase.CLOSING}),
    JobPhase.DRAINING: frozenset({JobPhase.FINISHING, JobPhase.CLOSING}),
    JobPhase.FINISHING: frozenset({JobPhase.COMMITTING, JobPhase.CLOSING}),
    JobPhase.COMMITTING: frozenset({JobPhase.SEALING, JobPhase.CLOSING}),
    JobPhase.SEALING: frozenset({JobPhase.CLOSING}),
    JobPhase.CLOSING: frozenset({JobPhase.ENDED}),
    JobPhase.ENDED: frozenset(),
}
# Epochs are published as soon as Spark has committed them only here: the drain's output follows
# finish(), and a stopping attempt leaves the rest to the next start.
_PUBLISHING: Final = frozenset({JobPhase.READING})


class AtEnd(str, enum.Enum):
    """What happens when all input is read."""

    DRAIN = "drain"  # end for good: flush all state
    SUSPEND = "suspend"  # keep state for the next run


class Run(str, enum.Enum):
    """How a query is started."""

    INPUT = "input"  # read input by the job's own trigger
    ONE_BATCH = "one_batch"  # run the planned batch and nothing else


# --- events -------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Started:
    """The attempt may begin. *intended*: an earlier attempt has stored the intent to drain."""

    intended: bool


@dataclasses.dataclass(frozen=True)
class QueryEnded:
    """A query stopped by itself, without an error; *next_step* is what its logs ask for."""

    query: str
    next_step: DrainStep


@dataclasses.dataclass(frozen=True)
class IntentStored:
    """The intent to drain is durable; *steps* is what each query's logs ask for."""

    steps: Mapping[str, DrainStep]


@dataclasses.dataclass(frozen=True)
class FinishDone:
    """All ``on_finish`` callbacks have returned."""


@dataclasses.dataclass(frozen=True)
class EpochsCommitted:
    """Every sink has published every epoch that Spark has committed."""


@dataclasses.dataclass(frozen=True)
class FinalPut:
    """The final checkpoint is durable."""


@dataclasses.dataclass(frozen=True)
class Closed:
    """Queries are stopped and ``on_close`` callbacks have been called."""


@dataclasses.dataclass(frozen=True)
class Failed:
    """Something failed for which this attempt has no remedy."""

    failure: Failure


@dataclasses.dataclass(frozen=True)
class CancelRequested:
    """Somebody wants the attempt to stop now and keep what is committed."""


Event = (
    Started
    | QueryEnded
    | IntentStored
    | FinishDone
    | EpochsCommitted
    | FinalPut
    | Closed
    | Failed
    | CancelRequested
)


# --- instructions -------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class StartQuery:
    """Start the query."""

    query: str
    how: Run


@dataclasses.dataclass(frozen=True)
class StoreDrainIntent:
    """Make durable that all input is read; answer with :class:`IntentStored`."""


@dataclasses.dataclass(frozen=True)
class PlanDrain:
    """Append the drain batch to the query's offset log."""

    query: str


@dataclasses.dataclass(frozen=True)
class CallFinish:
    """Call the ``on_finish`` callbacks; answer with :class:`FinishDone`."""


@dataclasses.dataclass(frozen=True)
class CommitEpochs:
    """Publish all that Spark has committed; answer with :class:`EpochsCommitted`."""


@dataclasses.dataclass(frozen=True)
class PutFinal:
    """Put the final checkpoint; answer with :class:`FinalPut`."""

    at_end: AtEnd


@dataclasses.dataclass(frozen=True)
class Close:
    """Stop what runs, call the ``on_close`` callbacks; answer with :class:`Closed`."""


Instruction = (
    StartQuery | StoreDrainIntent | PlanDrain | CallFinish | CommitEpochs | PutFinal | Close
)


class QueryPhase(str, enum.Enum):
    """Where one query stands."""

    IDLE = "idle"
    READING = "reading"
    READ = "read"  # end of data
    DRAINING = "draining"
    DRAINED = "drained"


@dataclasses.dataclass(frozen=True)
class Lifecycle:
    """The state of an attempt.

    Attributes:
        at_end: what follows the end of data.
        queries: phase by name, in the order the job wrote them.
        phase: where the attempt stands.
        failure: why it ends, if it fails.
        cancelled: whether somebody asked it to stop.
    """

    at_end: AtEnd
    queries: Mapping[str, QueryPhase]
    phase: JobPhase = JobPhase.OPENED
    failure: Failure | None = None
    cancelled: bool = False

    @classmethod
    def of(cls, names: tuple[str, ...], at_end: AtEnd) -> Lifecycle:
        """Return the state before anything has happened."""
        return cls(at_end=at_end, queries=dict.fromkeys(names, QueryPhase.IDLE))

    @property
    def publishes(self) -> bool:
        """Tell whether sinks publish an epoch as soon as Spark has committed it."""
        return self.phase in _PUBLISHING

    def handle(self, event: Event) -> tuple[Lifecycle, tuple[Instruction, ...]]:
        """Return the next state and what is to be done, in order.

        Raises:
            IllegalTransitionError: the event has no place in this phase.
        """
        if isinstance(event, (Failed, CancelRequested)):
            return self._on_interruption(event)
        handler = _HANDLERS.get((self.phase, type(event)))
        if handler is None:
            msg = f"{event} came in phase {self.phase.value} of {self}"
            raise IllegalTransitionError(msg)
        return handler(self, event)

    def _on_interruption(
        self, event: Failed | CancelRequested
    ) -> tuple[Lifecycle, tuple[Instruction, ...]]:
        if self.phase in {JobPhase.CLOSING, JobPhase.ENDED}:
            return self, ()  # the first reason stands; a final checkpoint that is put stays put
        if isinstance(event, Failed):
            stopping = dataclasses.replace(self, failure=event.failure)
        else:
            stopping = dataclasses.replace(self, cancelled=True)
        return stopping._to(JobPhase.CLOSING), (Close(),)

    def _on_started(self, event: Started) -> tuple[Lifecycle, tuple[Instruction, ...]]:
        if event.intended:
            return self._to(JobPhase.DRAINING), (StoreDrainIntent(),)
        reading = self._with(dict.fromkeys(self.queries, QueryPhase.READING))
        return reading._to(JobPhase.READING), tuple(
            StartQuery(name, Run.INPUT) for name in self.queries
        )

    def _on_read(self, event: QueryEnded) -> tuple[Lifecycle, tuple[Instruction, ...]]:
        read = self._with({event.query: QueryPhase.READ})
        if QueryPhase.READING in read.queries.values():
            return read, ()
        if self.at_end is AtEnd.SUSPEND:
            return read._to(JobPhase.COMMITTING), (CommitEpochs(),)
        return read._to(JobPhase.DRAINING), (CommitEpochs(), StoreDrainIntent())

    def _on_intent(self, event: IntentStored) -> tuple[Lifecycle, tuple[Instruction, ...]]:
        draining = self
        instructions: tuple[Instruction, ...] = ()
        for name in self.queries:
            draining, more = draining._drain_on(name, event.steps[name])
            instructions += more
        return draining._finish_when_drained(instructions)

    def _on_drain_batch(self, event: QueryEnded) -> tuple[Lifecycle, tuple[Instruction, ...]]:
        drained, instructions = self._drain_on(event.query, event.next_step)
        return drained._finish_when_drained(instructions)

    def _drain_on(self, query: str, step: DrainStep) -> tuple[Lifecycle, tuple[Instruction, ...]]:
        if step in {DrainStep.NOTHING, DrainStep.DONE}:
            return self._with({query: QueryPhase.DRAINED}), ()
        plan = (PlanDrain(query),) if step is DrainStep.PLAN else ()
        draining = self._with({query: QueryPhase.DRAINING})
        return draining, (*plan, StartQuery(query, Run.ONE_BATCH))

    def _finish_when_drained(
        self, instructions: tuple[Instruction, ...]
    ) -> tuple[Lifecycle, tuple[Instruction, ...]]:
        if any(phase is not QueryPhase.DRAINED for phase in self.queries.values()):
            return self, instructions
        return self._to(JobPhase.FINISHING), (*instructions, CallFinish())

    def _on_epochs_published(self, _: EpochsCommitted) -> tuple[Lifecycle, tuple[Instruction, ...]]:
        return self, ()

    def _on_finished(self, _: FinishDone) -> tuple[Lifecycle, tuple[Instruction, ...]]:
        return self._to(JobPhase.COMMITTING), (CommitEpochs(),)

    def _on_committed(self, _: EpochsCommitted) -> tuple[Lifecycle, tuple[Instruction, ...]]:
        return self._to(JobPhase.SEALING), (PutFinal(self.at_end),)

    def _on_sealed(self, _: FinalPut) -> tuple[Lifecycle, tuple[Instruction, ...]]:
        return self._to(JobPhase.CLOSING), (Close(),)

    def _on_closed(self, _: Closed) -> tuple[Lifecycle, tuple[Instruction, ...]]:
        return self._to(JobPhase.ENDED), ()

    def _with(self, phases: Mapping[str, QueryPhase]) -> Lifecycle:
        return dataclasses.replace(self, queries={**self.queries, **phases})

    def _to(self, phase: JobPhase) -> Lifecycle:
        if phase not in _MOVES[self.phase]:
            msg = f"no move from {self.phase.value} to {phase.value} in {self}"
            raise IllegalTransitionError(msg)
        return dataclasses.replace(self, phase=phase)


# Each handler takes the event it is paired with, which a type checker cannot see.
_HANDLERS: Final[
    Mapping[tuple[JobPhase, type], Callable[..., tuple[Lifecycle, tuple[Instruction, ...]]]]
] = {
    (JobPhase.OPENED, Started): Lifecycle._on_started,
    (JobPhase.READING, QueryEnded): Lifecycle._on_read,
    (JobPhase.DRAINING, EpochsCommitted): Lifecycle._on_epochs_published,
    (JobPhase.DRAINING, IntentStored): Lifecycle._on_intent,
    (JobPhase.DRAINING, QueryEnded): Lifecycle._on_drain_batch,
    (JobPhase.FINISHING, FinishDone): Lifecycle._on_finished,
    (JobPhase.COMMITTING, EpochsCommitted): Lifecycle._on_committed,
    (JobPhase.SEALING, FinalPut): Lifecycle._on_sealed,
    (JobPhase.CLOSING, Closed): Lifecycle._on_closed,
}
