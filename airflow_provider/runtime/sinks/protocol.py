"""What a sink promises, so that every row lands exactly once whatever dies.

The idea is Flink's ``TwoPhaseCommitSinkFunction``, later its Sink V2 with committables: stage while
the batch runs, publish after its checkpoint has committed, and be able to publish again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Committable = dict[str, Any]
Fence = Callable[[], None]  # raises LeaseLostError when this driver may no longer commit


@dataclasses.dataclass(frozen=True)
class EpochId:
    """One epoch of one query, as written by one driver.

    Attributes:
        query: the query's name in the job.
        query_id: Spark's id of the query; it dies with the checkpoint.
        epoch: the batch's number.
        token: the driver's fencing token; two drivers never stage at the same place.
    """

    query: str
    query_id: str
    epoch: int
    token: int


@dataclasses.dataclass(frozen=True)
class Staged:
    """What staging an epoch gave.

    Attributes:
        committable: JSON; all that :meth:`Sink.commit` needs, also in another process.
        rows: how many rows were staged.
    """

    committable: Committable
    rows: int


class Sink(Protocol):
    """A place that takes a query's output, epoch by epoch."""

    @property
    def name(self) -> str:
        """Return a name that is unique in the query and the same at every start."""

    def check(self, output_mode: str) -> None:
        """Refuse what cannot work; called before anything is written.

        Raises:
            ConfigError: the message names the thing and the way out.
        """

    def stage(self, df: DataFrame, epoch: EpochId) -> Staged:
        """Write the epoch's rows where no reader sees them, durably.

        Executes *df* exactly once, also when it has no rows: that moves the query's state on.

        Crash safety: what a crash leaves is staged data that nothing references.
        """

    def commit(self, committable: Committable, fence: Fence) -> None:
        """Publish what was staged; calls *fence* before each visible step.

        Crash safety: calling it again completes it.
        Idempotent: by the committable.
        """

    def abort(self, committable: Committable) -> None:
        """Remove what was staged for an epoch that Spark will run again. Idempotent."""

    def clean(self, query_id: str, keep: Collection[int]) -> None:
        """Remove what the query has staged for any epoch not in *keep*; never published data."""
