"""Taps: places in a query at which rows are counted by rules, and taken out.

A tap adds a column of bits to its rows, one for each rule that the row breaks, and Spark observes
the bits' sums (``Dataset.observe``) while the batch runs. Rows that a rule takes out are left out
above. What is kept of them is read from the tap's own part of the executed plan, and only in a
batch that has some. As both use one plan and one column, a row is in one place or the other.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Final, cast

from airflow_provider.runtime.base.names import quoted
from airflow_provider.runtime.jobdir.epoch_documents import TapCount
from airflow_provider.runtime.jobdir.run_options import COUNT
from airflow_provider.runtime.queries.plan import analyzed
from airflow_provider.runtime.spark.versions import class_named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame

    from airflow_provider.runtime.jobdir.run_options import RowLimit

PREFIX: Final = "spark-stream tap "
BITS: Final = "__spark_stream_broken"
MOST_RULES: Final = 63
"""Of one tap: the bits are a number of Spark's type long."""
SHOWN_ROWS: Final = 3


@dataclasses.dataclass(frozen=True)
class Rule:
    """A rule of a tap.

    Attributes:
        name: unique in the job.
        takes: whether a row that breaks it is taken out of the query.
        keeps: whether such a row goes to the query's sink for kept rows.
        on: the policy, as the job has given it.
        limit: how many rows of a run may break it; None for any number.
        batch_limit: the same of one batch.
    """

    name: str
    takes: bool = False
    keeps: bool = False
    on: str = COUNT
    limit: RowLimit | None = None
    batch_limit: RowLimit | None = None


@dataclasses.dataclass(frozen=True)
class Tap:
    """A place in a query.

    Attributes:
        rules: in the order of their bits.
        given: all rows, as they come.
        wrong: the bits of the rules that a row of *given* breaks; never NULL.
        describe: returns what is kept of such rows: one schema for all kinds, see
            :func:`kept_columns`.
        source: the source of which it gets each row; None if the job has changed the rows before.
        broken: for each rule what is NULL in a good row; None if a rule is not in the row alone,
            or not of Spark's own functions, so that Spark cannot observe it.
    """

    rules: tuple[Rule, ...]
    given: DataFrame
    wrong: Column
    describe: Callable[[DataFrame], DataFrame]
    source: str | None = None
    broken: tuple[Column, ...] | None = None

    @functools.cached_property
    def rows(self) -> DataFrame:
        """All rows, with *wrong* as the column :data:`BITS`."""
        return self.given.withColumn(BITS, self.wrong)

    @property
    def name(self) -> str:
        """Return the name of what Spark observes here."""
        return PREFIX + ", ".join(rule.name for rule in self.rules)

    @property
    def keeps(self) -> bool:
        return any(rule.keeps for rule in self.rules)

    @property
    def takes(self) -> bool:
        return any(rule.takes for rule in self.rules)

    @property
    def is_limited(self) -> bool:
        return any(rule.limit or rule.batch_limit for rule in self.rules)

    def bits(self, which: Callable[[Rule], bool]) -> int:
        """Return the bits of the rules that *which* accepts."""
        return sum(1 << place for place, rule in enumerate(self.rules) if which(rule))

    @property
    def only_counts(self) -> bool:
        """Whether the rows are observed as they come: a column more would copy each row twice."""
        return self.broken is not None and not self.takes

    def all(self) -> DataFrame:
        """Return all rows, observed."""
        from pyspark.sql import functions as sf

        if self.broken is not None and self.only_counts:
            first, *others = self.broken
            if self.is_limited:  # always true, and Spark does not know it: see below
                first = sf.when(sf.length(_every(self.given)) >= 0, first)
            return self.given.observe(self.name, *_counts([first, *others]))
        # Never true, and Spark does not know it: so it leaves all columns in the plan.
        every = _every(self.rows)
        is_shown = self.keeps or self.is_limited
        whole = [sf.max(sf.when(sf.col(BITS) < 0, every)).alias("whole")] if is_shown else []
        return self.rows.observe(self.name, *self.sums(), *whole)

    def sums(self) -> list[Column]:
        """Return what is counted; :meth:`count_of` reads its values."""
        from pyspark.sql import functions as sf

        each = (f"nullif({BITS} & {1 << place}L, 0)" for place in range(len(self.rules)))
        taken = sf.expr(f"nullif({BITS} & {self.bits(lambda rule: rule.takes)}L, 0)")
        return [*_counts(map(sf.expr, each)), sf.count(taken).alias("taken")]

    def count_reported(self, metrics: Mapping[str, Any]) -> TapCount:
        """Return the count in Spark's report of a batch (``observedMetrics``)."""
        names = ("rows", *(f"rule_{place}" for place in range(len(self.rules))), "taken")
        return self.count_of([metrics[name] for name in names if name in metrics])

    def count_of(self, values: Sequence[Any] | None) -> TapCount:
        names = [rule.name for rule in self.rules]
        counts = [*map(int, (values or ())[: 2 + len(names)])]
        rows, *broken, taken = counts + [0] * (2 + len(names) - len(counts))
        return TapCount(rows, taken, dict(zip(names, broken, strict=True)))

    def with_bits(self, rows: DataFrame) -> DataFrame:
        """Return rows, which have a column for each rule that is not NULL if broken, with bits."""
        from pyspark.sql import functions as sf

        names = [f"rule_{place}" for place in range(len(self.rules))]
        bits = (
            f"if({name} IS NULL, 0L, {1 << place}L)" if name in rows.columns else "0L"
            for place, name in enumerate(names)
        )
        return rows.withColumn(BITS, sf.expr(" | ".join(bits))).drop(*names)

    def passed(self, observed: DataFrame) -> DataFrame:
        """Return the rows that continue."""
        if self.only_counts:
            return observed
        takes = self.bits(lambda rule: rule.takes)
        return (observed.where(~_has(takes)) if takes else observed).drop(BITS)

    def kept(self, rows: DataFrame) -> DataFrame:
        """Return what is kept of rows that have the column of bits."""
        return self.describe(rows.where(_has(self.bits(lambda rule: rule.keeps))))

    def breaking(self, rows: DataFrame, rule: Rule) -> DataFrame:
        return self.describe(rows.where(_has(1 << self.rules.index(rule))))

    def names_of_broken(self) -> Column:
        """Return the names of the rules that a row breaks."""
        from pyspark.sql import functions as sf

        names = (
            sf.when(_has(1 << place), sf.lit(rule.name)) for place, rule in enumerate(self.rules)
        )
        return sf.concat_ws(", ", *names)


