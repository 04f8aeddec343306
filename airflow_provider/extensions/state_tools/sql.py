"""SQL over state: ``SELECT … FROM daily.keyed_state``.

Spark's parser finds the names of tables. Each that is one of ours becomes a temporary view, called
by its full name, and takes its place in the text: no catalog is needed, nothing is written.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow_provider.extensions.state_tools.reader import reason_of
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.queries.plan import items

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from airflow_provider.extensions.state_tools.contents import QueryState, State, TableAddress
    from airflow_provider.extensions.state_tools.reader import StateReader


_TIME_ZONE: Final = "spark.sql.session.timeZone"


def query_state(reader: StateReader, text: str) -> DataFrame:
    """Return the result of a SQL query over the tables of state.

    A table is called ``<query>.<table>``, with several stateful operators
    ``<query>.<operator>.<table>``; one whose name no other query has can do without the query's.

    Args:
        reader: of the state; the views are made in a session of their own.
        text: one query of Spark's SQL; no other statement.

    Raises:
        ConfigError: Spark does not understand it, or there is no such table.
    """
    session = reader.spark.newSession()
    session.conf.set(_TIME_ZONE, str(reader.spark.conf.get(_TIME_ZONE)))
    with sql_errors(reader.state):
        found = tables_named(session, text)
        return session.sql(_with_views(reader.in_session(session), text, found))


@contextlib.contextmanager
def sql_errors(state: State) -> Iterator[None]:
    """Turn Spark's errors of a query into one line.

    Raises:
        ConfigError: with what Spark says; of a table that is not there, also with those that are.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        msg = f"SQL: {reason_of(error)}"
        if "TABLE_OR_VIEW_NOT_FOUND" in msg:
            names = [f"{q.name}.{a.name}" for q in state.queries.values() for a in q.tables()]
            msg = f"{msg.partition(' Verify')[0]} The tables there: {', '.join(names)}"
        raise ConfigError(msg) from error


def _with_views(reader: StateReader, text: str, found: list[Named]) -> str:
    """Return the text with our views in place of our tables."""
    for named in reversed(found):  # what is replaced moves what is behind it
        target = _target(reader.state, named.parts)
        if target is None:
            continue
        query, address = target
        single = len(named.parts) == 1
        full = named.parts[0] if single else f"{query.name}.{address.name}"
        view = f"`{full.replace('`', '``')}`"
        reader.read(query, address).createOrReplaceTempView(view)
        if single:
            continue
        is_alone = re.search(r"\btable\s+$", text[: named.begin], re.IGNORECASE)
        alias = "" if named.has_alias or is_alone else f" AS `{named.parts[-1]}`"
        text = f"{text[: named.begin]}{view}{alias}{text[named.end :]}"
    return text


def _target(state: State, parts: tuple[str, ...]) -> tuple[QueryState, TableAddress] | None:
    """Return the table that a name means; None for one that is not ours.

    Raises:
        ConfigError: it begins with a query's name, and the query has no such table.
    """
    if len(parts) == 1:
        return _the_only(state, parts[0])
    by_name = {query.name.lower(): query for query in state.queries.values()}
    query = by_name.get(parts[0].lower())
    if query is not None:
        return query, query.table(".".join(parts[1:]))
    return _the_only(state, ".".join(parts))


def _the_only(state: State, name: str) -> tuple[QueryState, TableAddress] | None:
    found = [
        (query, address)
        for query in state.queries.values()
        for address in query.tables()
        if name.lower() in {address.name.lower(), f"{query.name}.{address.name}".lower()}
    ]
    return found[0] if len(found) == 1 else None


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
    # A sample is between a name and its alias, so a name under one cannot be given another.
    below = kind in {"SubqueryAlias", "Sample"}
    for child in items(node.children()):
        yield from _relations(child, has_alias=below)
    if kind == "UnresolvedWith":  # the queries that WITH names
        for inner in items(node.innerChildren()):
            yield from _relations(inner, has_alias=False)
    for inner in items(node.subqueries()):
        yield from _relations(inner, has_alias=False)
