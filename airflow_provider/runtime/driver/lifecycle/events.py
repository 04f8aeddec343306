"""Vocabulary of the lifecycle: phases, the events it gets, the instructions it gives."""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from airflow_provider.runtime.checkpoint.drain_step import DrainStep, StartMode
    from airflow_provider.runtime.errors.explanation import Failure


class JobPhase(str, enum.Enum):
    """The phase of an attempt."""

    OPENED = "opened"  # the lease is held, sinks are recovered, no query has started
    READING = "reading"  # some query reads input, or has yet to
    HALTING = "halting"  # a stop was requested: queries end their batches
    DRAINING = "draining"  # all input is read; the last drain batches run, their output waits
    FINISHING = "finishing"  # the last row is produced; on_finish callbacks run
    COMMITTING = "committing"  # sinks publish the last epochs
    SAVING = "saving"  # the requested savepoint is taken
    SEALING = "sealing"  # the final checkpoint is put
    CLOSING = "closing"  # queries are stopped, on_close callbacks run
    ENDED = "ended"


class QueryPhase(str, enum.Enum):
    """The phase of one query."""

    IDLE = "idle"
    WAITING = "waiting"  # for the queries that write what it reads
    CATCHING_UP = (
        "catching_up"  # reads all available input, after which some of its sources have ended
    )
    READING = "reading"
    READ = "read"  # end of data
    HALTING = "halting"  # it is to end its batch
    HALTED = "halted"
    DRAINING = "draining"
    DRAINED = "drained"


class AtEnd(str, enum.Enum):
    """The action when all input is read."""

    DRAIN = "drain"  # end permanently: flush all state
    SUSPEND = "suspend"  # keep state for the next run


@dataclasses.dataclass(frozen=True)
class Stop:
    """The kind of a stop (FLIP-34).

    Attributes:
        savepoint: whether a savepoint is taken after the stop.
        keeps_run: whether the run can be resumed: the attempt ends as if cancelled, but after its
            batches in flight.
    """

    at_end: AtEnd
    savepoint: bool
    keeps_run: bool = False


# --- events -------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Event:
    """An event of an attempt."""


@dataclasses.dataclass(frozen=True)
class Started(Event):
    """The attempt may begin.

    Attributes:
        steps: for each query that has begun to drain before, the next step of its drain.
        mixed: the queries some of whose sources have yet to end, while others continue.
    """

    steps: Mapping[str, DrainStep] = dataclasses.field(default_factory=dict)
    stop: Stop | None = None
    mixed: Collection[str] = ()


@dataclasses.dataclass(frozen=True)
class QueryEnded(Event):
    """A query stopped without an error; *next_step* follows from its logs."""

    query: str
    next_step: DrainStep
    has_more: bool = False


@dataclasses.dataclass(frozen=True)
class QueryFailed(Event):
    """A query failed; after a delay it restarts with the queries of *scope* that have not ended."""

    query: str
    scope: Collection[str]


@dataclasses.dataclass(frozen=True)
class RestartDue(Event):
    """The delay is over; *steps* follow from the logs of the queries that were draining."""

    steps: Mapping[str, DrainStep]


@dataclasses.dataclass(frozen=True)
class IntentStored(Event):
    """The intent to drain the query is durable; *next_step* follows from its logs."""

    query: str
    next_step: DrainStep


@dataclasses.dataclass(frozen=True)
class StopRequested(Event):
    """A caller wants the job to end now."""

    stop: Stop


@dataclasses.dataclass(frozen=True)
class Failed(Event):
    """A failure that ends the attempt."""

    failure: Failure


class CancelRequested(Event):
    """A caller wants the attempt to stop immediately and keep what is committed."""


class FinishDone(Event):
    """All ``on_finish`` callbacks have returned."""


class EpochsCommitted(Event):
    """Every sink has published every epoch that Spark has committed."""


class SavepointTaken(Event):
    """The savepoint is complete."""


class SavepointFailed(Event):
    """The savepoint failed and left no files."""


class FinalPut(Event):
    """The final checkpoint is durable."""


class Closed(Event):
    """Queries are stopped and ``on_close`` callbacks have been called."""


# --- instructions -------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Instruction:
    """What the driver does next."""


@dataclasses.dataclass(frozen=True)
class _OfQuery(Instruction):
    query: str


@dataclasses.dataclass(frozen=True)
class StartQuery(_OfQuery):
    """Start the query."""

    how: StartMode


@dataclasses.dataclass(frozen=True)
class RestartQuery(_OfQuery):
    """Start a query again that has failed, or was stopped for one that has.

    What was staged for its interrupted batch is given up: the batch runs again.
    """

    how: StartMode


class StopQuery(_OfQuery):
    """Stop the query immediately, in the middle of a batch, which will run again."""


class HaltQuery(_OfQuery):
    """Let the query finish its batch and start no other; answer with :class:`QueryEnded`."""


class EndSources(_OfQuery):
    """Record durably that some of the query's sources have ended, and stop reading them."""


class PublishEpochs(_OfQuery):
    """Publish the committed epochs of a query that does not run."""


class StoreDrainIntent(_OfQuery):
    """Record durably that the query has read its last row; answer with :class:`IntentStored`."""


class PlanDrain(_OfQuery):
    """Append the drain batch to the query's offset log."""


class CallFinish(Instruction):
    """Call the ``on_finish`` callbacks; answer with :class:`FinishDone`."""


class CommitEpochs(Instruction):
    """Publish all that Spark has committed; answer with :class:`EpochsCommitted`."""


class TakeSavepoint(Instruction):
    """Take it; answer with :class:`SavepointTaken` or :class:`SavepointFailed`."""


@dataclasses.dataclass(frozen=True)
class PutFinal(Instruction):
    """Put the final checkpoint; answer with :class:`FinalPut`."""

    at_end: AtEnd


class Close(Instruction):
    """Stop all queries, call the ``on_close`` callbacks; answer with :class:`Closed`."""
