"""SQL over state: ``SELECT … FROM daily.keyed_state``.

Spark's parser finds the names of tables. Each that is one of ours becomes a temporary view, called
by its full name, and takes its place in the text: no catalog is needed, nothing is written.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.queries.names import Named, tables_named
from airflow_provider.runtime.state.reading import reason_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

    from airflow_provider.runtime.state.contents import QueryState, State, TableAddress
    from airflow_provider.runtime.state.reading import StateReader

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
