"""Sinks: what the runtime asks of a location that takes a query's output.

A sink implements :class:`Sink`, whose two phases give exactly-once output, or :class:`OnePhaseSink`
for an output that Spark writes by itself. Everything else is a capability: a small protocol that a
sink implements or leaves out, with the consequence that its docstring states. The runtime asks for
protocols only, never for a class.

The two phases follow Flink's ``TwoPhaseCommitSinkFunction`` and its Sink V2 with committables:
stage while the batch runs, publish after its checkpoint has committed, and be able to publish
again. The life of an epoch in one sink::

    stage ── pre-commit (the runtime records the committable) ── Spark commits the batch ── commit
      │            └── abort: the batch ran again, and its new staging counts instead
      └── recover: no record names the staging                                     revert ──┘

``airflow_provider.runtime.testing.sinks`` has the contract as a test class, which an implementation
subclasses.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias, runtime_checkable

from airflow_provider.runtime.errors import CorruptDocumentError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

# Sinks name folders after a query's id, and remove them.
_FOLDER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+=-]{0,199}")

IsGarbage: TypeAlias = Callable[[int, int], bool]
"""Whether the staging of an epoch, by the driver with a token, will never be published."""


class Fence(Protocol):
    """The right to commit, which a driver's lease gives."""

    @property
    def token(self) -> int:
        """The driver's fencing token. A later driver has a higher one."""

    def check(self) -> None:
        """Raise unless this driver may still commit.

        Raises:
            LeaseLostError: another driver has taken over.
        """


class OpenFence:
    """A fence that always passes, for read-only commands and tests."""

    def __init__(self, token: int = 1) -> None:
        self._token = token

    @property
    def token(self) -> int:
        """The token that the caller has given."""
        return self._token

    def check(self) -> None:
        """Let every step pass."""


@dataclasses.dataclass(frozen=True)
class EpochId:
    """One epoch of one query, staged by one driver.

    Attributes:
        query: the query's name in the job.
        query_id: Spark's id of the query; a new checkpoint has a new id.
        epoch: the batch's number.
        token: the fencing token of the driver that staged it; no two drivers stage in one place.

    Raises:
        CorruptDocumentError: the id cannot name a folder, or a number is negative.
    """

    query: str
    query_id: str
    epoch: int
    token: int

    def __post_init__(self) -> None:
        if not _FOLDER_NAME.fullmatch(self.query_id) or min(self.epoch, self.token) < 0:
            raise CorruptDocumentError(
                f"query {self.query!r}: {self} is no epoch of Spark's; the record was changed"
            )


@dataclasses.dataclass(frozen=True)
class Staged:
    """The result of staging an epoch.

    Attributes:
        data: JSON; all that another process needs to publish the epoch.
        rows: the number of staged rows; None if the sink cannot count them.
    """

    data: dict[str, Any]
    rows: int | None


@dataclasses.dataclass(frozen=True)
class Writer:
    """The job directory for which a sink publishes.

    Attributes:
        job_dir: its address.
        identity: its identity; another job directory may lie at the same address later.
    """

    job_dir: str
    identity: str

    @property
    def key(self) -> str:
        """A short name of the address."""
        return key_of(self.job_dir)


def key_of(job_dir: str) -> str:
    """Return a short name of a job directory's address, for names of properties and files."""
    return hashlib.sha256(job_dir.encode()).hexdigest()[:16]


@dataclasses.dataclass(frozen=True)
class Committable:
    """An epoch that a sink has staged and the runtime has recorded.

    Attributes:
        epoch: the epoch. ``query_id`` and ``epoch`` identify it permanently: of two committables
            that agree in both, the runtime commits only one, so a sink need not refuse the other.
        data: the data of :class:`Staged`, read back from the record. A sink checks that everything
            it names lies in the sink's own location before it touches it.
        writer: the job directory for which it is published; None where that is not known.
    """

    epoch: EpochId
    data: dict[str, Any]
    writer: Writer | None = None


class Dataset(NamedTuple):
    """A dataset, named as OpenLineage's naming specification says; without credentials.

    Attributes:
        namespace: the file system, bucket or server.
        name: the path, table or topic in it.
    """

    namespace: str
    name: str


class FileLayout(NamedTuple):
    """How a sink writes files.

    Attributes:
        format: Spark's name of the format.
        partition_by: the columns of its folders.
        options: of Spark's writer.
    """

    format: str
    partition_by: tuple[str, ...]
    options: dict[str, str]


