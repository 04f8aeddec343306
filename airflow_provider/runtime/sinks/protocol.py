"""The protocol of sinks: two-phase commit, so that every row lands exactly once.

The idea is Flink's ``TwoPhaseCommitSinkFunction``, later its Sink V2 with committables: stage while
the batch runs, publish after its checkpoint has committed, and be able to publish again. The life
of an epoch in one sink::

    stage ── pre-commit (the runtime records the committable) ── Spark commits the batch ── commit
      │            └── abort: the batch was run again, and what that staged counts instead
      └── recover: nothing recorded it                                     revert ──┘

To write a sink of your own, check it with ``airflow_provider.runtime.testing``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from airflow_provider.runtime.errors import CheckpointError, CorruptDocumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from airflow_provider.runtime.sinks.marks import Writer


# Sinks make folders of it, and remove them.
_FOLDER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+=-]{0,199}")

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

    Raises:
        CorruptDocumentError: no folder can be called after the query's id, or a number is negative.
    """

    query: str
    query_id: str
    epoch: int
    token: int

    def __post_init__(self) -> None:
        if not _FOLDER_NAME.fullmatch(self.query_id) or min(self.epoch, self.token) < 0:
            msg = f"query {self.query!r}: {self} is no epoch of Spark's; the record was changed"
            raise CorruptDocumentError(msg)


@dataclasses.dataclass(frozen=True)
class Staged:
    """What staging an epoch gave.

    Attributes:
        data: JSON; all that is needed to publish what was staged, also in another process.
        rows: how many rows were staged; None where only the sink's own code could count them.
    """

    data: dict[str, Any]
    rows: int | None


@dataclasses.dataclass(frozen=True)
class Committable:
    """What a sink has pre-committed for an epoch.

    Attributes:
        epoch: whose rows they are. ``query_id`` and ``epoch`` name them for good: of two
            committables with both the same, only one is ever published.
        data: what :meth:`Sink.stage` returned, as it was read from a record: a sink makes sure that
            what is in there lies in its own place before it touches it.
        writer: the job directory for which it is published; None where that is not known.
    """

    epoch: EpochId
    data: dict[str, Any]
    writer: Writer | None = None


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
        Idempotent: by query id and epoch, also in another process, after :meth:`revert`, and
        when a driver that was paused in here goes on after another one has published.

        Raises:
            LeaseLostError: another driver has taken over.
            SinkError: what was staged is gone, or the place refuses it.
            CheckpointError: the place has later epochs of the query and not this one, and cannot
                take it after them; see :func:`left_out`. Never does a call return without its rows.
        """

    def abort(self, committable: Committable) -> None:
        """Remove what was staged for an epoch that will not be published. Idempotent."""

    def check_revert(self, committables: Sequence[Committable]) -> None:
        """Refuse a revert that cannot be exact; called before anything is removed.

        Raises:
            RevertError: the message says what prevents it.
        """

    def revert(self, committables: Sequence[Committable], fence: Fence) -> None:
        """Remove exactly what committing *committables* has published.

        Args:
            committables: of one query id's epochs from one on, newest first; some may not be
                published.
            fence: checked before each visible step.

        Crash safety: calling it again completes it.
        Idempotent: by query id and epoch; rows of other epochs, queries and writers stay.
        """


@runtime_checkable
class Remembering(Protocol):
    """A sink whose place keeps a record of each epoch, as a database does.

    Such a place may lose what it has confirmed, when it fails over, and would grow without end.
    """

    def forget(self, query_id: str, epochs: Sequence[tuple[int, int]]) -> None:
        """Remove the records of published epochs that are never committed again, nor reverted.

        Their rows stay. The query's newest record stays in any case. Idempotent.

        Args:
            query_id: whose.
            epochs: first and last of each stretch.
        """

    def check_published(self, committable: Committable) -> None:
        """Refuse a place that has lost the newest epoch which a record calls published.

        Raises:
            CheckpointError: it has.
        """


def left_out(name: str, epoch: EpochId, *, last: int) -> CheckpointError:
    """Return the error of an epoch that its place does not have, and has gone past.

    Raise it after the fence was checked: who is that late is mostly a driver that was overtaken.

    Args:
        name: the sink's.
        epoch: which.
        last: the last epoch of the query that the place has.
    """
    msg = (
        f"{name}: epoch {epoch.epoch} of query {epoch.query!r} is not there, but epoch {last}, "
        "which came after it, is: its rows were left out, and cannot be put before rows that are "
        "published; rewind the run and run it again, or start a new job directory and output"
    )
    return CheckpointError(msg)


def changed(name: str, epoch: EpochId, what: object) -> CorruptDocumentError:
    """Return the error of a committable that names what the sink has not staged for the epoch.

    Args:
        name: the sink's.
        epoch: whose.
        what: is not the sink's.
    """
    msg = (
        f"{name}: the record of epoch {epoch.epoch} of query {epoch.query!r} names {what!r}, which "
        "is not what this sink stages for that epoch; nothing there was touched: put the record "
        "back as it was, or start a new job directory"
    )
    return CorruptDocumentError(msg)


@contextlib.contextmanager
def reading(name: str, committable: Committable) -> Iterator[None]:
    """Turn what a committable without the members that its sink puts there leads to into ours.

    Raises:
        CorruptDocumentError: one is missing, or of another type.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise changed(name, committable.epoch, f"{type(error).__name__}: {error}") from error


def lost(name: str, query_id: str, epoch: int) -> CheckpointError:
    """Return the error of a place that had confirmed an epoch and does not know it any more.

    Args:
        name: the sink's.
        query_id: Spark's id of the query.
        epoch: its last epoch that was confirmed.
    """
    msg = (
        f"{name}: epoch {epoch} of query id {query_id} was committed, and is not there any more: "
        "the place has lost a confirmed commit, as a failover to a standby that was behind does, "
        "or was restored to an earlier time; rewind the run and run it again, or start a new job "
        "directory and output"
    )
    return CheckpointError(msg)


class DiscardSink:
    """Takes the place of a sink that must not be written; the query's state moves on all the same.

    Args:
        name: the name of the sink that it replaces.
        location: the folder that the other one would write, by which other queries that read it
            are known; None when it has none.
    """

    def __init__(self, name: str, location: str | None) -> None:
        self._name = f"discarded:{name}"
        self.location = location

    @property
    def name(self) -> str:
        """Return the sink's name: that of the one that is not written, and that it is not."""
        return self._name

    def check(self, df: DataFrame, output_mode: str) -> None:
        """Accept whatever the query gives."""

    def recover(self, query_id: str, is_garbage: IsGarbage, fence: Fence) -> None:
        """Do nothing: nothing is staged."""

    def stage(self, df: DataFrame, epoch: EpochId) -> Staged:
        """Execute *df* and count its rows."""
        del epoch
        return Staged(data={}, rows=df.count())

    def commit(self, committable: Committable, fence: Fence) -> None:
        """Do nothing: there is nothing to publish."""

    def abort(self, committable: Committable) -> None:
        """Do nothing: nothing was staged."""

    def check_revert(self, committables: Sequence[Committable]) -> None:
        """Accept: there is nothing to remove."""

    def revert(self, committables: Sequence[Committable], fence: Fence) -> None:
        """Do nothing: nothing was published."""
