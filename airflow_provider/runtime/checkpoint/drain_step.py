"""The next step of a drain, decided from a query's logs alone; pure."""

from __future__ import annotations

import dataclasses
import enum
from typing import Final

# 9999-12-31T23:59:59.999Z: the last moment that a function in Python can make a datetime of.
MAX_WATERMARK_MS: Final = 253_402_300_799_999
# The last that fits into a long when Spark multiplies it by 1,000, in the year 294247.
END_OF_TIME_MS: Final = (2**63 - 1) // 1000
# A join adds its intervals to the watermark, which must not overflow either.
_ROOM_FOR_INTERVALS_MS: Final = 100 * 365 * 86_400_000

_WATERMARKS_MS: Final = (MAX_WATERMARK_MS, END_OF_TIME_MS - _ROOM_FOR_INTERVALS_MS, END_OF_TIME_MS)
"""The watermarks of drain batches. The first is the only one, unless rows wait for a later one."""


def is_of_drain(watermark_ms: int | None) -> bool:
    """Whether a batch with this watermark is one of a drain."""
    return watermark_ms in _WATERMARKS_MS


def next_watermark(watermark_ms: int) -> int | None:
    """Return the watermark with which to drain what one of *watermark_ms* has left; None for none.

    Args:
        watermark_ms: of the last batch, of a drain or not.
    """
    return next((later for later in _WATERMARKS_MS if later > watermark_ms), None)


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

    They cannot tell of a drain that is DONE whether rows are left that wait for a later watermark
    (``queries/flush.py``).

    Args:
        position: how far the query's logs reach.
        stateful: whether the query has written state.
    """
    drain_planned = is_of_drain(position.watermark_ms)
    if position.open_batch is not None:
        return DrainStep.RUN_PLANNED if drain_planned else DrainStep.RUN_OPEN
    if drain_planned:
        return DrainStep.DONE
    if position.last_commit < 0 or not stateful:
        return DrainStep.NOTHING
    return DrainStep.PLAN
