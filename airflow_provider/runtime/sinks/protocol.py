"""What a sink promises, so that every row lands exactly once whatever dies.

The idea is Flink's ``TwoPhaseCommitSinkFunction``, later its Sink V2 with committables: stage while
the batch runs, publish after its checkpoint has committed, and be able to publish again. The life
of an epoch in one sink::

    stage ── pre-commit (the runtime records the committable) ── Spark commits the batch ── commit
      │            └── abort: the batch was run again, and what that staged counts instead
      └── recover: nothing recorded it                                     take_back ──┘

Whoever writes a sink of their own checks it with ``airflow_provider.runtime.testing``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

IsGarbage = Callable[[int, int], bool]
"""Tells of an epoch and a token whether what that driver staged for that epoch is of no use."""


class Fence(Protocol):
    """The right to commit, as a sink sees it; the driver's lease is one."""

    @property
    def token(self) -> int:
        """Return the driver's fencing token: of two drivers the later one has the higher."""

    def check(self) -> None:
        """Stop here unless this driver may still commit.

        Raises:
            LeaseLostError: another driver has taken over.
        """


class OpenFence:
    """A fence that is never lost: for who only looks, and for tests."""

    def __init__(self, token: int = 1) -> None:
        self._token = token

    @property
    def token(self) -> int:
        """Return the token that was given."""
        return self._token

    def check(self) -> None:
        """Let every step pass."""


@dataclasses.dataclass(frozen=True)
class EpochId:
    """One epoch of one query, as written by one driver.

    Attributes:
        query: the query's name in the job.
        query_id: Spark's id of the query; it dies with the checkpoint.
        epoch: the batch's number.
        token: the fencing token of the driver that staged it; no two stage at the same place.
    """

    query: str
    query_id: str
    epoch: int
    token: int


@dataclasses.dataclass(frozen=True)
class Staged:
    """What staging an epoch gave.

    Attributes:
        data: JSON; all that is needed to publish what was staged, also in another process.
        rows: how many rows were staged.
    """

    data: dict[str, Any]
    rows: int


@dataclasses.dataclass(frozen=True)
class Committable:
    """What a sink has pre-committed for an epoch.

    Attributes:
        epoch: whose rows they are. ``query_id`` and ``epoch`` name them for good: of two
            committables with both the same, only one is ever published.
        data: what :meth:`Sink.stage` returned.
    """

    epoch: EpochId
    data: dict[str, Any]


class Sink(Protocol):
    """A place that takes a query's output, epoch by epoch.

    Thread safety: :meth:`stage` of an epoch runs in Spark's callback thread while :meth:`commit` of
    an earlier one runs in the driver's.
    """

    @property
    def name(self) -> str:
        """Return a name that is unique in the query and the same at every start; no secrets."""

    def check(self, df: DataFrame, output_mode: str) -> None:
        """Refuse what cannot work; called before anything is written, and writes nothing.

        Args:
            df: the query's streaming output; only its schema may be looked at.
            output_mode: Spark's: ``append``, ``update`` or ``complete``.

        Raises:
            ConfigError: the message names the thing and the way out.
        """

    def recover(self, query_id: str, is_garbage: IsGarbage, fence: Fence) -> None:
        """Take over from drivers before this one; called at every start, and at the end.

        Shuts out drivers with a lower token, where the sink itself can, and removes what the query
        has staged and *is_garbage* says is of no use; never published data. Idempotent.
        """

    def stage(self, df: DataFrame, epoch: EpochId) -> Staged:
        """Write the epoch's rows where no reader sees them, durably.

        Executes *df* exactly once, also when it has no rows: that moves the query's state on.

        Crash safety: what a crash leaves is staged data that :meth:`recover` removes.
        """

    def commit(self, committable: Committable, fence: Fence) -> None:
        """Publish what was staged; checks *fence* before each visible step.

        Crash safety: calling it again completes it.
        Idempotent: by query id and epoch, also in another process, after :meth:`take_back`, and
        when a driver that was paused in here goes on after another one has published.

        Raises:
            LeaseLostError: another driver has taken over.
            SinkError: what was staged is gone, or the place refuses it.
        """

    def abort(self, committable: Committable) -> None:
        """Remove what was staged for an epoch that will not be published. Idempotent."""

    def check_take_back(self, committables: Sequence[Committable]) -> None:
        """Refuse a take-back that cannot be exact; called before anything is removed.

        Raises:
            TakeBackError: the message says what stands in the way.
        """

    def take_back(self, committables: Sequence[Committable], fence: Fence) -> None:
        """Remove exactly what committing *committables* has published.

        Args:
            committables: of epochs of one query id, newest first; some may not be published.
            fence: checked before each visible step.

        Crash safety: calling it again completes it.
        Idempotent: by query id and epoch; rows of other epochs, queries and writers stay.
        """
