"""Canonical plan: what each stateful operator of a query groups, counts and gets; pure."""

from __future__ import annotations

import dataclasses
import logging
import re
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.upgrades.added_columns import AddedColumns, is_added
from airflow_provider.extensions.upgrades.canonical_expressions import canonical
from airflow_provider.runtime.checkpoint.topology import (
    Fingerprint,
    OperatorFingerprint,
    Watermark,
)
from airflow_provider.runtime.errors import redaction
from airflow_provider.runtime.jobdir.end_of_input import is_marker
from airflow_provider.runtime.queries.plan import analyzed_json, watermark_delays
from airflow_provider.runtime.queries.plan_tree import Node, conjuncts, id_of, object_name, tree_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pyspark.sql import DataFrame

    from airflow_provider.runtime.queries.planned_operators import PlannedOperator

log = logging.getLogger(__name__)

_STREAMS: Final = frozenset({"StreamingRelation", "StreamingRelationV2"})
_DISTINCT: Final = frozenset({"Deduplicate", "DeduplicateWithinWatermark"})
_WITH_STATE: Final = frozenset(
    {
        "FlatMapGroupsWithState",
        "FlatMapGroupsInPandasWithState",
        "TransformWithState",
        "TransformWithStateInPandas",
        "TransformWithStateInPySpark",
    }
)
# They change neither which rows there are nor what is in them.
_NEUTRAL: Final = frozenset(
    [
        "SubqueryAlias",
        "View",
        "Repartition",
        "RepartitionByExpression",
        "RebalancePartitions",
        "ResolvedHint",
        "Sort",
        "LocalLimit",
        "CTERelationDef",
        "CollectMetrics",
    ]
)
_ONE_SIDED: Final = frozenset({"LeftSemi", "LeftAnti"})
_WINDOWS: Final = ("window(", "session_window(")


@dataclasses.dataclass(frozen=True)
class CanonicalPlan:
    """The canonical form of a plan: stateful operators (children first), watermarks and output."""

    operators: tuple[OperatorFingerprint, ...]
    watermarks: tuple[Watermark, ...]
    output: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class _Rows:
    columns: tuple[int, ...]
    sources: tuple[str | None, ...] = ()
    filters: frozenset[str] = frozenset()

    @property
    def is_streaming(self) -> bool:
        return bool(self.sources)

    @property
    def has_only_markers(self) -> bool:
        return bool(self.sources) and all(name and is_marker(name) for name in self.sources)


def canonical_plan(
    plan: Sequence[dict[str, Any]],
    *,
    sources: Sequence[str | None],
    delays: Sequence[str],
    names: Sequence[str],
) -> CanonicalPlan:
    """Return the canonical form of an analyzed plan, whose nodes come before their children."""
    walk = _AnalyzedWalk(sources, delays)
    rows = walk.visit(tree_of(plan))
    columns = [walk.columns[each] for each in rows.columns]
    output = [
        text if text == name else f"{text} as {name}"
        for text, name in zip(columns, names, strict=True)
        if not is_added(name)
    ]
    return CanonicalPlan(
        tuple(walk.operators), tuple(walk.watermarks), (*output, *sorted(rows.filters))
    )


