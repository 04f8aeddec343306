"""Which batch a savepoint takes of a query: decided from what was seen, without I/O or a clock.

*Aligned* waits for the batch in flight to commit and takes the state after it. When that takes
longer than the timeout it becomes *unaligned* (FLIP-76, FLIP-182 for the timeout): the state before
the batch in flight, and the offsets that it was planned with, so that a restore runs the same batch
again. Either way the query itself waits for nobody.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from airflow_provider.runtime.checkpoint.drain_step import LogPosition

PUBLISHING_S: Final = 10.0
"""How long a driver may take to publish an epoch that Spark has committed."""


@dataclasses.dataclass(frozen=True)
class Seen:
    """What one look at a query showed.

    Attributes:
        position: how far its logs reach.
        published: the newest epoch that all its sinks have published; None when nobody records it
            (Spark's own sinks, checkpoints of other origin).
        driven: whether a driver may be alive; without one nothing is worth waiting for.
    """

    position: LogPosition
    published: int | None
    driven: bool

    @property
    def complete(self) -> int:
        """Return the newest batch that is committed and whose output is published; -1 for none."""
        last = self.position.last_commit
        return last if self.published is None else min(last, self.published)


@dataclasses.dataclass(frozen=True)
class Take:
    """Take the state after *batch*; *planned*: and the offsets of the one after it."""

    batch: int
    planned: bool


@dataclasses.dataclass(frozen=True)
class Wait:
    """Look again soon."""


@dataclasses.dataclass(frozen=True)
class NothingYet:
    """No batch has committed, or none is published, and nobody is at it."""


Choice = Take | Wait | NothingYet


def choose(first: Seen, now: Seen, *, waited_s: float, aligned_timeout_s: float) -> Choice:
    """Decide what to do after *waited_s* seconds.

    Args:
        first: the first look; what was in flight then is what an aligned savepoint waits for.
        now: the last one.
        waited_s: since the first look.
        aligned_timeout_s: 0 to wait for no batch in flight.
    """
    in_flight = first.position.open_batch
    wanted = first.position.last_commit if in_flight is None else in_flight
    if now.complete >= max(wanted, 0):
        return Take(now.complete, planned=False)
    if now.driven and waited_s < _patience(first, now, wanted, aligned_timeout_s):
        return Wait()
    if now.complete < 0:
        return NothingYet()
    return Take(now.complete, planned=now.position.last_offsets > now.complete)


def _patience(first: Seen, now: Seen, wanted: int, aligned_timeout_s: float) -> float:
    """Return for how long, from the first look, waiting makes sense."""
    committed = now.position.last_commit >= max(wanted, 0)
    unpublished = now.complete < first.position.last_commit
    if committed or unpublished:
        return aligned_timeout_s + PUBLISHING_S
    return aligned_timeout_s