def _every(rows: DataFrame) -> Column:
    from pyspark.sql import functions as sf

    names = collections.Counter(name.lower() for name in rows.columns)
    unique = (quoted(name) for name in rows.columns if names[name.lower()] == 1)
    return sf.struct(sf.lit(0), *unique).cast("string")


def _counts(broken: Iterable[Column]) -> list[Column]:
    from pyspark.sql import functions as sf

    counts = (sf.count(each).alias(f"rule_{place}") for place, each in enumerate(broken))
    return [sf.expr("count(1) AS rows"), *counts]


def _has(bits: int) -> Column:
    from pyspark.sql import functions as sf

    return sf.expr(f"{BITS} & {bits}L <> 0")


KEPT_SCHEMA: Final = (
    "query string, kind string, place string, reason string, row string, origin string, "
    "event_time timestamp, watermark timestamp, at timestamp"
)
KEPT_FIELDS: Final = tuple(tuple(field.split()) for field in KEPT_SCHEMA.split(", "))
"""Name and type of each column."""


def kept_columns(kind: str, place: Column, **columns: Column) -> list[Column]:
    """Return the columns of :data:`KEPT_SCHEMA` but ``query`` and ``at``; NULL if not given.

    ======================  =====================================================================
    ``kind``, ``place``     ``rejected`` and the source, ``rule`` and the rules, or ``late`` and
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

    given = {"kind": sf.lit(kind), "place": place, **columns}
    given |= {name: _readable(given[name]) for name in ("reason", "row") if name in given}
    return [
        given.get(name, sf.lit(None)).cast(kind).alias(name) for name, kind in KEPT_FIELDS[1:-1]
    ]


def _readable(text: Column) -> Column:
    """Return a text that every reader takes: Spark carries bytes along that are no UTF-8."""
    from pyspark.sql import functions as sf

    if hasattr(sf, "make_valid_utf8"):
        return sf.make_valid_utf8(text)
    return sf.decode(text.cast("binary"), "UTF-8")  # of Spark 3.5, which replaces such bytes


def row_as_json(names: Iterable[str]) -> Column:
    """Return a row as a text of JSON; NULLs are in it."""
    from pyspark.sql import functions as sf

    columns = (quoted(name) for name in names if name != BITS)
    return sf.to_json(sf.struct(*columns), {"ignoreNullFields": "false"})


def taps_of(df: DataFrame, known: Iterable[Tap]) -> tuple[Tap, ...]:
    """Return the taps in the plan of *df*, each once, upper ones first."""
    by_name = {tap.name: tap for tap in known}
    if not by_name:
        return ()
    nodes = (node for kind, node in analyzed(df) if kind == "CollectMetrics")
    names = dict.fromkeys(str(node.name()) for node in nodes)
    return tuple(by_name[name] for name in names if name in by_name)


def without_errors(column: Column) -> Column:
    """Return a column that is NULL where Spark, or a function of Scala, raises an error.

    Spark's ``try_…`` functions are made of the same expression.
    """
    import pyspark

    jvm: Any = pyspark.SparkContext._jvm
    given: Any = column
    tried = class_named(jvm, "org.apache.spark.sql.catalyst.expressions.TryEval")
    if pyspark.__version__.startswith("3."):
        raw = class_named(jvm, "org.apache.spark.sql.Column")(tried(given._jc.expr()))
    else:
        convert = class_named(jvm, "org.apache.spark.sql.classic.ExpressionUtils")
        raw = convert.column(tried(convert.expression(given._jc)))
    return cast("Column", type(given)(raw))


def behind_state(tap: Tap) -> str:
    """Return the refusal of rows that can be kept neither during a batch nor after it."""
    return (
        f"rule {tap.rules[0].name!r}: the rows come from a stateful operator, which runs once a "
        "batch, so they can be kept only where they are written: give ctx.write what ctx.expect "
        "returns, or use on='count'"
    )
