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
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow_provider.extensions.scripts.mapping import (
    WriterCalls,
    query_name,
    refusals_of,
    sink_of,
    unused,
)
from airflow_provider.runtime.api.sources import TimedSource
from airflow_provider.runtime.base.names import check_name
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.errors.fixes import set_conf, set_param
from airflow_provider.runtime.errors.redaction import redact
from airflow_provider.runtime.sinks.files import FORMATS
from airflow_provider.runtime.sources.files import FilesSource
from airflow_provider.runtime.sources.shorthand import source_of_format
from airflow_provider.runtime.spark.versions import class_named, dataset_class, explain_syntax

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
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
    """Refuse a file without a statement, before Spark is started."""
    try:
        found = split_statements(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"sql {path}: it is not UTF-8: {error}") from error
    if not found:
        raise ConfigError(f"sql {path}: there is no statement in it")


class SqlJob:
    """A file of SQL as a job's function."""

    def __init__(self, path: Path, *, until: str | None) -> None:
        self.__name__ = check_name(unused(path.stem, ()), what="job")
        self._path = path
        self._until = until

    def __call__(self, context: JobContext) -> None:
        text = self._path.read_text(encoding="utf-8")
        file = _File(context, self._until)
        for statement in split_statements(text):
            with self._at(statement, context):
                file.take(fill(statement.text, context.params))
        if not context.queries:
            raise ConfigError(
                f"sql {self._path}: it writes nothing; it needs INSERT INTO parquet.`…` SELECT …"
            )

    @contextlib.contextmanager
    def _at(self, statement: Statement, context: JobContext) -> Iterator[None]:
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        location = f"{self._path.name}:{statement.line}"
        try:
            yield
        except ParameterError as error:
            raise ConfigError(
                f"{self._path.name}:{statement.line + error.line}: {error}"
            ) from error
        except ConfigError as error:
            raise type(error)(f"{location}: {error}") from error
        except (PySparkException, Py4JJavaError) as error:
            first = next((line for line in str(error).splitlines() if line.strip()), "")
            more = explain_syntax(statement.text, context.spark.version)
            more = more or _explain_markers(statement.text, first, context.params)
            raise ConfigError(f"{location}: {redact(first)[:300]}{more}") from error


def _explain_markers(text: str, said: str, params: Params) -> str:
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
            raise ConfigError(
                f"{kind}: only sources, temporary views, SET and what a stream writes (INSERT "
                "INTO, CREATE FLOW, CREATE STREAMING TABLE) can be in the file of a job; do the "
                "rest before"
            )

    def _parse(self, text: str) -> Any:
        session = self._context.spark
        # Spark's parser asks the session that the thread has last used.
        self._jvm.org.apache.spark.sql.SparkSession.setActiveSession(session._jsparkSession)
        session.conf.set(_SUBSTITUTION, "false")
        return session._jsparkSession.sessionState().sqlParser().parsePlan(text)

    def _run(self, text: str) -> None:
        for name in self._values:
            raise ConfigError(
                f":{name}: SET and USE take no parameter; use {set_conf('KEY', 'VALUE')}"
            )
        self._context.spark.sql(text)

    def _literal(self, name: str) -> Any:
        value = self._context.params[name]
        if not isinstance(value, str | int | float | None):
            raise ConfigError(
                f":{name} is a text, a number, true, false or null, and the parameter is {value!r}"
            )
        return self._catalyst("expressions.Literal").apply(value)

    def _catalyst(self, name: str) -> Any:
        return class_named(self._jvm, f"org.apache.spark.sql.catalyst.{name}$.MODULE$")

    def _source(self, plan: Any) -> None:
        options = {str(each._1()): str(each._2()) for each in _items(plan.options())}
        path = next((options.pop(key) for key in list(options) if key.lower() == "path"), None)
        schema = plan.userSpecifiedSchema()
        name = str(plan.tableIdent().table())
        provider = str(plan.provider())
        made = source_of_format(provider)
        ends = isinstance(made, FilesSource) or (
            bool(self._until) and isinstance(made, TimedSource)
        )
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
        """Make a view of the query's plan: from a view that Spark makes, it streams nothing."""
        columns = [str(each._1()) for each in _items(plan.userSpecifiedColumns())]
        df = self._frame(query)
        named = df.toDF(*columns) if columns else df
        named.createOrReplaceTempView(str(plan.name().table()))

    def _flow(self, plan: Any) -> None:
        into = plan.flowOperation()
        if into.getClass().getSimpleName() != "InsertIntoStatement":
            raise ConfigError("a flow is INSERT INTO … SELECT here; AUTO CDC is not")
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
            raise ConfigError(
                "a stream adds rows: write INSERT INTO, and PARTITION (column) without a value"
            )
        if not plan.userSpecifiedCols().isEmpty():
            raise ConfigError(
                "name the columns in the SELECT, in whose order and under whose names they are"
            )
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


