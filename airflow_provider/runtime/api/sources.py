"""The published interface of sources: what the runtime may know of a format.

A job reads any format that Spark can read, one of its own included: a data source in Python is
registered with Spark by the job (``spark.dataSource.register``) and read by its name. Spark asks it
for its offsets, so its batches, savepoints and retries need nothing else.

A :class:`Source` adds what Spark does not ask for: defaults of options, checks before the first
batch, and the capabilities below. A capability that is missing has a consequence:

====================  ==============================================================================
capability            without it
====================  ==============================================================================
:class:`TimedSource`  ``ends=`` with a moment is refused
:class:`LossySource`  rows that have expired before they were read are not counted
:class:`TypedSource`  sample rows need a schema in ``ctx.read``
====================  ==============================================================================
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


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
    """The runtime's questions about a format before a job reads it."""

    def complete(self, options: Mapping[str, str], *, bounded: bool) -> dict[str, str]:
        """Return the options with the format's defaults."""

    def prepare(
        self, spark: SparkSession, name: str, options: Mapping[str, str], *, streaming: bool
    ) -> None:
        """Check the options, and register the format with the session if Spark does not have it.

        Args:
            spark: the job's session.
            name: the source's name in the job, for messages.
            options: of the source, complete.
            streaming: whether it is read as a stream.

        Raises:
            ConfigError: an option is wrong, a library is missing, or the service refuses.
            OutageError: the service does not answer.
        """

    def check(self, name: str, options: Mapping[str, str], df: DataFrame) -> None:
        """Refuse what the source could not deliver, before the query starts.

        Args:
            name: the source's name in the job, for messages.
            options: of the source.
            df: what Spark has made of it; only its schema may be used.

        Raises:
            ConfigError: a column does not exist, or the service refuses.
            OutageError: the service does not answer.
        """


@runtime_checkable
class TimedSource(Protocol):
    """A source that can end at a moment."""

    def end_at(
        self, name: str, options: Mapping[str, str], moment: dt.datetime
    ) -> Mapping[str, Mapping[str, int]]:
        """Return the offsets at which the source ends, as Spark writes them.

        Args:
            name: the source's name in the job, for messages.
            options: of the source.
            moment: the first row of this time or later, in each partition, is not read.

        Raises:
            ConfigError: a library is missing, or the service refuses.
            OutageError: the service does not answer.
        """


@runtime_checkable
class LossySource(Protocol):
    """A source in Python that may continue after rows have expired, and counts them."""

    def may_lose(self, options: Mapping[str, str]) -> bool:
        """Whether these options let a query continue without rows that have expired."""

    def loss_of(self, task: bytes) -> Loss | None:
        """Return what a planned task leaves out; None for nothing, or a task of another source.

        Args:
            task: a partition as Spark's planner has it: bytes that this source's own worker wrote.
        """


@runtime_checkable
class TypedSource(Protocol):
    """A source whose columns follow from its options."""

    def schema(self, options: Mapping[str, str]) -> StructType:
        """Return the columns."""
