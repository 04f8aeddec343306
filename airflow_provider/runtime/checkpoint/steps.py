"""What a drain needs next, decided from a query's logs alone; pure."""

from __future__ import annotations

import dataclasses
import enum
from typing import Final

# 9999-12-31T23:59:59.999Z. Not Long.MaxValue: Spark multiplies by 1,000 and overflows.
MAX_WATERMARK_MS: Final = 253_402_300_799_999


@dataclasses.dataclass(frozen=True)
class LogPosition:
    """How far a query's two logs reach.

    Attributes:
        last_offsets: the last planned batch, -1 for none.
        last_commit: the last committed batch, -1 for none.
        watermark_ms: the watermark with which the last planned batch runs, or ran; None for none.
    """

    last_offsets: int
    last_commit: int
    watermark_ms: int | None

    @property
    def open_batch(self) -> int | None:
        """Return the batch that is planned and not committed; None when there is none."""
        return self.last_offsets if self.last_offsets > self.last_commit else None


class DrainStep(str, enum.Enum):
    """What has to be done next to drain a query."""

    NOTHING = "nothing"  # no batch ever ran, or no operator keeps state: there is nothing to flush
    RUN_OPEN = "run_open"  # an ordinary batch is planned: run it first, and it alone
    PLAN = "plan"  # plan the drain batch
    RUN_PLANNED = "run_planned"  # the drain batch is planned: run it, and it alone
    DONE = "done"  # the drain batch has committed


def next_drain_step(position: LogPosition, *, stateful: bool) -> DrainStep:
    """Decide from the logs alone, so that a restarted drain goes on where the last one died.

    Args:
        position: how far the query's logs reach.
        stateful: whether the query has written state.
    """
    drain_planned = position.watermark_ms == MAX_WATERMARK_MS
    if position.open_batch is not None:
        return DrainStep.RUN_PLANNED if drain_planned else DrainStep.RUN_OPEN
    if drain_planned:
        return DrainStep.DONE
    if position.last_commit < 0 or not stateful:
        return DrainStep.NOTHING
    return DrainStep.PLAN