class _AnalyzedWalk:
    def __init__(self, sources: Sequence[str | None], delays: Sequence[str]) -> None:
        self.columns: dict[int, str] = {}
        self.operators: list[OperatorFingerprint] = []
        self.watermarks: list[Watermark] = []
        self._added = AddedColumns(self.columns)
        self._sources = iter(sources)
        self._delays = list(delays)
        self._shared: dict[int, Node] = {}

    def visit(self, node: Node) -> _Rows:
        if node.kind == "WithCTE":
            *shared, main = node.children
            self._shared |= {int(each.values["id"]): each for each in shared}
            return self.visit(main)
        if node.kind == "CTERelationRef":
            return self._reference(node)
        delay = self._delays.pop(0) if node.kind == "EventTimeWatermark" else ""
        below = [self.visit(child) for child in node.children]
        if not below:
            return self._leaf(node)
        if len(below) == 1:
            return self._above_one(node, below[0], delay)
        return self._union(below) if node.kind == "Union" else self._join(node, below)

    def _leaf(self, node: Node) -> _Rows:
        attributes = list(map(tree_of, node.values.get("output", ())))
        for each in attributes:
            self.columns[id_of(each.values)] = str(each.values["name"])
        stream = (next(self._sources, None),) if node.kind in _STREAMS else ()
        return _Rows(tuple(id_of(each.values) for each in attributes), stream)

    def _reference(self, node: Node) -> _Rows:
        rows = self.visit(self._shared[int(node.values["cteId"])])
        own = [tree_of(each) for each in node.values["output"]]
        for each, column in zip(own, rows.columns, strict=True):
            self.columns[id_of(each.values)] = self.columns[column]
        return dataclasses.replace(rows, columns=tuple(id_of(each.values) for each in own))

    def _above_one(self, node: Node, rows: _Rows, delay: str) -> _Rows:
        act: Callable[[Node, _Rows], _Rows] | None = {
            "Project": self._project,
            "Filter": self._filter,
            "Expand": self._expand,
            "Generate": self._generate,
        }.get(node.kind)
        if act is not None:
            return act(node, rows)
        if node.kind == "EventTimeWatermark":
            column = self._text(node.values["eventTime"])
            if not rows.has_only_markers:
                self.watermarks.append(Watermark(column, delay))
            return rows
        if node.kind == "CollectMetrics":
            self._added.read_records(rows.columns)
        if node.kind in _NEUTRAL:
            return rows
        if rows.is_streaming and (found := self._operator(node, rows)) is not None:
            return found
        return self._other(node, rows)

    # --- what is no operator --------------------------------------------------------------------

    def _project(self, node: Node, rows: _Rows) -> _Rows:
        return dataclasses.replace(rows, columns=self._named(node.values["projectList"]))

    def _named(self, expressions: Iterable[Any]) -> tuple[int, ...]:
        found = []
        for flat in expressions:
            expression = tree_of(flat)
            number = id_of(expression.values)
            name = str(expression.values["name"])
            text = self._added.note(number, name, expression)
            self.columns[number] = text or canonical(expression, self.columns)
            found.append(number)
        return tuple(found)

    def _filter(self, node: Node, rows: _Rows) -> _Rows:
        condition = tree_of(node.values["condition"])
        source = next(iter(rows.sources), None)
        parts = self._added.accepted_by(condition, source)
        if parts is None:  # a filter of the job's own
            parts = [canonical(each, self.columns) for each in conjuncts(condition)]
        texts = set(parts)
        return _filtered(rows, *(each for each in texts if not any(w in each for w in _WINDOWS)))

    def _expand(self, node: Node, rows: _Rows) -> _Rows:
        projections = [
            [self._text(each) for each in projection] for projection in node.values["projections"]
        ]
        own = [id_of(tree_of(each).values) for each in node.values["output"]]
        for number, texts in zip(own, zip(*projections, strict=True), strict=True):
            self.columns[number] = " | ".join(dict.fromkeys(texts))
        rows = dataclasses.replace(rows, columns=tuple(own))
        by_window = any(text.startswith(_WINDOWS) for text in projections[0])
        return rows if by_window else _filtered(rows, f"expand({len(projections)})")

    def _generate(self, node: Node, rows: _Rows) -> _Rows:
        text = self._text(node.values["generator"])
        own = self._declare(node.values["generatorOutput"], f"{text}.")
        return _filtered(dataclasses.replace(rows, columns=(*rows.columns, *own)), text)

    def _other(self, node: Node, rows: _Rows) -> _Rows:
        function = node.values.get("functionExpr") or node.values.get("func")
        name = str(function[0].get("name", "")) if isinstance(function, list) else ""
        if node.kind == "Aggregate":  # of a table that is joined
            columns = self._named(node.values["aggregateExpressions"])
        else:
            columns = self._outputs(node) or rows.columns
        return _filtered(dataclasses.replace(rows, columns=columns), f"{node.kind}({name})")

    def _outputs(self, node: Node) -> tuple[int, ...]:
        values = node.values
        return self._declare(values.get("outputAttrs") or values.get("output") or ())

    def _declare(self, attributes: Iterable[Any], prefix: str = "") -> tuple[int, ...]:
        own = [tree_of(each).values for each in attributes]
        self.columns |= {id_of(each): f"{prefix}{each['name']}" for each in own}
        return tuple(map(id_of, own))

    def _union(self, below: Sequence[_Rows]) -> _Rows:
        real = [rows for rows in below if not rows.has_only_markers] or below
        first = below[0].columns  # by which the columns of a union are known
        texts = [
            dict.fromkeys(self.columns[rows.columns[position]] for rows in real)
            for position in range(len(first))
        ]
        for number, each in zip(first, texts, strict=True):
            self.columns[number] = next(iter(each)) if len(each) == 1 else f"union({_join(each)})"
        return _Rows(
            first,
            tuple(name for rows in real for name in rows.sources),
            frozenset().union(*(rows.filters for rows in real)),
        )

    def _join(self, node: Node, below: Sequence[_Rows]) -> _Rows:
        left, right = below[0], below[-1]
        if node.kind != "Join":
            rows = dataclasses.replace(left, columns=self._outputs(node) or left.columns)
            return self._operator(node, rows) or _filtered(rows, node.kind)
        how = object_name(node.values["joinType"])
        sided = {
            **{each: f"left.{self.columns[each]}" for each in left.columns},
            **{each: f"right.{self.columns[each]}" for each in right.columns},
        }
        condition = node.values.get("condition")
        parts = conjuncts(tree_of(condition)) if condition else ()
        texts = sorted(canonical(each, {**self.columns, **sided}) for each in parts)
        columns = left.columns if how in _ONE_SIDED else (*left.columns, *right.columns)
        filters = left.filters | right.filters
        if left.is_streaming and right.is_streaming:
            self._note(setting=how, condition=tuple(texts), rows=tuple(sorted(filters)))
            filters = frozenset()
        else:
            filters |= {f"{how} join on {' and '.join(texts) or 'nothing'}"}
        return _Rows(columns, (*left.sources, *right.sources), filters)

    # --- operators ------------------------------------------------------------------------------

    def _operator(self, node: Node, rows: _Rows) -> _Rows | None:
        values, filters = node.values, tuple(sorted(rows.filters))
        after = dataclasses.replace(rows, filters=frozenset())
        if node.kind == "Aggregate":
            self._aggregate(node, filters)
            return dataclasses.replace(after, columns=self._named(values["aggregateExpressions"]))
        if node.kind == "Distinct":
            self._note(keys=[self.columns[each] for each in rows.columns], rows=filters)
        elif node.kind in _DISTINCT:
            self._note(keys=map(self._text, values["keys"]), rows=filters)
        elif node.kind == "GlobalLimit":
            self._note(limit=self._text(values["limitExpr"]), rows=filters)
        elif node.kind in _WITH_STATE:
            self._note(
                keys=map(self._text, values.get("groupingAttributes", ())),
                setting=object_name(values.get("timeMode") or values.get("timeout")),
                function=str((values.get("functionExpr") or [{}])[0].get("name", "")),
                rows=filters,
            )
            return dataclasses.replace(after, columns=self._outputs(node))
        else:
            return None
        return after

    def _aggregate(self, node: Node, filters: tuple[str, ...]) -> None:
        keys = list(map(self._text, node.values["groupingExpressions"]))
        functions = (
            canonical(each, self.columns)
            for flat in node.values["aggregateExpressions"]
            for each in tree_of(flat).within()
            if each.kind == "AggregateExpression"
        )
        windows = [key for key in keys if key.startswith(_WINDOWS)]
        self._note(
            keys=[key for key in keys if key not in windows],
            window=_join(windows),
            functions=tuple(dict.fromkeys(functions)),
            rows=tuple(text for text in filters if not _is_of_window(text, windows)),
        )

    def _note(self, *, keys: Iterable[str] = (), **known: Any) -> None:
        self.operators.append(OperatorFingerprint(id=-1, kind="", keys=tuple(keys), **known))

    def _text(self, expression: Any) -> str:
        return canonical(tree_of(expression), self.columns)


