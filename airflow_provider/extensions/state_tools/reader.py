"""State as DataFrames, through Spark's own ``statestore`` reader, and as tables of SQL."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow_provider.extensions.state_tools.contents import SOURCE_COLUMNS, SOURCE_KEYS, lay_out
from airflow_provider.runtime.checkpoint.operators import readdress
from airflow_provider.runtime.errors import ConfigError, RefusedCheckpointError
from airflow_provider.runtime.queries.plan import items
from airflow_provider.runtime.queries.spark_state import prepare_state
from airflow_provider.runtime.spark.versions import Ability, check_can
from airflow_provider.runtime.storage.open import has_escapes, local_path_of, spark_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import StructType

    from airflow_provider.extensions.state_tools.contents import (
        Column,
        OperatorState,
        QueryState,
        State,
        TableAddress,
    )
    from airflow_provider.runtime.checkpoint.operators import Field


_FORMAT: Final = "spark.sql.streaming.stateStore.checkpointFormatVersion"


class _Locations:
    """The addresses at which Spark reads the queries; views of moved ones are removed with this."""

    def __init__(self) -> None:
        self._found: dict[str, str] = {}

    def of(self, query: QueryState) -> str:
        if query.name not in self._found:
            self._found[query.name] = self._readable(query)
        return self._found[query.name]

    def _readable(self, query: QueryState) -> str:
        if query.holders:
            raise ConfigError(
                f"{query.checkpoint}: some of its files are held by the savepoints beside it "
                f"({', '.join(query.holders)}), where Spark does not look for them; fork it into a "
                "job directory, and read that"
            )
        if is_at_home(query) and not has_escapes(query.checkpoint):
            return spark_url(query.checkpoint)
        view = link_view(query)
        weakref.finalize(self, shutil.rmtree, view, ignore_errors=True)
        return spark_url(view)


class StateReader:
    """Reads the state that :func:`~.open_state.open_state` has found.

    DataFrames are read when they are used: keep the reader until then.
    """

    def __init__(self, spark: SparkSession, state: State) -> None:
        check_can(spark, Ability.READ_STATE)
        prepare_state(spark)
        self.spark = spark
        self.state = state
        self._locations = _Locations()

    def in_session(self, spark: SparkSession) -> StateReader:
        """Return a reader of the same state in another session; this one must be kept, too."""
        other = StateReader(spark, self.state)
        other._locations = self._locations
        return other

    def table(self, query: str, name: str) -> DataFrame:
        """Return a table of a query: key columns, then values, then ``partition_id``."""
        found = self.state.query(query)
        return self.read(found, found.table(name))

    def read(self, query: QueryState, address: TableAddress) -> DataFrame:
        return self.read_with_keys(query, address)[0]

    def read_with_keys(
        self, query: QueryState, address: TableAddress
    ) -> tuple[DataFrame, tuple[str, ...]]:
        if address.table is None or address.operator is None:
            return self._sources(query), SOURCE_KEYS
        reader = self.spark.read.format("statestore").options(**address.table.options)
        reader = reader.option("operatorId", address.operator.id).option("batchId", query.batch)
        with spark_errors(query.checkpoint):
            raw = self._load(reader, query)
            columns = lay_out(address.table, fields_of(raw))
            return _tidy(raw, columns), tuple(each.name for each in columns if each.is_key)

    def _load(self, reader: DataFrameReader, query: QueryState) -> DataFrame:
        """Load state. Its files describe it, except for the format of the checkpoint."""
        before = self.spark.conf.get(_FORMAT)
        self.spark.conf.set(_FORMAT, str(query.format_version))
        try:
            return reader.load(self._locations.of(query))
        finally:
            self.spark.conf.set(_FORMAT, str(before))

    def _sources(self, query: QueryState) -> DataFrame:
        rows = [
            (
                source.id,
                source.name,
                None if source.offset is None else json.dumps(source.offset),
                source.finish_state,
                query.batch,
                query.watermark,
            )
            for source in query.sources
        ]
        columns = ", ".join(f"`{name}` {kind}" for name, kind in SOURCE_COLUMNS)
        return self.spark.createDataFrame(rows, columns)


@contextlib.contextmanager
def spark_errors(where: str) -> Iterator[None]:
    """Turn Spark's errors into a RefusedCheckpointError of one line."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise RefusedCheckpointError(
            f"{where}: Spark cannot read this state: {reason_of(error)}"
        ) from error


def reason_of(error: Exception) -> str:
    """Return the first line of Spark's message; for a failed job, of the innermost cause."""
    thrown = getattr(error, "java_exception", None)
    text = str(thrown.toString()) if thrown is not None else str(error)
    return next((line for line in text.splitlines() if line.strip()), type(error).__name__)


