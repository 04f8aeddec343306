"""The names of tables in a query's text, found by Spark's own parser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_provider.runtime.queries.plan import items

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


class Named(NamedTuple):
    """A table's name in a query's text.

    Attributes:
        parts: the name.
        begin: where it begins.
        end: where it ends.
        has_alias: whether the query gives it another name.
    """

    parts: tuple[str, ...]
    begin: int
    end: int
    has_alias: bool


def tables_named(session: SparkSession, text: str) -> list[Named]:
    """Return the names of tables that a query reads, in any place where SQL has them.

    Names that the query itself gives, by WITH, are among them.

    Raises:
        ParseException: the text is not one query; Spark says where.
    """
    parser = session._jsparkSession.sessionState().sqlParser()
    return sorted(set(_relations(parser.parseQuery(text), has_alias=False)), key=_place)


def _place(named: Named) -> int:
    return named.begin


def _relations(node: Any, *, has_alias: bool) -> Iterator[Named]:
    kind = node.getClass().getSimpleName()
    if kind == "UnresolvedRelation":
        origin = node.origin()
        begin, end = origin.startIndex(), origin.stopIndex()
        if begin.isDefined() and end.isDefined():
            parts = tuple(str(part) for part in items(node.multipartIdentifier()))
            yield Named(parts, int(begin.get()), int(end.get()) + 1, has_alias)
        return
    # A sample stands between a name and its alias, so a name under one cannot be given another.
    below = kind in {"SubqueryAlias", "Sample"}
    for child in items(node.children()):
        yield from _relations(child, has_alias=below)
    if kind == "UnresolvedWith":  # the queries that WITH names
        for inner in items(node.innerChildren()):
            yield from _relations(inner, has_alias=False)
    for inner in items(node.subqueries()):
        yield from _relations(inner, has_alias=False)
