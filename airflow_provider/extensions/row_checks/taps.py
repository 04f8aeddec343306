"""Taps of bits: rules count rows with them, take rows out, and find them again.

Such a tap adds a column to its rows, with a bit for each rule that the row breaks, and Spark
observes the bits' sums (``Dataset.observe``) while the batch runs. Rows that a rule takes out are
left out above. Their columns for the quarantine are read from the tap's own part of the executed
plan, and only in a batch that has some. As both use one plan and one column, a row is in one place
or the other.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Final, cast

from airflow_provider.runtime.base.names import quoted
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.epoch_documents import TapCount
from airflow_provider.runtime.queries.plan import ADAPTIVE, executed, has_state, items
from airflow_provider.runtime.queries.taps import (
    ADDED,
    Tap,
    behind_state,
    quarantine_columns,
    row_as_json,
)
from airflow_provider.runtime.spark.versions import class_named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from airflow_provider.runtime.queries.taps import Rule

BITS: Final = f"{ADDED}broken"
MOST_RULES: Final = 63
"""Of one tap: the bits are a number of Spark's type long."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BitTap(Tap):
    """A tap whose rows have a bit for each rule that they break.

    Attributes:
        given: all rows, as they come.
        wrong: the bits of the rules that a row of *given* breaks; never NULL.
        broken: for each rule what is NULL in a good row; None if a rule is not in the row alone,
            or not of Spark's own functions, so that Spark cannot observe it.
        describe: returns the columns of quarantined rows; None for their columns as JSON.
    """

    given: DataFrame
    wrong: Column
    broken: tuple[Column, ...] | None = None
    describe: Callable[[DataFrame], DataFrame] | None = None

    @functools.cached_property
    def rows(self) -> DataFrame:
        """All rows, with *wrong* as the column :data:`BITS`."""
        return self.given.withColumn(BITS, self.wrong)

    def rows_in(self, plan: Any, session: SparkSession) -> DataFrame | None:
        from pyspark.sql import DataFrame

        node = self._node_in(plan)
        if node is None:
            return None
        below = node.child().clone()
        if has_state(below, session._jvm):
            raise ConfigError(behind_state(self))
        below = _with_broken(below, node, session._jvm) if self._only_counts else below
        is_streaming = False
        made = session._jsparkSession.internalCreateDataFrame(
            below.execute(), below.schema(), is_streaming
        )
        frame = DataFrame(made, session)
        return self._with_bits(frame) if self._only_counts else frame

    def count(self, execution: Any, rows: Callable[[], DataFrame | None]) -> TapCount:
        found = execution.observedMetrics().get(self.name)
        if found.isDefined():
            return self._count_of(str(found.get().mkString(",")).split(","))
        left = rows()
        return self._count_of(left.agg(*self._sums()).first() if left is not None else None)

    def _node_in(self, plan: Any) -> Any | None:
        is_adaptive = str(plan.getClass().getSimpleName()) == ADAPTIVE
        for each in (plan, plan.initialPlan()) if is_adaptive else (plan,):
            for node in executed(each):
                kind = node.getClass().getSimpleName()
                if kind == "CollectMetricsExec" and node.name() == self.name:
                    return node
        return None

    def _bits(self, which: Callable[[Rule], bool]) -> int:
        return sum(1 << position for position, rule in enumerate(self.rules) if which(rule))

    @property
    def _only_counts(self) -> bool:
        """Whether the rows are observed as they come: a column more would copy each row twice."""
        return self.broken is not None and not self.takes

    def all(self) -> DataFrame:
        from pyspark.sql import functions as sf

        if self.broken is not None and self._only_counts:
            first, *others = self.broken
            if self.is_limited:  # always true, and Spark does not know it: see below
                first = sf.when(sf.length(_every(self.given)) >= 0, first)
            return self.given.observe(self.name, *_counts([first, *others]))
        # Never true, and Spark does not know it: so it leaves all columns in the plan.
        every = _every(self.rows)
        is_shown = self.quarantines or self.is_limited
        whole = [sf.max(sf.when(sf.col(BITS) < 0, every)).alias("whole")] if is_shown else []
        return self.rows.observe(self.name, *self._sums(), *whole)

    def _sums(self) -> list[Column]:
        from pyspark.sql import functions as sf

        each = (f"nullif({BITS} & {1 << position}L, 0)" for position in range(len(self.rules)))
        taken = sf.expr(f"nullif({BITS} & {self._bits(lambda rule: rule.takes)}L, 0)")
        return [*_counts(map(sf.expr, each)), sf.count(taken).alias("taken")]

    def count_reported(self, metrics: Mapping[str, Any]) -> TapCount:
        names = ("rows", *(f"rule_{position}" for position in range(len(self.rules))), "taken")
        return self._count_of([metrics[name] for name in names if name in metrics])

    def _count_of(self, values: Sequence[Any] | None) -> TapCount:
        names = [rule.name for rule in self.rules]
        counts = [*map(int, (values or ())[: 2 + len(names)])]
        rows, *broken, taken = counts + [0] * (2 + len(names) - len(counts))
        return TapCount(rows, taken, dict(zip(names, broken, strict=True)))

    def _with_bits(self, rows: DataFrame) -> DataFrame:
        """Return rows, which have a column for each rule that is not NULL if broken, with bits."""
        from pyspark.sql import functions as sf

        names = [f"rule_{position}" for position in range(len(self.rules))]
        bits = (
            f"if({name} IS NULL, 0L, {1 << position}L)" if name in rows.columns else "0L"
            for position, name in enumerate(names)
        )
        return rows.withColumn(BITS, sf.expr(" | ".join(bits))).drop(*names)

    def passed(self, rows: DataFrame) -> DataFrame:
        if self._only_counts:
            return rows
        takes = self._bits(lambda rule: rule.takes)
        return (rows.where(~_has(takes)) if takes else rows).drop(BITS)

    def quarantined(self, rows: DataFrame) -> DataFrame:
        return self._describe(rows.where(_has(self._bits(lambda rule: rule.quarantines))))

    def breaking(self, rows: DataFrame, rule: Rule) -> DataFrame:
        return self._describe(rows.where(_has(1 << self.rules.index(rule))))

    def _describe(self, broken: DataFrame) -> DataFrame:
        if self.describe is not None:
            return self.describe(broken)
        names = (name for name in self.given.columns if name in broken.columns)
        return broken.select(
            *quarantine_columns("rule", self._names_of_broken(), row=row_as_json(names))
        )

    def _names_of_broken(self) -> Column:
        from pyspark.sql import functions as sf

        names = (
            sf.when(_has(1 << position), sf.lit(rule.name))
            for position, rule in enumerate(self.rules)
        )
        return sf.concat_ws(", ", *names)