class NamedSink(Protocol):
    """The members that every sink has."""

    @property
    def api_version(self) -> int:
        """The version of the interface that the sink was written for."""

    @property
    def name(self) -> str:
        """A name that is unique in the query and the same at every start; without secrets."""

    def check(self, df: DataFrame, output_mode: str) -> None:
        """Refuse a query that the sink cannot take. Runs before anything is written.

        Args:
            df: the query's streaming output; a sink may look at its schema only.
            output_mode: Spark's: ``append``, ``update`` or ``complete``.

        Raises:
            ConfigError: the message names the thing and the fix.
        """


@runtime_checkable
class Sink(NamedSink, Protocol):
    """A location that takes a query's output exactly once, epoch by epoch, in two phases.

    Thread safety: :meth:`stage` of an epoch runs in Spark's callback thread while :meth:`commit` of
    an earlier epoch runs in the driver's thread.
    """

    def recover(self, query_id: str, is_garbage: IsGarbage, fence: Fence) -> None:
        """Take over from earlier drivers. Runs at every start and at the end. Idempotent.

        Shuts out drivers with a lower token where the sink itself can, and removes the stagings of
        the query that *is_garbage* names; never published data.
        """

    def stage(self, df: DataFrame, epoch: EpochId) -> Staged:
        """Write the epoch's rows durably where no reader sees them.

        Executes *df* exactly once, even without rows: the query's state advances only then.

        Crash safety: a crash leaves staged data, which :meth:`recover` removes.
        """

    def commit(self, committable: Committable, fence: Fence) -> None:
        """Publish a staged epoch; checks *fence* before each visible step.

        Crash safety: calling it again completes it.
        Idempotent: by query id and epoch, also in another process, after a revert, and when a
        driver that was paused in this call continues after another driver has published.

        Raises:
            LeaseLostError: another driver has taken over.
            SinkError: the staged data is gone, or the location refuses it.
            CheckpointError: the location has later epochs of the query, lacks this one and cannot
                add it behind them; see :func:`~.sink_errors.skipped_epoch_error`. A call
                never returns without its rows.
        """

    def abort(self, committable: Committable) -> None:
        """Remove the staging of an epoch that will not be published. Idempotent."""


@runtime_checkable
class OnePhaseSink(NamedSink, Protocol):
    """An output that Spark writes by itself, with Spark's guarantee for it.

    Rows are visible before the batch has committed. Such a sink is the only one of its query, its
    output cannot be reverted, and BATCH does not run it.
    """

    @property
    def guarantee(self) -> str:
        """The guarantee to readers, in one clause; logged at each start."""

    @property
    def provider(self) -> str | None:
        """The format whose connector Spark loads; None where every Spark has it."""

    def check_not_ahead(self, planned: int) -> None:
        """Refuse an output that has batches which the checkpoint does not know.

        Args:
            planned: the last batch that the checkpoint has planned; -1 for none.

        Raises:
            CheckpointError: Spark would skip the query's next batches there.
        """

    def attach(self, writer: DataStreamWriter) -> DataStreamWriter:
        """Return *writer* with the format and options of this output."""


# --- capabilities ---------------------------------------------------------------------------------


@runtime_checkable
class RevertibleSink(Protocol):
    """A sink that can remove published epochs. Without it, their replay or rewind is refused."""

    def check_revert(self, committables: Sequence[Committable]) -> None:
        """Refuse a revert that cannot be exact. Runs before anything is removed.

        Raises:
            RevertError: the message says what prevents it.
        """

    def revert(self, committables: Sequence[Committable], fence: Fence) -> None:
        """Remove exactly the rows that committing *committables* has published.

        Args:
            committables: epochs of one query id, newest first; some may not be published.
            fence: checked before each visible step.

        Crash safety: calling it again completes it.
        Idempotent: by query id and epoch; rows of other epochs, queries and writers stay.
        """


@runtime_checkable
class PrunableSink(Protocol):
    """A sink whose location keeps a record of each epoch, as a database does.

    Such a location may lose a confirmed epoch when it fails over, and its records would grow
    without end. Without this capability the runtime checks and prunes nothing there.
    """

    def prune(self, query_id: str, epochs: Sequence[tuple[int, int]]) -> None:
        """Remove the records of published epochs that are never committed or reverted again.

        Their rows stay, and so does the query's newest record. Idempotent.

        Args:
            query_id: the query.
            epochs: the first and last epoch of each stretch.
        """

    def check_published(self, committable: Committable) -> None:
        """Refuse a location that has lost the newest epoch that the job directory calls published.

        Raises:
            CheckpointError: it has.
        """


