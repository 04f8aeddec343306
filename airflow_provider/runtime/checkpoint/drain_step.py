"""Steps of a drain, decided from a query's logs, and how close each part is to its end. Pure."""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Annotated, Final, TypedDict

from airflow_provider.runtime.base.typed_json import among

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from airflow_provider.runtime.checkpoint.topology import Topology


# 9999-12-31T23:59:59.999Z: the last moment that a function in Python can make a datetime of.
MAX_WATERMARK_MS: Final = 253_402_300_799_999
# The last that fits into a long when Spark multiplies it by 1,000, in the year 294247.
END_OF_TIME_MS: Final = (2**63 - 1) // 1000
# A join adds its intervals to the watermark, which must not overflow either.
_ROOM_FOR_INTERVALS_MS: Final = 100 * 365 * 86_400_000

_WATERMARKS_MS: Final = (MAX_WATERMARK_MS, END_OF_TIME_MS - _ROOM_FOR_INTERVALS_MS, END_OF_TIME_MS)
"""The watermarks of drain batches. The first is the only one, unless rows wait for a later one."""


class StartMode(str, enum.Enum):
    """The way a query is started."""

    INPUT = "input"  # read input by the job's own trigger
    AVAILABLE = "available"  # read what is there now, and end
    ONE_BATCH = "one_batch"  # run the planned batch and nothing else


def is_of_drain(watermark_ms: int | None) -> bool:
    """Whether a batch with this watermark is one of a drain."""
    return watermark_ms in _WATERMARKS_MS


def next_watermark(watermark_ms: int) -> int | None:
    """Return the first watermark of a drain that is later than a batch's, or None."""
    return next((later for later in _WATERMARKS_MS if later > watermark_ms), None)


@dataclasses.dataclass(frozen=True)
class LogPosition:
    """The last planned and committed batches, -1 for none, and the watermark of the planned."""

    last_offsets: int
    last_commit: int
    watermark_ms: int | None

    @property
    def open_batch(self) -> int | None:
        return self.last_offsets if self.last_offsets > self.last_commit else None


class DrainStep(str, enum.Enum):
    """The next step to drain a query."""

    NOTHING = "nothing"  # no batch ever ran, or no operator keeps state: there is nothing to flush
    RUN_OPEN = "run_open"  # an ordinary batch is planned: run it first, and it alone
    PLAN = "plan"  # plan the drain batch
    RUN_PLANNED = "run_planned"  # the drain batch is planned: run it, and it alone
    DONE = "done"  # the drain batch has committed


def next_drain_step(position: LogPosition, *, stateful: bool) -> DrainStep:
    """Return the next step from the logs alone: a restarted drain continues where it died."""
    drain_planned = is_of_drain(position.watermark_ms)
    if position.open_batch is not None:
        return DrainStep.RUN_PLANNED if drain_planned else DrainStep.RUN_OPEN
    if drain_planned:
        return DrainStep.DONE
    if position.last_commit < 0 or not stateful:
        return DrainStep.NOTHING
    return DrainStep.PLAN


# --- finish states ------------------------------------------------------------------------------


class FinishState(str, enum.Enum):
    """How close a source or an operator is to its end."""

    RUNNING = "running"
    PARTLY_FINISHED = "partly_finished"  # of operators: it gets less input, or none, and has state
    FINISHED = "finished"


AnyFinishState = Annotated[str, among(*(finish_state.value for finish_state in FinishState))]


class SourceFinishState(TypedDict):
    """The finish state of a source; its name is None if unknown."""

    name: str | None
    finish_state: AnyFinishState


@dataclasses.dataclass(frozen=True)
class FinishStates:
    """The finish states of one query."""

    sources: tuple[tuple[str | None, FinishState], ...]
    operators: Mapping[int, FinishState]
    others: FinishState

    def of_operator(self, number: int) -> FinishState:
        return self.operators.get(number, self.others)

    def described_sources(self) -> list[SourceFinishState]:
        return [
            {"name": name, "finish_state": finish_state.value}
            for name, finish_state in self.sources
        ]


def finish_states_of(
    topology: Topology, ended: Collection[str | None], *, drained: bool
) -> FinishStates:
    """Return the finish states of a query's sources and operators."""
    return FinishStates(
        sources=tuple(
            (name, FinishState.FINISHED if name in ended else FinishState.RUNNING)
            for name in topology.sources
        ),
        operators={
            operator.id: finish_state_of(
                topology.sources if operator.sources is None else operator.sources,
                ended,
                drained=drained,
            )
            for operator in topology.operators or ()
        },
        others=finish_state_of(topology.sources, ended, drained=drained),
    )


def finish_state_of(
    above: Collection[str | None], ended: Collection[str | None], *, drained: bool
) -> FinishState:
    """Return an operator's finish state from the sources above it and those that have ended."""
    left = [name for name in above if name not in ended]
    if not left and drained:
        return FinishState.FINISHED
    return FinishState.PARTLY_FINISHED if len(left) < len(above) else FinishState.RUNNING
