"""Lifecycle of one attempt as a pure state machine: events in, instructions out.

No I/O, no clock, no Spark. The driver feeds events and carries out instructions one by one, in
order; what an instruction brings about comes back as an event.

Each query reads by itself and drains when its input has ended; the job waits for all of them. The
order is Flink's (FLIP-147, FLIP-34): last row, intent to drain, MAX_WATERMARK once for each query,
``finish()``, commit of the last epochs, savepoint if one was requested, final checkpoint,
``close()``.

::

    OPENED─▶ READING─▶ DRAINING─▶ FINISHING─▶ COMMITTING─▶ SAVING─▶ SEALING─▶ CLOSING─▶ ENDED
              │ ▲ └────(at_end = suspend)─────────▲  └(no savepoint)─▲
              ▼ └─(stop: drain)─┐                 │
            HALTING ────────────┴(stop: suspend)──┘
              READING ◀─────(stop: suspend)── the savepoint failed, in SAVING
    any phase before CLOSING ──(failure, cancel)──▶ CLOSING
    COMMITTING, SAVING ──(stop that keeps the run)──▶ CLOSING

A query that reads another one's output waits until that one has ended and its output is published;
in a continuous job both read side by side. There a query all of whose sources end drains at their
end, and others continue. A query some of whose sources end reads all available input (CATCHING_UP),
lets them end, and continues without them.

A query that fails while it reads or drains may be started again: it keeps its phase meanwhile, so
that the job waits for it, and is among those that are ``restarting``.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.checkpoint.drain_step import DrainStep, StartMode
from airflow_provider.runtime.driver.lifecycle import events
from airflow_provider.runtime.driver.lifecycle.events import (
    AtEnd,
    Event,
    Instruction,
    JobPhase,
    QueryPhase,
    StartQuery,
    Stop,
)
from airflow_provider.runtime.errors import IllegalTransitionError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from airflow_provider.runtime.errors.explanation import Failure

# The one table of moves; anything else is a bug of ours.
_MOVES: Final[Mapping[JobPhase, frozenset[JobPhase]]] = {
    JobPhase.OPENED: frozenset({JobPhase.READING, JobPhase.CLOSING}),
    JobPhase.READING: frozenset(
        {
            JobPhase.HALTING,
            JobPhase.DRAINING,
            JobPhase.FINISHING,
            JobPhase.COMMITTING,
            JobPhase.CLOSING,
        }
    ),
    JobPhase.HALTING: frozenset({JobPhase.READING, JobPhase.COMMITTING, JobPhase.CLOSING}),
    JobPhase.DRAINING: frozenset({JobPhase.FINISHING, JobPhase.CLOSING}),
    JobPhase.FINISHING: frozenset({JobPhase.COMMITTING, JobPhase.CLOSING}),
    JobPhase.COMMITTING: frozenset({JobPhase.SAVING, JobPhase.SEALING, JobPhase.CLOSING}),
    JobPhase.SAVING: frozenset({JobPhase.READING, JobPhase.SEALING, JobPhase.CLOSING}),
    JobPhase.SEALING: frozenset({JobPhase.CLOSING}),
    JobPhase.CLOSING: frozenset({JobPhase.ENDED}),
    JobPhase.ENDED: frozenset(),
}
# Epochs are published as soon as Spark has committed them only here: what the last drains have
# produced follows finish(), and a stopping attempt leaves the rest to the next start.
_PUBLISHING: Final = frozenset({JobPhase.READING, JobPhase.HALTING})
_RUNNING: Final = frozenset({QueryPhase.CATCHING_UP, QueryPhase.READING})
_STILL_READS: Final = frozenset({QueryPhase.WAITING, *_RUNNING})
_AT_WORK: Final = frozenset({QueryPhase.HALTING, QueryPhase.DRAINING})

Instructions = tuple[Instruction, ...]
Step = tuple["Lifecycle", Instructions]
"""The next state, and the instructions to carry out."""


@dataclasses.dataclass(frozen=True)
class Lifecycle:
    """The state of an attempt."""

    at_end: AtEnd
    queries: Mapping[str, QueryPhase]
    upstream: Mapping[str, Collection[str]] = dataclasses.field(default_factory=dict)
    continuous: bool = False
    bounded: Collection[str] = ()
    mixed: Collection[str] = ()
    hows: Mapping[str, StartMode] = dataclasses.field(default_factory=dict)
    restarting: frozenset[str] = frozenset()
    phase: JobPhase = JobPhase.OPENED
    stop: Stop | None = None
    failure: Failure | None = None
    cancelled: bool = False

    @classmethod
    def of(
        cls,
        names: tuple[str, ...],
        at_end: AtEnd,
        *,
        upstream: Mapping[str, Collection[str]] | None = None,
        continuous: bool = False,
        bounded: Collection[str] = (),
    ) -> Lifecycle:
        return cls(
            at_end=at_end,
            queries=dict.fromkeys(names, QueryPhase.IDLE),
            upstream=upstream or {},
            continuous=continuous,
            bounded=bounded,
        )

    @property
    def publishes(self) -> bool:
        return self.phase in _PUBLISHING

    @property
    def ending(self) -> AtEnd:
        return self.stop.at_end if self.stop is not None else self.at_end

    @property
    def keeps_run(self) -> bool:
        """Whether the run continues with a later attempt, although a caller has stopped it."""
        return self.stop is not None and self.stop.keeps_run

    def handle(self, event: Event) -> Step:
        if isinstance(event, (events.Failed, events.CancelRequested)):
            return self._on_interruption(event)
        handler = _HANDLERS.get((self.phase, type(event)))
        if handler is None:
            raise IllegalTransitionError(f"{event} came in phase {self.phase.value} of {self}")
        return handler(self, event)

    def _on_interruption(self, event: events.Failed | events.CancelRequested) -> Step:
        if self.phase in {JobPhase.CLOSING, JobPhase.ENDED}:
            return self, ()  # the first reason counts; a final checkpoint that is put stays put
        if isinstance(event, events.Failed):
            stopping = dataclasses.replace(self, failure=event.failure)
        else:
            stopping = dataclasses.replace(self, cancelled=True)
        return stopping._to(JobPhase.CLOSING), (events.Close(),)

    # --- reading --------------------------------------------------------------------------------

    def _on_started(self, event: events.Started) -> Step:
        instructions: Instructions = ()
        life = dataclasses.replace(self, stop=event.stop, mixed=event.mixed)
        life = life._to(JobPhase.READING)
        for name in self.queries:
            if name in event.steps:
                life, more = life._drain_on(name, event.steps[name])
            else:
                life, more = life._begin(name)
            instructions += more
        return life._advance(instructions)

    def _begin(self, query: str) -> Step:
        side_by_side = self.continuous and self.stop is None and query not in self.bounded
        if self.upstream.get(query) and not side_by_side:
            return self._with({query: QueryPhase.WAITING}), ()
        if self.stop is not None:
            return self._end_of_data(query)
        return self._read(query, StartMode.AVAILABLE if query in self.bounded else StartMode.INPUT)

    def _read(self, query: str, how: StartMode) -> Step:
        phase = QueryPhase.READING
        if query in self.mixed:
            phase, how = QueryPhase.CATCHING_UP, StartMode.AVAILABLE
        life = dataclasses.replace(self._with({query: phase}), hows={**self.hows, query: how})
        return life, (StartQuery(query, how),)

    def _on_query_ended(self, event: events.QueryEnded) -> Step:
        phase = self.queries[event.query]
        if phase is QueryPhase.DRAINING:
            life, instructions = self._drain_on(event.query, event.next_step)
        elif phase is QueryPhase.HALTING:
            life, instructions = self._with({event.query: QueryPhase.HALTED}), ()
        elif event.has_more:
            return self, (StartQuery(event.query, self.hows[event.query]),)
        elif phase is QueryPhase.CATCHING_UP:
            life, instructions = self._end_sources(event.query)
        else:
            life, instructions = self._end_of_data(event.query)
        return life._advance(instructions)

    def _end_sources(self, query: str) -> Step:
        left = [name for name in self.mixed if name != query]
        life = dataclasses.replace(self, mixed=frozenset(left))
        if not self.continuous and self.ending is AtEnd.DRAIN:
            life, instructions = life._end_of_data(query)
        else:
            life, instructions = life._read(query, StartMode.INPUT)
        return life, (events.EndSources(query), *instructions)

    def _end_of_data(self, query: str) -> Step:
        read = self._with({query: QueryPhase.READ})
        if self.ending is AtEnd.SUSPEND and query not in self.bounded:
            return read, ()
        return read, (events.PublishEpochs(query), events.StoreDrainIntent(query))

    def _on_intent(self, event: events.IntentStored) -> Step:
        life, instructions = self._drain_on(event.query, event.next_step)
        return life._advance(instructions)

    def _drain_on(self, query: str, step: DrainStep) -> Step:
        if step in {DrainStep.NOTHING, DrainStep.DONE}:
            return self._with({query: QueryPhase.DRAINED}), ()
        plan = (events.PlanDrain(query),) if step is DrainStep.PLAN else ()
        draining = self._with({query: QueryPhase.DRAINING})
        return draining, (*plan, StartQuery(query, StartMode.ONE_BATCH))

    # --- what follows when a query has changed ---------------------------------------------------

    def _advance(self, instructions: Instructions) -> Step:
        if self.phase is JobPhase.HALTING:
            return self._when_halted(instructions)
        life, more = self._start_waiting()
        instructions += more
        phases = set(life.queries.values())
        if phases & _STILL_READS:
            return life, instructions
        if life.ending is AtEnd.SUSPEND:
            if any(life._is_at_work(query) for query in life.queries):
                return life, instructions
            return life._to(JobPhase.COMMITTING), (*instructions, events.CommitEpochs())
        if phases == {QueryPhase.DRAINED}:
            return life._to(JobPhase.FINISHING), (*instructions, events.CallFinish())
        if life.phase is not JobPhase.DRAINING:
            life = life._to(JobPhase.DRAINING)
        return life, instructions

    def _start_waiting(self) -> Step:
        instructions: Instructions = ()
        life = self
        for name, phase in self.queries.items():
            if phase is QueryPhase.WAITING and self._has_all_input(name):
                life, more = life._read(name, StartMode.AVAILABLE)
                published = tuple(events.PublishEpochs(up) for up in sorted(self.upstream[name]))
                instructions += (*published, *more)
        return life, instructions

    def _has_all_input(self, query: str) -> bool:
        ended = {QueryPhase.DRAINED}
        if self.ending is AtEnd.SUSPEND and query not in self.bounded:
            ended.add(QueryPhase.READ)
        return all(self.queries[name] in ended for name in self.upstream[query])

    # --- starting again -------------------------------------------------------------------------

    def _on_query_failed(self, event: events.QueryFailed) -> Step:
        runs = [name for name in self.queries if self._runs(name)]
        others = [name for name in runs if name in event.scope and name != event.query]
        restarting = self.restarting.union(others, [event.query])
        life = dataclasses.replace(self, restarting=restarting)
        return life, tuple(events.StopQuery(name) for name in others)

    def _runs(self, query: str) -> bool:
        phase = self.queries[query]
        return query not in self.restarting and (phase in _RUNNING or phase in _AT_WORK)

    def _on_restart_due(self, event: events.RestartDue) -> Step:
        instructions: Instructions = ()
        life = dataclasses.replace(self, restarting=frozenset())
        for name in self.queries:
            if name not in self.restarting:
                continue
            if self.queries[name] is QueryPhase.DRAINING:
                life, more = life._drain_on(name, event.steps[name])
            else:
                more = (StartQuery(name, self.hows[name]),)
            instructions += tuple(_again(instruction) for instruction in more)
        return life._advance(instructions)

    # --- stopping -------------------------------------------------------------------------------

    def _on_stop(self, event: events.StopRequested) -> Step:
        instructions: Instructions = ()
        life = dataclasses.replace(self, stop=event.stop)._to(JobPhase.HALTING)
        idle = {n for n in self.restarting if self.queries[n] in _RUNNING}
        life = dataclasses.replace(life, restarting=self.restarting - idle)
        for name, phase in self.queries.items():
            if name in idle:
                life = life._with({name: QueryPhase.HALTED})
                instructions += (events.StopQuery(name),)
            elif phase in _RUNNING:
                life = life._with({name: QueryPhase.HALTING})
                instructions += (events.HaltQuery(name),)
            elif phase is QueryPhase.WAITING:
                life = life._with({name: QueryPhase.HALTED})
        return life._advance(instructions)

    def _when_halted(self, instructions: Instructions) -> Step:
        if any(self._is_at_work(query) for query in self.queries):
            return self, instructions
        if self.ending is AtEnd.SUSPEND:
            return self._to(JobPhase.COMMITTING), (*instructions, events.CommitEpochs())
        life = self._to(JobPhase.READING)
        for name, phase in self.queries.items():
            if phase is not QueryPhase.DRAINED:
                life, more = life._begin(name)
                instructions += more
        return life._advance(instructions)

    def _is_at_work(self, query: str) -> bool:
        phase = self.queries[query]
        drains = self.at_end is AtEnd.DRAIN or query in self.bounded
        return phase in _AT_WORK or (phase is QueryPhase.READ and drains)  # it is about to

    def _on_savepoint_taken(self, _: events.SavepointTaken) -> Step:
        return self._seal()

    def _on_savepoint_failed(self, _: events.SavepointFailed) -> Step:
        # A drain is final, and a run whose task was killed continues with its next attempt.
        if self.ending is AtEnd.DRAIN or self.keeps_run:
            return self._seal()
        instructions: Instructions = ()
        life = dataclasses.replace(self, stop=None)._to(JobPhase.READING)
        for name, phase in self.queries.items():
            if phase is QueryPhase.HALTED:
                life, more = life._begin(name)
                instructions += more
        return life._advance(instructions)

    # --- the end --------------------------------------------------------------------------------

    def _on_finished(self, _: events.FinishDone) -> Step:
        return self._to(JobPhase.COMMITTING), (events.CommitEpochs(),)

    def _on_committed(self, _: events.EpochsCommitted) -> Step:
        if self.stop is not None and self.stop.savepoint:
            return self._to(JobPhase.SAVING), (events.TakeSavepoint(),)
        return self._seal()

    def _seal(self) -> Step:
        if self.keeps_run:
            return self._on_interruption(events.CancelRequested())
        return self._to(JobPhase.SEALING), (events.PutFinal(self.ending),)

    def _on_sealed(self, _: events.FinalPut) -> Step:
        return self._to(JobPhase.CLOSING), (events.Close(),)

    def _on_closed(self, _: events.Closed) -> Step:
        return self._to(JobPhase.ENDED), ()

    def _with(self, phases: Mapping[str, QueryPhase]) -> Lifecycle:
        return dataclasses.replace(self, queries={**self.queries, **phases})

    def _to(self, phase: JobPhase) -> Lifecycle:
        if phase not in _MOVES[self.phase]:
            raise IllegalTransitionError(
                f"no move from {self.phase.value} to {phase.value} in {self}"
            )
        return dataclasses.replace(self, phase=phase)


def _again(instruction: Instruction) -> Instruction:
    if isinstance(instruction, StartQuery):
        return events.RestartQuery(instruction.query, instruction.how)
    return instruction


# Each handler takes the event it is paired with, which a type checker cannot see.
_HANDLERS: Final[Mapping[tuple[JobPhase, type], Callable[..., Step]]] = {
    (JobPhase.OPENED, events.Started): Lifecycle._on_started,
    (JobPhase.READING, events.QueryEnded): Lifecycle._on_query_ended,
    (JobPhase.READING, events.IntentStored): Lifecycle._on_intent,
    (JobPhase.READING, events.StopRequested): Lifecycle._on_stop,
    (JobPhase.READING, events.QueryFailed): Lifecycle._on_query_failed,
    (JobPhase.READING, events.RestartDue): Lifecycle._on_restart_due,
    (JobPhase.HALTING, events.RestartDue): Lifecycle._on_restart_due,
    (JobPhase.DRAINING, events.QueryFailed): Lifecycle._on_query_failed,
    (JobPhase.DRAINING, events.RestartDue): Lifecycle._on_restart_due,
    (JobPhase.HALTING, events.QueryEnded): Lifecycle._on_query_ended,
    (JobPhase.HALTING, events.IntentStored): Lifecycle._on_intent,
    (JobPhase.DRAINING, events.QueryEnded): Lifecycle._on_query_ended,
    (JobPhase.DRAINING, events.IntentStored): Lifecycle._on_intent,
    (JobPhase.FINISHING, events.FinishDone): Lifecycle._on_finished,
    (JobPhase.COMMITTING, events.EpochsCommitted): Lifecycle._on_committed,
    (JobPhase.SAVING, events.SavepointTaken): Lifecycle._on_savepoint_taken,
    (JobPhase.SAVING, events.SavepointFailed): Lifecycle._on_savepoint_failed,
    (JobPhase.SEALING, events.FinalPut): Lifecycle._on_sealed,
    (JobPhase.CLOSING, events.Closed): Lifecycle._on_closed,
}
