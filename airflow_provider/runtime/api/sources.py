"""The published interface of sources: what a job reads, and what the runtime may ask of it.

A job reads a format of Spark's, or a :class:`Source`, an object of its own or of an extension::

    ctx.read("orders", format="csv", path="/orders", schema="id int")
    ctx.read("facts", delta_table("/warehouse/facts"), bounded=True)

A source makes a DataFrame. Spark asks the stream behind it for offsets, so batches, savepoints and
retries need nothing else; a data source in Python is registered with the session by ``load``.
The runtime asks for protocols only, never for a class. A capability that is missing has a
consequence:

==========================  ======================================================================
capability                  without it
==========================  ======================================================================
:class:`EndingSource`       ``ends=`` is refused; a run ends when a start commits no batch
:class:`OrderedSource`      an offset either equals the end, or is past it: one batch reads up to it
:class:`TimedSource`        ``ends=`` with a moment is refused
:class:`BoundedSource`      a bounded source begins where an unbounded one does
:class:`StartingSource`     ``starts=`` is refused; a new source begins as its options say
:class:`SizedSource`        the first batch is not limited to the target time of a batch
:class:`CountedSource`      there is no backlog, unless Spark's report of the source has one
:class:`ObservedSource`     there is no lineage
:class:`LossySource`        rows that have expired before they were read are not counted
:class:`TypedSource`        sample rows need a schema in ``ctx.read``
:class:`IdentifiedSource`   what was deleted and made again is read on from the old position
:class:`SameInBatch`        BATCH is not chosen by itself
==========================  ======================================================================
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType
    from typing_extensions import Self

    from airflow_provider.runtime.api.sinks import Dataset

BEGINNING: Final = "beginning"
"""A start: all that the source has."""
NOW: Final = "now"
"""A start: what comes after the moment when the first batch with the source is planned."""
Start = Any
"""A start: :data:`BEGINNING`, :data:`NOW`, or a datetime with its zone."""
LATEST: Final = "latest"
"""The end that the source itself reports."""
SOURCE_OPTION: Final = "spark-stream.source"
"""The reader's option with a source's name: offsets and metrics are found again by it."""


class Location(NamedTuple):
    """What a source reads: equal locations of one kind give the same rows.

    Attributes:
        path: its folder or address, without secrets; None where it has none.
        options: what else says *what* is read, by name: not from where on, how fast or how, and no
            secret. Only a digest of them is stored.
        kind: the stored kind, where it is another one than the source's own: two readers of the
            same topics share one.
    """

    path: str | None
    options: Mapping[str, str] = {}
    kind: str | None = None


@dataclasses.dataclass(frozen=True)
class Loss:
    """Rows that a task leaves out because they have expired in the source.

    Attributes:
        rows: how many.
        where: the part of the source and its positions, for people.
    """

    rows: int
    where: str


@runtime_checkable
class Source(Protocol):
    """What a job reads.

    Attributes:
        kind: what it is, in small letters, such as ``delta``: stored, and shown in messages.
    """

    @property
    def kind(self) -> str: ...

    def load(self, spark: SparkSession, name: str, *, streaming: bool) -> DataFrame:
        """Return the source as a streaming DataFrame, or as a static one with all its rows.

        Args:
            spark: the job's session.
            name: of the source in the job: the value of :data:`SOURCE_OPTION` of Spark's reader,
                and for messages.
            streaming: whether it is read as a stream.

        Raises:
            ConfigError: an option is wrong, a library is missing, or the service refuses.
            OutageError: the service does not answer.
        """

    def location(self) -> Location: ...


class RecordedEnd(Protocol):
    """The end of a source in a run, as it is stored; *source* is the source's name."""

    @property
    def source(self) -> str: ...


class PlannedSource(Protocol):
    """A source in the first batch that Spark plans in a start of its query.

    Offsets are text as Spark's offset log has it; ``-`` is none.

    Attributes:
        name: the source's name in the job.
        stream: the JVM's stream.
        line: the offset up to which the batch reads.
        committed: the one up to which the batch before has read.
        keeps_its_end: whether the stream ends where it found the end at the start.
    """

    @property
    def name(self) -> str: ...

    @property
    def stream(self) -> Any: ...

    @property
    def line(self) -> str: ...

    @property
    def committed(self) -> str: ...

    @property
    def keeps_its_end(self) -> bool: ...

    def reach(self) -> str:
        """Return the offset up to which the stream reads in this start, whatever limits a batch.

        Raises:
            Py4JError: the stream cannot be asked.
        """

    def ends_at(self, offset: str) -> RecordedEnd:
        """Return the end to record."""