def _filtered(rows: _Rows, *texts: str) -> _Rows:
    return dataclasses.replace(rows, filters=rows.filters.union(texts))


def _is_of_window(text: str, windows: Iterable[str]) -> bool:
    """Whether Spark added a condition because rows without a time are in no window."""
    return any(
        text == f"({window.partition('(')[2].rpartition(', ')[0].partition(', ')[0]} is not null)"
        for window in windows
    )


def _join(texts: Iterable[str]) -> str:
    return ", ".join(texts)


_MINOR: Final = re.compile(r"\d+\.\d+")


def fingerprint_of(
    df: DataFrame,
    *,
    output_mode: str,
    sources: Sequence[str | None],
    planned: Sequence[PlannedOperator] | None,
) -> Fingerprint | None:
    """Return the fingerprint of a query: all that its results depend on, given its state."""
    from py4j.protocol import Py4JError

    if planned is None:
        return None
    try:
        plan = redaction.known().redact_plan(analyzed_json(df))
        found = canonical_plan(plan, sources=sources, delays=watermark_delays(df), names=df.columns)
        operators = tuple(
            dataclasses.replace(
                operator,
                id=known.shape.id,
                kind=known.shape.kind,
                key_types=known.key_types,
                columns=known.columns,
            )
            for operator, known in zip(found.operators, planned, strict=True)
        )
    except (Py4JError, LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
        log.info("changes of this query will not be noticed, its plan cannot be read: %r", error)
        return None
    return Fingerprint(
        spark=_minor(df.sparkSession),
        output_mode=output_mode,
        operators=tuple(sorted(operators, key=lambda each: each.id)),
        watermarks=found.watermarks,
        output=found.output,
    )


def _minor(spark: Any) -> str:
    found = _MINOR.match(str(spark.version))
    return found[0] if found else str(spark.version)
