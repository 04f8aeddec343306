"""Explanation of a difference by a query's plan: its state, and what its rows do not decide."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.checkpoint.operator_kinds import operator_title
from airflow_provider.runtime.queries.plan import analyzed, items

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider.runtime.jobdir.query_reports import FinalQuery
    from airflow_provider.runtime.queries.query import QueryDefinition

_CLOCK: Final = frozenset(
    {"CurrentTimestamp", "CurrentDate", "CurrentTime", "CurrentBatchTimestamp", "LocalTimestamp"}
    | {"Now", "UnixTimestamp", "CurDateExpressionBuilder"}
)
_ORDER: Final = frozenset({"First", "Last", "AnyValue", "CollectList", "MaxBy", "MinBy", "Mode"})
_FLOATS: Final = frozenset({"Sum", "Average", "StddevSamp", "StddevPop", "VarianceSamp"})
_FLOATING: Final = frozenset({"double", "float"})
_FILES: Final = frozenset({"_metadata", "input_file_name"})
_NODES: Final = {
    "Deduplicate": "dropDuplicates: neither mode defines which of the duplicates stays",
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark: which one stays is not defined",
    "GlobalLimit": "limit: each computation takes other rows",
    "Sample": "sample: each computation takes other rows",
    "FlatMapGroupsWithState": "a function with state, called once a batch: see its timeouts",
    "FlatMapGroupsInPandasWithState": "a function with state, called once a batch",
    "TransformWithState": "transformWithState, whose calls follow the batches",
    "TransformWithStateInPySpark": "transformWithState, whose calls follow the batches",
}


def blamed_operators(report: FinalQuery) -> list[str]:
    """Return the stateful operators of a query that ran as a stream, uppermost first."""
    return [operator_title(each.name, each.id, each.kind) for each in report.operators]


def undecided(query: QueryDefinition) -> list[str]:
    """Return what in a query's plan may differ from one computation to the next, in words."""
    found: dict[str, None] = {}
    for kind, node in analyzed(query.df):
        if kind in _NODES:
            found[_NODES[kind]] = None
        for expression in items(node.expressions()):
            found |= dict.fromkeys(_of_expression(expression))
    return list(found)


def _of_expression(expression: Any) -> Iterator[str]:
    kind = str(expression.getClass().getSimpleName())
    name = str(expression.prettyName())
    below = [found for each in items(expression.children()) for found in _of_expression(each)]
    yield from below
    if kind in _CLOCK:
        yield f"{name}(): the time of the computation"
    elif kind in _ORDER:
        yield f"{name}(): the result may depend on the order of the rows"
    elif kind in _FLOATS and str(expression.dataType().typeName()) in _FLOATING:
        yield f"{name}() of floating-point numbers: the last digits depend on the order of the rows"
    elif name in _FILES or (kind == "AttributeReference" and str(expression.name()) in _FILES):
        yield "_metadata or input_file_name(): where the row was read"
    elif not expression.deterministic() and not below:
        yield f"{name}(): not deterministic"