@runtime_checkable
class EndingSource(Protocol):
    """A source whose end is recorded once for a run, and is the same in each attempt."""

    def why_not_end(self, wanted: Any) -> str | None:
        """Return why the source cannot end at *wanted*, a value of ``ends=``; None if it can."""

    def end(self, planned: PlannedSource, wanted: Any) -> RecordedEnd | None:
        """Return the end of a run; None lets the run end when a start commits no batch.

        Args:
            planned: the first batch of the run.
            wanted: the value of ``ends=``, None without one; of a :class:`TimedSource` the offsets
                of a moment.

        Raises:
            ConfigError: the source cannot end there.
            Py4JError, ValueError: the end is not known here; refused if *wanted* is given.
        """


@runtime_checkable
class OrderedSource(Protocol):
    """A source that can tell which of two of its offsets is first; both as Spark writes them."""

    def limited(self, planned: str, committed: str, end: str) -> str:
        """Return how far a batch may read: *planned*, but not beyond *end*.

        An end before *committed*, how far the batch before has read, counts as *committed*. The
        result of a result is the same again.
        """

    def is_reached(self, committed: str, end: str) -> bool:
        """Whether the source has been read up to its end."""


@runtime_checkable
class TimedSource(Protocol):
    """A source that can end at a moment."""

    def end_at(self, name: str, moment: dt.datetime) -> Mapping[str, Mapping[str, int]]:
        """Return the offsets at which the source ends, by topic and partition.

        Args:
            name: the source's name in the job, for messages.
            moment: the first row of this time or later, in each partition, is not read.

        Raises:
            ConfigError: a library is missing, or the service refuses.
            OutageError: the service does not answer.
        """


@runtime_checkable
class BoundedSource(Protocol):
    """A source that is read otherwise when it ends."""

    def bounded(self) -> Self:
        """Return the source as it is read with ``bounded=True``."""


@runtime_checkable
class StartingSource(Protocol):
    """A source that can be told where a query begins that has no position of it.

    That is a new query, and one that continues with a source more. A query that has a position
    continues there.
    """

    def why_not_start(self, wanted: Start) -> str | None:
        """Return why the source cannot begin at *wanted*; None if it can."""

    def starting(self, wanted: Start) -> Self:
        """Return the source as it begins there; the caller has asked :meth:`why_not_start`."""


@runtime_checkable
class SizedSource(Protocol):
    """A source whose first batch can be limited before anything is known of the job's speed."""

    def sized(self, target_s: float) -> Self:
        """Return the source with a limit for a batch of about *target_s* seconds.

        One that has a limit of its own returns itself.
        """


@runtime_checkable
class CountedSource(Protocol):
    """A source that knows how much of it is unread."""

    def behind(self, progress: Mapping[str, Any]) -> Mapping[str, int]:
        """Return what is unread, by a name that ends with ``Outstanding``.

        Args:
            progress: Spark's report of the source in a batch (``startOffset``, ``endOffset``,
                ``latestOffset``, …).
        """


@runtime_checkable
class ObservedSource(Protocol):
    """A source with lineage."""

    def datasets(self) -> Sequence[Dataset]: ...


@runtime_checkable
class LossySource(Protocol):
    """A source in Python that may continue after rows have expired, and counts them."""

    def may_lose(self) -> bool:
        """Whether its options let a query continue without rows that have expired."""

    def loss_of(self, task: bytes) -> Loss | None:
        """Return what a planned task leaves out; None for nothing, or a task of another source.

        Args:
            task: a partition as Spark's planner has it: bytes that this source's own worker wrote.
        """


@runtime_checkable
class TypedSource(Protocol):
    """A source whose columns are known before it is read."""

    def columns(self) -> StructType: ...


@runtime_checkable
class IdentifiedSource(Protocol):
    """A source that knows whether a name stands for what it stood for when a query read it.

    A position in a topic or a table means nothing in another one of the same name. The driver asks
    each time before a query starts to read, stores the answer with the query's position, and
    compares. In BATCH, where no position is stored, it does not ask.
    """

    def identities(self, name: str) -> Mapping[str, str]:
        """Return by name the identities of what the source reads now; one request if possible.

        A name that is left out is unknown now, and stays as it was: what was deleted, or a service
        that knows no identities. What is deleted and made again never has its old identity.

        Args:
            name: the source's name in the job, for messages.

        Raises:
            ConfigError: the service refuses.
            OutageError: the service does not answer.
        """

    def why_not_continue(self, name: str, before: str, now: str) -> str | None:
        """Return why no query may continue in what has a name now, and what to do about it.

        None lets the query continue at its position, if the options accept that rows are lost; the
        driver logs it, and stores the new identity.

        Args:
            name: one of :meth:`identities`.
            before: the identity of what the query has read.
            now: the identity of what has the name now.
        """


@runtime_checkable
class SameInBatch(Protocol):
    """A source that gives a batch job the rows that it gives a stream."""

    same_rows_in_batch: Literal[True]