# What may hold a semicolon that ends nothing, and words; the first that matches counts.
_TOKEN: Final = re.compile(
    r"""--[^\n]* | /\*.*?\*/ | '(?:\\.|[^'\\])*' | "(?:\\.|[^"\\])*" | `(?:``|[^`])*`
    | \$\{[^}]*\} | \w+ | .""",
    re.DOTALL | re.VERBOSE,
)
_COMMENTS: Final = ("--", "/*")
_NAME: Final = "[A-Za-z_][A-Za-z0-9_]*"
# A parameter's, or one of Spark's own, such as ${env:HOME}.
_VARIABLE: Final = re.compile(rf"\$\{{({_NAME}(?::[^}}]*)?)\}}")
_MARKER: Final = re.compile(rf"(?<![\w:\])']):({_NAME})")
_UNSAFE: Final = re.compile(r"""['"`\\\x00-\x1f]|\$\{""")
_OPTIONS: Final = frozenset({"OPTIONS", "WITH", "TBLPROPERTIES"})
_SET: Final = re.compile(r"SET\b", re.IGNORECASE)
_VIEW: Final = re.compile(r"CREATE\s+(\w+\s+)*?VIEW\b", re.IGNORECASE)


class Statement(NamedTuple):
    """One statement, without comments and semicolon, and the line of its first word."""

    line: int
    text: str


def split_statements(text: str) -> list[Statement]:
    """Return the statements of a file; what only comments is none."""
    found: list[Statement] = []
    parts: list[str] = []
    begun, line = 0, 1
    for part in (match[0] for match in _TOKEN.finditer(text)):
        if part == ";":
            found += _statement(begun, parts)
            begun, parts = 0, []
        else:
            blank = part.startswith(_COMMENTS) or part.isspace()
            if not blank and not begun:
                begun = line
            # Lines stay what they are: Spark's errors name them.
            parts.append("\n" * part.count("\n") or " " if blank and part[0] in "-/" else part)
        line += part.count("\n")
    return [*found, *_statement(begun, parts)]


def _statement(line: int, parts: list[str]) -> Iterator[Statement]:
    text = "".join(parts).strip()
    if text:
        yield Statement(line, text)


class ParameterError(ConfigError):
    """A statement names a parameter, in a line of it, where none is allowed."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


def fill(text: str, params: Mapping[str, object]) -> str:
    """Return a statement with the values of its parameters ``${name}`` in paths and identifiers.

    A path is in the quotes of an option or of ``LOCATION``, an identifier in backticks. A value is
    a marker, ``:name``, which Spark binds: it never becomes part of the statement's text.

    Raises:
        ParameterError: a parameter is elsewhere, or a value has a quote in it.
        ConfigError: a parameter is not given, if *params* say so.
    """
    parts: list[str] = []
    is_set = _SET.match(text) is not None
    before, depth = "", 0  # of the parentheses of OPTIONS (…), WITH (…)
    for match in _TOKEN.finditer(text):
        part = match[0]
        is_option = depth > 0 or before.upper() == "LOCATION"
        is_location = part[0] == "`" or (part[0] in "'\"" and is_option)
        for found in _VARIABLE.finditer(part):
            line = text.count("\n", 0, match.start() + found.start())
            if is_set or not is_location:
                raise ParameterError(_fix(found[1], is_set=is_set), line)
            _check_value(found[1], params[found[1]], line)
        parts.append(_VARIABLE.sub(lambda found: str(params[found[1]]), part))
        if part == "(" and (depth or before.upper() in _OPTIONS):
            depth += 1
        depth -= part == ")" and depth > 0
        before = before if part.isspace() else part
    return "".join(parts)


def _fix(name: str, *, is_set: bool) -> str:
    text = f"${{{name}}}"
    if ":" in name:
        return (
            f"{text}: variables of Spark are not replaced here; {set_param('NAME')}, and write "
            ":NAME for the value"
        )
    if is_set:
        return f"{text}: SET takes no parameter; use {set_conf('KEY', 'VALUE')}"
    return (
        f"{text} is a path, in the quotes of an option, or an identifier in backticks; for a value "
        f"write :{name}, without quotes"
    )


def _check_value(name: str, value: object, line: int) -> None:
    """Refuse a value that could end its quotes, or be replaced again."""
    if not isinstance(value, str | int | float):
        kind = type(value).__name__
        raise ParameterError(
            f"${{{name}}}: a path or an identifier is text, and the parameter is a {kind}", line
        )
    found = _UNSAFE.search(str(value))
    if found is not None:
        raise ParameterError(
            f"${{{name}}}: the parameter has {found[0]!r} in it, which a path or an identifier "
            f"here cannot have; choose another one",
            line,
        )


def markers(text: str) -> list[str]:
    """Return the names of a statement's markers, ``:name``; a cast, ``::``, is none."""
    code = "".join(m[0] if m[0][0] not in "'\"`" else "''" for m in _TOKEN.finditer(text))
    return list(dict.fromkeys(_MARKER.findall(code)))


def split_view(text: str) -> tuple[str, str | None]:
    """Return a statement that makes a view up to its ``AS``, and its query; None for others."""
    if not _VIEW.match(text):
        return text, None
    depth = 0
    for match in _TOKEN.finditer(text):
        depth += {"(": 1, ")": -1}.get(match[0], 0)
        if depth == 0 and match[0].upper() == "AS":
            return text[: match.end()], text[match.end() :]
    return text, None
