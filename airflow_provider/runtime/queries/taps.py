"""Taps: locations in a query at which rows are counted by rules, and taken out.

What the runtime asks of one is here. The extension ``row_checks`` makes them.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base.names import quoted
from airflow_provider.runtime.jobdir.run_options import COUNT
from airflow_provider.runtime.queries.plan import analyzed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyspark.sql import Column, DataFrame, SparkSession

    from airflow_provider.runtime.jobdir.epoch_documents import TapCount
    from airflow_provider.runtime.jobdir.row_counts import RecordLines
    from airflow_provider.runtime.jobdir.run_options import RowLimit

PREFIX: Final = "spark-stream tap "
ADDED: Final = "__spark_stream_"
"""Begins the name of each column that the runtime adds to the rows of a job."""
ORIGIN: Final = f"{ADDED}origin"  # of a record as it was read
SHOWN_ROWS: Final = 3


@dataclasses.dataclass(frozen=True)
class Rule:
    """A rule of a tap.

    Attributes:
        name: unique in the job.
        takes: whether a row that breaks it is taken out of the query.
        quarantines: whether such a row goes to the query's sink for quarantined rows.
        on: the policy, as the job has given it.
        limit: how many rows of a run may break it; None for any number.
        batch_limit: the same of one batch.
    """

    name: str
    takes: bool = False
    quarantines: bool = False
    on: str = COUNT
    limit: RowLimit | None = None
    batch_limit: RowLimit | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tap(abc.ABC):
    """A location in a query.

    Attributes:
        rules: in the order in which the job declares them.
        source: the source of which it gets each row; None if the job has changed the rows before.
        lines: how a file has the records of that source.
    """

    rules: tuple[Rule, ...]
    source: str | None = None
    lines: RecordLines | None = None

    @property
    def name(self) -> str:
        """Return the name of what Spark observes here (``Dataset.observe``)."""
        return PREFIX + ", ".join(rule.name for rule in self.rules)

    @property
    def quarantines(self) -> bool:
        return any(rule.quarantines for rule in self.rules)

    @property
    def takes(self) -> bool:
        return any(rule.takes for rule in self.rules)

    @property
    def is_limited(self) -> bool:
        return any(rule.limit or rule.batch_limit for rule in self.rules)

    @property
    def checks_files(self) -> bool:
        """Whether :meth:`count` looks at the files of a batch, which it may refuse."""
        return False

    @property
    @abc.abstractmethod
    def rows(self) -> DataFrame:
        """All rows, each with the rules that it breaks, as :meth:`quarantined` takes them."""

    @abc.abstractmethod
    def all(self) -> DataFrame:
        """Return all rows, observed."""

    @abc.abstractmethod
    def passed(self, rows: DataFrame) -> DataFrame:
        """Return those of :meth:`all` that continue."""

    @abc.abstractmethod
    def quarantined(self, rows: DataFrame) -> DataFrame:
        """Return *rows* in the columns of :func:`quarantine_columns`."""

    @abc.abstractmethod
    def breaking(self, rows: DataFrame, rule: Rule) -> DataFrame:
        """Return the same for those of *rows* that break a rule."""

    @abc.abstractmethod
    def rows_in(self, plan: Any, session: SparkSession) -> DataFrame | None:
        """Return the rows of a finished batch, computed again from its plan; None if not there.

        Raises:
            ConfigError: a stateful operator is below the tap, and cannot run a second time.
        """

    @abc.abstractmethod
    def count(self, execution: Any, rows: Callable[[], DataFrame | None]) -> TapCount:
        """Return what a finished batch has counted, by the JVM's ``QueryExecution``.

        Adaptive execution may drop a part of a plan that has run, when the other side of a join
        turns out to be empty; what it had counted is counted again in *rows*, which is None for a
        tap that Spark has planned out of the batch.
        """

    @abc.abstractmethod
    def count_reported(self, metrics: Mapping[str, Any]) -> TapCount:
        """Return the count in Spark's report of a batch (``observedMetrics``)."""


QUARANTINE_SCHEMA: Final = (
    "query string, kind string, location string, reason string, row string, origin string, "
    "event_time timestamp, watermark timestamp, at timestamp"
)
QUARANTINE_FIELDS: Final = tuple(tuple(field.split()) for field in QUARANTINE_SCHEMA.split(", "))
"""Name and type of each column."""


def quarantine_columns(kind: str, location: Column, **columns: Column) -> list[Column]:
    """Return the columns of :data:`QUARANTINE_SCHEMA` but ``query`` and ``at``; NULL if not given.

    ======================  =====================================================================
    ``kind``, ``location``     ``rejected`` and the source, ``rule`` and the rules, or ``late`` and
                            the operator
    ``reason``              why, in words
    ``row``                 the record as it was read, or the row as JSON
    ``origin``              of a rejected record: its file and the byte at which the read part of
                            the file begins, or topic, partition and offset
    ``event_time``,         of a late row: the end of its window, or its time, and the watermark
    ``watermark``           that it missed
    ======================  =====================================================================
    """
    from pyspark.sql import functions as sf

    given = {"kind": sf.lit(kind), "location": location, **columns}
    given |= {name: readable(given[name]) for name in ("reason", "row") if name in given}
    return [
        given.get(name, sf.lit(None)).cast(kind).alias(name)
        for name, kind in QUARANTINE_FIELDS[1:-1]
    ]


def readable(text: Column) -> Column:
    """Return a text that every reader takes: Spark carries bytes along that are no UTF-8."""
    from pyspark.sql import functions as sf

    if hasattr(sf, "make_valid_utf8"):
        return sf.make_valid_utf8(text)
    return sf.decode(text.cast("binary"), "UTF-8")  # of Spark 3.5, which replaces such bytes


def row_as_json(names: Iterable[str]) -> Column:
    """Return a row as a text of JSON; NULLs are in it."""
    from pyspark.sql import functions as sf

    return sf.to_json(sf.struct(*map(quoted, names)), {"ignoreNullFields": "false"})


def taps_of(df: DataFrame, known: Iterable[Tap]) -> tuple[Tap, ...]:
    """Return the taps in the plan of *df*, each once, upper ones first."""
    by_name = {tap.name: tap for tap in known}
    if not by_name:
        return ()
    nodes = (node for kind, node in analyzed(df) if kind == "CollectMetrics")
    names = dict.fromkeys(str(node.name()) for node in nodes)
    return tuple(by_name[name] for name in names if name in by_name)


def behind_state(tap: Tap) -> str:
    """Return the refusal of rows that can be quarantined neither during a batch nor after it."""
    return (
        f"rule {tap.rules[0].name!r}: the rows come from a stateful operator, which runs once a "
        "batch, so they can be quarantined only where they are written: give ctx.write what "
        "ctx.expect returns, or use on='count'"
    )
