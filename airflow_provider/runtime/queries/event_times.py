"""Event times of a query's output, observed while its batches run: no second pass over the rows.

The column that counts is the one by which readers select a period: a window of the output, or its
start or end; without windows, the columns with a watermark. Spark marks them in the plan, also
under another name. Output without such a column has no known event times. Rows that a stream writes
as it has read them cost nothing: Spark itself keeps the least and greatest time of their watermark.

The corrected records of a batch, which a source reads in the folder ``also``, are read again for
their least and greatest time, in a batch that has some.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base.names import quoted
from airflow_provider.runtime.jobdir.event_times import EventTimes, joined
from airflow_provider.runtime.queries.plan import FILE_SCAN, executed, items, leaves
from airflow_provider.runtime.queries.scanned_input import scanned
from airflow_provider.runtime.sources.spark import EVENT_TIME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import Column, DataFrame

    from airflow_provider.runtime.sources.declared import SourceDefinition

log = logging.getLogger(__name__)

_NAME: Final = "spark-stream event times"
_LISTS: Final = {"Project": "projectList", "Aggregate": "aggregateExpressions"}
_BOUNDS: Final = ("start", "end")
_ONE_FOR_ONE: Final = frozenset(
    {
        *("AdaptiveSparkPlanExec", "ArrowEvalPythonExec", "BatchEvalPythonExec", "InputAdapter"),
        *("ProjectExec", "ResultQueryStageExec", "WholeStageCodegenExec"),
    }
)
"""Nodes of an executed plan that give one row for each row."""


@dataclasses.dataclass(frozen=True)
class _TimeColumn:
    """A column of event time: ``time``, a ``window``, or the ``start`` or ``end`` of one."""

    name: str
    kind: str


def observed(df: DataFrame) -> DataFrame:
    """Return *df*, whose event times are observed as it runs; *df* itself if it need not be."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        columns = _time_columns(df)
        if not columns or _is_passed_through(df):
            return df
        return df.observe(_NAME, *_least_and_greatest([_micros(each) for each in columns]))
    except (PySparkException, Py4JError) as error:  # such as two columns of one name
        log.info("the event times of the output are not known: %s", error)
        return df


def event_times_of(execution: Any) -> EventTimes | None:
    """Return the event times of what a finished batch has written; None when not known."""
    from py4j.protocol import Py4JError

    try:
        found = execution.observedMetrics().get(_NAME)
        if found.isDefined():
            return _range_of(found.get())
        return _range_of_watermark(execution.executedPlan())
    except Py4JError as error:
        log.warning("the event times of this batch are not known: %s", error)
        return None


def corrected_times(
    plan: Any, sources: Sequence[SourceDefinition], rows: Mapping[str, int]
) -> EventTimes | None:
    """Return the event times of the corrected records that a batch has read; None without any.

    *rows* are those of each source. Their files are read again.
    """
    return joined(
        _times_of_files(plan, each)
        for each in {source.name: source for source in sources}.values()
        if each.also is not None and each.watermark is not None and rows.get(each.also.name)
    )