def fields_of(frame: DataFrame) -> list[Field]:
    """Return a DataFrame's columns as JSON has them."""
    fields: list[Field] = frame.schema.jsonValue()["fields"]
    return fields


def _tidy(frame: DataFrame, columns: Sequence[Column]) -> DataFrame:
    """Return the columns of a table from those of Spark's reader.

    Where two fields of a struct have one name, as the values of two sums have, Spark 4.3 reads one
    of them for both, even by ``value.*``. So each is first given the name of its location.
    """
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
    from pyspark.sql.types import StructType

    placed = []
    for field in frame.schema.fields:
        column = F.col(f"`{field.name}`")
        if isinstance(field.dataType, StructType) and field.dataType.fields:
            column = column.cast(_by_location(field.dataType)).alias(field.name)
        placed.append(column)
    by_name = {field["name"]: field for field in fields_of(frame)}
    return frame.select(*placed).select(
        *(_column(F, by_name, each).alias(each.name) for each in columns)
    )


def _by_location(kind: StructType) -> StructType:
    from pyspark.sql.types import StructField, StructType

    return StructType(
        [StructField(f"c{position}", each.dataType) for position, each in enumerate(kind.fields)]
    )


def _column(functions: Any, fields: Mapping[str, Field], column: Column) -> Any:
    name, *locations = column.path
    found = functions.col(f"`{name}`")
    if not locations:
        return found
    found = found.getField(f"c{locations[0]}")
    if len(locations) == 1:
        return found
    inner = fields[name]["type"]["fields"][locations[0]]["type"]["fields"]
    return found.getField(inner[locations[1]]["name"])


def is_at_home(query: QueryState) -> bool:
    """Whether the query's metadata names the location where its files are."""
    here = _path_of(spark_url(query.checkpoint))
    return all(_path_of(root) == here for each in query.operators for root in each.roots)


def link_view(query: QueryState) -> str:
    """Make a view, by links, of a query's checkpoint; the caller removes its folder."""
    local = local_path_of(query.checkpoint)
    if local is None:
        why = "Spark finds no state at an address with letters that a URI must escape"
        if not is_at_home(query):
            why = "it was moved, and its metadata names the location of its schemas"
        raise ConfigError(
            f"{query.checkpoint}: {why}; restore or fork it into a job directory, and read that"
        )
    root = Path(tempfile.mkdtemp(prefix="spark-stream-state-"))
    try:
        moved = {each.id: each for each in query.operators if each.metadata_path is not None}
        _link_all(Path(local), root, but={"state"})
        _link_all(Path(local, "state"), root / "state", but={str(number) for number in moved})
        for number, operator in moved.items():
            _link_operator(Path(local), root, number, operator)
    except BaseException:
        shutil.rmtree(root)
        raise
    return str(root)


def _link_operator(checkpoint: Path, root: Path, number: int, operator: OperatorState) -> None:
    own, view = checkpoint / "state" / str(number), root / "state" / str(number)
    _link_all(own, view, but={"_metadata"})
    path = str(operator.metadata_path)
    written = root / path
    written.parent.mkdir(parents=True)
    data = (checkpoint / path).read_bytes()
    written.write_bytes(readdress(data, root=f"file:{root}", where=f"{checkpoint}/{path}"))


def _link_all(folder: Path, view: Path, *, but: set[str]) -> None:
    view.mkdir(exist_ok=True)
    for entry in os.scandir(folder):
        if entry.name not in but:
            (view / entry.name).symlink_to(entry.path)


def _path_of(address: str) -> str:
    return re.sub(r"^file:/*", "/", address).rstrip("/")


_TIME_ZONE: Final = "spark.sql.session.timeZone"


def query_state(reader: StateReader, text: str) -> DataFrame:
    """Return the result of a SQL query over state: ``SELECT … FROM daily.keyed_state``.

    Spark's parser finds the names of tables. Each that is one of the state's becomes a temporary
    view, called by its full name, and takes its place in the text: no catalog is needed, nothing is
    written. A table is called ``<query>.<table>``, with several stateful operators
    ``<query>.<operator>.<table>``; a name that no other query has can do without the query's.

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
    """Turn Spark's errors into a ConfigError of one line, with the tables if one is missing."""
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
    """A table's name in a query's text, from *begin* to *end*, and whether the query renames it."""

    parts: tuple[str, ...]
    begin: int
    end: int
    has_alias: bool


def tables_named(session: SparkSession, text: str) -> list[Named]:
    """Return the names of tables that a query reads, wherever SQL has them, also those of WITH."""
    parser = session._jsparkSession.sessionState().sqlParser()
    return sorted(set(_relations(parser.parseQuery(text), has_alias=False)), key=_location)


def _location(named: Named) -> int:
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