def _with_broken(below: Any, node: Any, jvm: Any) -> Any:
    """Return a plan with what *node* counts for each rule as a column, NULL in a good row."""
    columns = [*items(below.output())]
    for metric in [*items(node.metricExpressions())][1:]:
        counted = metric.child()
        if counted.getClass().getSimpleName() == "AggregateExpression":  # else it breaks never
            argument = counted.aggregateFunction().children().head()
            columns.append(metric.withNewChildren(jvm.PythonUtils.toSeq([argument])))
    project = class_named(jvm, "org.apache.spark.sql.execution.ProjectExec")
    return project(jvm.PythonUtils.toSeq(columns), below)


def _every(rows: DataFrame) -> Column:
    from pyspark.sql import functions as sf

    names = collections.Counter(name.lower() for name in rows.columns)
    unique = (quoted(name) for name in rows.columns if names[name.lower()] == 1)
    return sf.struct(sf.lit(0), *unique).cast("string")


def _counts(broken: Iterable[Column]) -> list[Column]:
    from pyspark.sql import functions as sf

    counts = (sf.count(each).alias(f"rule_{position}") for position, each in enumerate(broken))
    return [sf.expr("count(1) AS rows"), *counts]


def _has(bits: int) -> Column:
    from pyspark.sql import functions as sf

    return sf.expr(f"{BITS} & {bits}L <> 0")


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