def _times_of_files(plan: Any, source: SourceDefinition) -> EventTimes | None:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    also, column = source.also, (source.watermark or ("",))[0]
    spark = SparkSession.getActiveSession()
    if also is None or also.files is None or spark is None:
        return None
    try:
        paths = tuple(_files_below(plan, str(also.folder)))
        read = dataclasses.replace(also.files, only=paths).load(spark, also.name, streaming=False)
        if not paths or column.lower() not in [name.lower() for name in read.columns]:
            return None
        micros = _micros(_TimeColumn(column, "time"))
        first = read.agg(*_least_and_greatest([micros])).first()
    except (PySparkException, Py4JError) as error:
        log.warning("source=%s: the times of its records are not known: %s", also.name, error)
        return None
    return EventTimes(*(each // 1000 for each in first)) if first and first[0] is not None else None


def _files_below(plan: Any, folder: str) -> Iterator[str]:
    from airflow_provider.runtime.queries.batch_input import address_of
    from airflow_provider.runtime.queries.output_locations import location_key

    key = location_key(folder)
    for leaf in leaves(plan):
        if leaf.getClass().getSimpleName() == FILE_SCAN:
            for path, _ in scanned(leaf.relation().location().allFiles()):
                if location_key(path).startswith(key):
                    yield address_of(path)


def _range_of(row: Any) -> EventTimes | None:
    if row.isNullAt(0) or row.isNullAt(1):
        return None
    return EventTimes(int(row.getLong(0)) // 1000, int(row.getLong(1)) // 1000)


def _range_of_watermark(plan: Any) -> EventTimes | None:
    """Return the times that Spark's watermark has seen, if each row is one of the output."""
    for node in executed(plan):
        kind = str(node.getClass().getSimpleName())
        if kind == "EventTimeWatermarkExec":
            stats = node.eventTimeStats().value()
            return EventTimes(int(stats.min()), int(stats.max())) if stats.count() else None
        if kind not in _ONE_FOR_ONE:
            return None
    return None


def _least_and_greatest(bounds: Sequence[tuple[Column, Column]]) -> list[Column]:
    from pyspark.sql import functions as sf

    lower, upper = ([pair[side] for pair in bounds] for side in (0, 1))
    return [
        sf.min(sf.least(*lower) if len(lower) > 1 else lower[0]).alias("least"),
        sf.max(sf.greatest(*upper) if len(upper) > 1 else upper[0]).alias("greatest"),
    ]


def _micros(column: _TimeColumn) -> tuple[Column, Column]:
    """Return the first and the last microsecond of a column's value in a row."""
    from pyspark.sql import functions as sf

    value = sf.col(quoted(column.name))
    if column.kind == "window":
        return sf.unix_micros(value["start"]), sf.unix_micros(value["end"]) - 1
    micros = sf.unix_micros(value)
    last = micros - 1 if column.kind == "end" else micros
    return last, last


# --- which columns count -------------------------------------------------------------------------


def _time_columns(df: DataFrame) -> list[_TimeColumn]:
    plan = df._jdf.queryExecution().analyzed()
    found = [each for each in map(_kind_in(plan), items(plan.output())) if each is not None]
    windows = [each for each in found if each.kind != "time"]
    return windows or found


def _is_passed_through(df: DataFrame) -> bool:
    """Whether each row below a stream's watermark is one row of the output."""
    node = df._jdf.queryExecution().analyzed()
    while str(node.getClass().getSimpleName()) in {"Project", "SubqueryAlias"}:
        node = node.children().apply(0)
    return str(node.getClass().getSimpleName()) == "EventTimeWatermark"


def _kind_in(plan: Any) -> Callable[[Any], _TimeColumn | None]:
    def kind_of(column: Any) -> _TimeColumn | None:
        name = str(column.name())
        if _is_marked(column):
            is_window = str(column.dataType().typeName()) == "struct"
            return _TimeColumn(name, "window" if is_window else "time")
        bound = _bound_of(plan, int(column.exprId().id()))
        return _TimeColumn(name, bound) if bound is not None else None

    return kind_of


def _is_marked(column: Any) -> bool:
    return bool(column.metadata().contains(EVENT_TIME))


def _bound_of(plan: Any, number: int) -> str | None:
    """Return which end of a window a column of a plan is; None for any other column."""
    node = plan
    while True:
        kind = str(node.getClass().getSimpleName())
        if kind in _LISTS:
            found = _projected(node, _LISTS[kind], number)
            if found is None or not hasattr(found, "getClass"):
                return None
            inside = str(found.getClass().getSimpleName())
            if inside == "GetStructField":
                return _bound_in(found)
            if inside != "AttributeReference":
                return None
            number = int(found.exprId().id())
        if node.children().size() != 1:
            return None
        node = node.children().apply(0)


def _projected(node: Any, values: str, number: int) -> Any | None:
    for each in items(getattr(node, values)()):
        if int(each.exprId().id()) == number:
            is_alias = str(each.getClass().getSimpleName()) == "Alias"
            return each.child() if is_alias else each
    return None


def _bound_in(field: Any) -> str | None:
    child = field.child()
    is_column = str(child.getClass().getSimpleName()) == "AttributeReference"
    name = str(field.extractFieldName())
    return name if is_column and name in _BOUNDS and _is_marked(child) else None