@runtime_checkable
class MarkedSink(Protocol):
    """A sink that records which job directory has published there.

    Its :meth:`Sink.commit` records the committable's ``writer``. Jobs at several addresses may
    share an output: each address has its own record. Without this capability a lost or replaced job
    directory is noticed by Airflow's memory only.
    """

    @property
    def name(self) -> str:
        """The sink's name."""

    def writers(self, job_dir: str) -> Collection[str]:
        """Return the identities that have published here for a job directory's address.

        A location that keeps only the newest one returns that; a removed output has none.
        """

    def last_epoch(self, query_id: str) -> int:
        """Return the last epoch of a query that was published here, or reverted; -1 for none."""


@runtime_checkable
class LocatedSink(Protocol):
    """A sink that writes into a folder. Two queries that would mix their rows there are refused."""

    @property
    def location(self) -> str | None:
        """The folder's address as the job names it; None for an output without a folder."""

    @property
    def holds_files(self) -> bool:
        """Whether all files in the folder are its rows: no log says which of them are."""


@runtime_checkable
class FileSink(LocatedSink, Protocol):
    """A sink whose files a sample run can write elsewhere, so that another query reads them."""

    @property
    def layout(self) -> FileLayout:
        """How it writes its files."""


@runtime_checkable
class ObservedSink(Protocol):
    """A sink whose datasets are known. Without it, lineage and the page show no output for it."""

    def datasets(self) -> Sequence[Dataset]:
        """Return the datasets that it writes; may ask the location, and may fail."""


@runtime_checkable
class ShapedSink(Protocol):
    """A sink that can judge a query's columns without its location, for runs on sample rows."""

    def check_shape(self, df: DataFrame, output_mode: str) -> None:
        """Refuse columns, types or an output mode that the sink never takes.

        Raises:
            ConfigError: the message names the thing and the fix.
        """


@runtime_checkable
class KeyedSink(Protocol):
    """A sink in which a row replaces earlier rows with the same keys."""

    @property
    def keys(self) -> Sequence[str]:
        """The key columns; empty if rows are only added."""


@runtime_checkable
class SliceSink(Protocol):
    """A sink that replaces a slice of its output: its commit removes the old rows in it, at once.

    Such a query runs in BATCH, so that a run has one commit. A replay leaves the old rows to it.
    """

    @property
    def replaces(self) -> str | None:
        """The slice, as SQL; None if rows are only added."""

    def will_replace(self, committables: Sequence[Committable]) -> bool:
        """Whether the next commit replaces all rows of *committables*: they have its slice."""

    def supersede(self, committables: Sequence[Committable], fence: Fence) -> None:
        """Refuse late commits of epochs, and leave their rows to the commit that replaces them.

        Idempotent: by query id and epoch.
        """


@runtime_checkable
class SequencedSink(KeyedSink, Protocol):
    """A sink by key that can order the changes of a key.

    With a sequence its rows do not depend on the epochs in which the changes arrive, so BATCH gives
    the same. Without this capability, or with an empty sequence, a later epoch's row counts.
    """

    @property
    def sequence_by(self) -> Sequence[str]:
        """The columns that order the changes of a key; empty for none."""

    @property
    def delete_when(self) -> str | None:
        """The condition by which a row deletes its key, in Spark's SQL; None for none."""


@runtime_checkable
class VersionedSink(Protocol):
    """A sink whose output has versions, such as a table.

    The final checkpoint and the asset's event name the version up to which a consumer reads.
    Without it they name none.
    """

    def version(self) -> int | None:
        """Return the newest version, as ``ends=`` of the output's source takes it; None for none.

        It holds every epoch that was committed before this call.
        """


@runtime_checkable
class VisibleSink(Protocol):
    """A sink whose rows are visible when they are staged, and which knows an epoch by its number.

    BATCH does not run it. Late rows are checked before :meth:`Sink.stage`. A checkpoint of plain
    Spark with an open batch can be taken over, because the batch keeps its number.
    """

    @property
    def guarantee(self) -> str:
        """The guarantee to readers, in one clause; logged at each start."""

    @property
    def shows_staged(self) -> bool:
        """True."""
