"""A file of SQL as a job, in Spark's own dialect: its parser reads it, and we take its plans.

========================================================  ==========================================
``CREATE TEMPORARY VIEW v (…) USING csv OPTIONS (…)``     a source
``CREATE TEMPORARY VIEW v AS SELECT …``                   a name for a query's part
``INSERT INTO parquet.`/out` [PARTITION (day)] SELECT``   a query, into files, Delta or a table
``CREATE FLOW f AS INSERT INTO …``                        the same, with a name
``CREATE STREAMING TABLE t [USING …] AS SELECT …``        a query, into a table of the catalog
``SET key = value``                                       a setting of the session
========================================================  ==========================================
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.scripts.mapping import (
    WriterCalls,
    query_name,
    refusals_of,
    sink_of,
    unused,
)
from airflow_provider.extensions.scripts.sql_statements import (
    ParameterError,
    Statement,
    fill,
    markers,
    split_statements,
    split_view,
)
from airflow_provider.runtime.base.names import check_name
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.errors.redaction import redact
from airflow_provider.runtime.errors.ways_out import set_conf
from airflow_provider.runtime.jobdir.kafka_offsets import KAFKA_FORMATS
from airflow_provider.runtime.jobdir.read_range import FILE_FORMATS
from airflow_provider.runtime.sinks.files import FORMATS
from airflow_provider.runtime.spark.versions import class_named, dataset_class, explain_syntax

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame

    from airflow_provider.runtime.queries.context import JobContext
    from airflow_provider.runtime.queries.params import Params

_PATHS: Final = frozenset({*FORMATS, "delta", "text"})
_OF_SPARK: Final = "__required_write_privileges__"
_SUBSTITUTION: Final = "spark.sql.variable.substitute"
_UNBOUND: Final = re.compile(r"\[UNBOUND_SQL_PARAMETER\][^:]*: `?(\w+)`?")
_RUN_AT_ONCE: Final = frozenset({"SetCommand", "SetCatalogAndNamespace", "SetNamespaceCommand"})


def check_sql(path: Path) -> None:
    """Refuse a file that has no statement, before Spark is started.

    Raises:
        ConfigError: the message names the file.
    """
    try:
        found = split_statements(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        msg = f"sql {path}: it is not UTF-8: {error}"
        raise ConfigError(msg) from error
    if not found:
        msg = f"sql {path}: there is no statement in it"
        raise ConfigError(msg)


class SqlJob:
    """A file of SQL as a job's function.

    Args:
        path: the file.
        until: how the run is to end, where it says so.
    """

    def __init__(self, path: Path, *, until: str | None) -> None:
        self.__name__ = check_name(unused(path.stem, ()), what="job")
        self._path = path
        self._until = until

    def __call__(self, context: JobContext) -> None:
        """Declare what the file says.

        Raises:
            ConfigError: Spark or the runtime cannot do it; the message begins with file and line.
        """
        text = self._path.read_text(encoding="utf-8")
        file = _File(context, self._until)
        for statement in split_statements(text):
            with self._at(statement, context):
                file.take(fill(statement.text, context.params))
        if not context.queries:
            msg = f"sql {self._path}: it writes nothing; it needs INSERT INTO parquet.`…` SELECT …"
            raise ConfigError(msg)

    @contextlib.contextmanager
    def _at(self, statement: Statement, context: JobContext) -> Iterator[None]:
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        place = f"{self._path.name}:{statement.line}"
        try:
            yield
        except ParameterError as error:
            msg = f"{self._path.name}:{statement.line + error.line}: {error}"
            raise ConfigError(msg) from error
        except ConfigError as error:
            msg = f"{place}: {error}"
            raise type(error)(msg) from error
        except (PySparkException, Py4JJavaError) as error:
            first = next((line for line in str(error).splitlines() if line.strip()), "")
            more = explain_syntax(statement.text, context.spark.version)
            more = more or _explain_markers(statement.text, first, context.params)
            msg = f"{place}: {redact(first)[:300]}{more}"
            raise ConfigError(msg) from error


def _explain_markers(text: str, said: str, params: Params) -> str:
    """Return what to add to an error of a statement with markers; "" for nothing."""
    unbound = _UNBOUND.search(said)
    if unbound is not None:
        try:
            params[unbound[1]]
        except ConfigError as error:  # which names those that are given
            return f"; {error}"
    names = [name for name in markers(text) if name in params]
    if not names:
        return ""
    return (
        f"; :{names[0]} stands for a value in a query, such as v = :{names[0]}; a path is "
        f"'${{{names[0]}}}' in an option, an identifier `${{{names[0]}}}`"
    )


class _File:
    """The declarations of one file.

    Args:
        context: the job's.
        until: how the run is to end.
    """

    def __init__(self, context: JobContext, until: str | None) -> None:
        self._context = context
        self._jvm: Any = context.spark._jvm
        self._until = until
        self._values: dict[str, Any] = {}  # of the statement's markers
        self._formats: dict[str, str | None] = {}  # of tables that were declared without a query
        self._takes: dict[str, Callable[[Any], None]] = {
            "CreateTempViewUsing": self._source,
            "InsertIntoStatement": self._insert,
            "CreateFlowCommand": self._flow,
            "CreateStreamingTable": self._table,
            "CreateStreamingTableAsSelect": self._table_of_query,
        }

    def take(self, text: str) -> None:
        """Declare one statement.

        Raises:
            ConfigError: it has no meaning here.
        """
        head, query = split_view(text)
        plan = self._parse(head if query is None else f"{head} SELECT 1")
        given = [name for name in markers(text) if name in self._context.params]
        self._values = {name: self._literal(name) for name in given}
        kind = str(plan.getClass().getSimpleName()).rstrip("$")
        if kind in self._takes:
            self._takes[kind](plan)
        elif kind == "CreateViewCommand" and _is_temporary(plan):
            self._view(plan, self._parse(query or ""))
        elif kind in _RUN_AT_ONCE:
            self._run(text)
        else:
            msg = (
                f"{kind}: only sources, temporary views, SET and what a stream writes (INSERT "
                "INTO, CREATE FLOW, CREATE STREAMING TABLE) can be in the file of a job; do the "
                "rest before"
            )
            raise ConfigError(msg)

    def _parse(self, text: str) -> Any:
        """Return Spark's plan of a text, in which Spark replaces nothing."""
        session = self._context.spark
        # Spark's parser asks the session that the thread has last used.
        self._jvm.org.apache.spark.sql.SparkSession.setActiveSession(session._jsparkSession)
        session.conf.set(_SUBSTITUTION, "false")
        return session._jsparkSession.sessionState().sqlParser().parsePlan(text)

    def _run(self, text: str) -> None:
        for name in self._values:
            msg = f":{name}: SET and USE take no parameter; use {set_conf('KEY', 'VALUE')}"
            raise ConfigError(msg)
        self._context.spark.sql(text)

    def _literal(self, name: str) -> Any:
        """Return a parameter as a literal of Spark's, of the type that it has."""
        value = self._context.params[name]
        if not isinstance(value, str | int | float | None):
            msg = (
                f":{name} is a text, a number, true, false or null, and the parameter is {value!r}"
            )
            raise ConfigError(msg)
        return self._catalyst("expressions.Literal").apply(value)

    def _catalyst(self, name: str) -> Any:
        """Return what has the methods of a Scala class that belong to no object of it."""
        return class_named(self._jvm, f"org.apache.spark.sql.catalyst.{name}$.MODULE$")

    def _source(self, plan: Any) -> None:
        options = {str(each._1()): str(each._2()) for each in _items(plan.options())}
        path = next((options.pop(key) for key in list(options) if key.lower() == "path"), None)
        schema = plan.userSpecifiedSchema()
        name = str(plan.tableIdent().table())
        provider = str(plan.provider())
        ends = provider.lower() in {*FILE_FORMATS, *(KAFKA_FORMATS if self._until else ())}
        df = self._context.read(
            name,
            format=provider,
            path=path,
            schema=str(schema.get().toDDL()) if schema.isDefined() else None,
            options=options,
            bounded=ends and self._until != "stopped",
        )
        df.createOrReplaceTempView(name)

    def _view(self, plan: Any, query: Any) -> None:
        """Make a view of the query's plan; of one that it makes itself Spark streams nothing."""
        columns = [str(each._1()) for each in _items(plan.userSpecifiedColumns())]
        df = self._frame(query)
        named = df.toDF(*columns) if columns else df
        named.createOrReplaceTempView(str(plan.name().table()))

    def _flow(self, plan: Any) -> None:
        into = plan.flowOperation()
        if into.getClass().getSimpleName() != "InsertIntoStatement":
            msg = "a flow is INSERT INTO … SELECT here; AUTO CDC is not"
            raise ConfigError(msg)
        self._insert(into, name=".".join(_texts(plan.name().nameParts())))

    def _table(self, plan: Any) -> None:
        provider = plan.tableSpec().provider()
        name = ".".join(_texts(plan.name().nameParts()))
        self._formats[name] = str(provider.get()) if provider.isDefined() else None

    def _table_of_query(self, plan: Any) -> None:
        self._table(plan)
        name = ".".join(_texts(plan.name().nameParts()))
        self._write(plan.query(), WriterCalls(table=name, format=self._formats[name]))

    def _insert(self, plan: Any, name: str | None = None) -> None:
        table = plan.table()
        parts = _texts(table.multipartIdentifier())
        given = table.options().asCaseSensitiveMap()
        options = {str(key): str(given[key]) for key in given if str(key) != _OF_SPARK}
        spec = {str(each._1()): each._2() for each in _items(plan.partitionSpec())}
        if plan.overwrite() or any(value.isDefined() for value in spec.values()):
            msg = "a stream adds rows: write INSERT INTO, and PARTITION (column) without a value"
            raise ConfigError(msg)
        if not plan.userSpecifiedCols().isEmpty():
            msg = "name the columns in the SELECT, in whose order and under whose names they are"
            raise ConfigError(msg)
        calls = WriterCalls(options=options, partition_by=tuple(spec), name=name)
        if len(parts) == 2 and parts[0].lower() in _PATHS:  # noqa: PLR2004 - format and path
            calls.format, calls.path = parts[0].lower(), parts[1]
        else:
            calls.table = ".".join(parts)
            calls.format = self._formats.get(calls.table)
        self._write(plan.query(), calls)

    def _write(self, query: Any, calls: WriterCalls) -> None:
        from airflow_provider.extensions.scripts.declaring import has_spark_log

        refused = refusals_of(calls)
        if refused:
            raise ConfigError("; ".join(refused))
        name = query_name(calls, [each.name for each in self._context.queries])
        sink = sink_of(calls, has_spark_log=has_spark_log)
        self._context.write(name, self._frame(query), to=sink)

    def _frame(self, plan: Any) -> DataFrame:
        from pyspark.sql import DataFrame

        session = self._context.spark
        if self._values:
            values = self._jvm.PythonUtils.toScalaMap(self._values)
            plan = self._catalyst("analysis.NameParameterizedQuery").apply(plan, values)
        rows = dataset_class(self._jvm).ofRows(session._jsparkSession, plan)
        return DataFrame(rows, session)


def _is_temporary(plan: Any) -> bool:
    return "Temp" in str(plan.viewType())


def _texts(parts: Any) -> list[str]:
    return [str(each) for each in _items(parts)]


def _items(collection: Any) -> Iterator[Any]:
    iterator = collection.iterator()
    while iterator.hasNext():
        yield iterator.next()
