"""Differences between two states, and the growth of a job's state over its savepoints."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.state_tools.contents import (
    PARTITION,
    SOURCES,
    TableKind,
    unique_names,
)
from airflow_provider.extensions.state_tools.open_state import open_state
from airflow_provider.extensions.state_tools.reader import StateReader, spark_errors
from airflow_provider.runtime.errors import ConfigError, refusing
from airflow_provider.runtime.jobdir.layout import known_job
from airflow_provider.runtime.savepoints.catalog import find_savepoints

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

    from airflow_provider.extensions.state_tools.contents import QueryState, TableAddress
    from airflow_provider.runtime.savepoints.catalog import Savepoint


ADDED, REMOVED, CHANGED = "added", "removed", "changed"
CHANGES: Final = (ADDED, REMOVED, CHANGED)
_SAME_FOR_ALL: Final = ("batch", "watermark")  # of sources: would mark each of them as changed


@dataclasses.dataclass(frozen=True)
class TableDiff:
    """The changes of one table.

    Attributes:
        query: the query's name, in the second state.
        frame: one row for each changed key: ``change`` (``added``, ``removed`` or ``changed``), the
            key's columns, and the values ``before`` and ``after``. In tables that may have a row
            several times, the sides of a join, all columns are the key, and the value is the number
            of rows. None if the tables cannot be compared.
        reason: why they cannot.
    """

    query: str
    table: str
    frame: DataFrame | None
    reason: str | None = None

    def counts(self) -> dict[str, int] | None:
        """Return the number of changed keys by the kind of change; this reads both states."""
        if self.frame is None:
            return None
        with spark_errors(f"{self.query}.{self.table}"):
            rows: list[Any] = self.frame.groupBy("change").count().collect()
        found = {row["change"]: row["count"] for row in rows}
        return {change: found.get(change, 0) for change in CHANGES}


def diff_states(
    before: StateReader, after: StateReader, query: str | None = None
) -> list[TableDiff]:
    """Compare two states of one session, table by table.

    Args:
        before: the one.
        after: the other.
        query: compare this query only; None for all that both have. If each state has a single
            query, these are compared whatever their names.

    Raises:
        ConfigError: no such query, or none that both have.
        RefusedCheckpointError: Spark cannot read one of the states.
    """
    return [
        diff
        for one, other in _pairs(before, after, query)
        for diff in _diff_query(before, after, one, other)
    ]


def _pairs(
    before: StateReader, after: StateReader, query: str | None
) -> list[tuple[QueryState, QueryState]]:
    ones, others = before.state.queries, after.state.queries
    if len(ones) == len(others) == 1:
        if query is not None and query not in {*ones, *others}:
            before.state.query(query)
        return [(next(iter(ones.values())), next(iter(others.values())))]
    if query is not None:
        return [(before.state.query(query), after.state.query(query))]
    pairs = [(ones[name], others[name]) for name in ones if name in others]
    if not pairs:
        raise ConfigError(
            f"{before.state.url} has the queries {', '.join(ones)}, and {after.state.url} has "
            f"{', '.join(others)}: there is none that both have"
        )
    return pairs


def _diff_query(
    before: StateReader, after: StateReader, one: QueryState, other: QueryState
) -> Iterator[TableDiff]:
    ones = {_identity(address): address for address in one.tables()}
    others = {_identity(address): address for address in other.tables()}
    for identity in dict.fromkeys([*ones, *others]):
        first, second = ones.get(identity), others.get(identity)
        if first is None or second is None:
            name = (first or second or one.table(SOURCES)).name
            location = (after if second is None else before).state.url
            yield TableDiff(other.name, name, None, f"{location} has no such table")
            continue
        left, right = _Side.of(before, one, first), _Side.of(after, other, second)
        if left.columns != right.columns:
            yield TableDiff(other.name, second.name, None, "its columns are not the same")
        else:
            yield TableDiff(other.name, second.name, _changes(left, right))


def _identity(address: TableAddress) -> tuple[int | None, str]:
    if address.operator is None or address.table is None:
        return None, SOURCES
    return address.operator.id, address.table.name


@dataclasses.dataclass(frozen=True)
class _Side:
    frame: DataFrame
    keys: tuple[str, ...]
    values: tuple[str, ...]
    is_bag: bool

    @classmethod
    def of(cls, reader: StateReader, query: QueryState, address: TableAddress) -> _Side:
        frame, keys = reader.read_with_keys(query, address)
        left_out = _SAME_FOR_ALL if address.table is None else (PARTITION,)
        is_bag = address.table is not None and address.table.kind is TableKind.JOIN_SIDE
        others = tuple(n for n in frame.columns if n not in keys and n not in left_out)
        if is_bag:
            return cls(frame, (*keys, *others), (), is_bag=True)
        return cls(frame, keys, others, is_bag=False)

    @property
    def columns(self) -> list[tuple[str, str]]:
        types = {field.name: field.dataType.simpleString() for field in self.frame.schema.fields}
        return [(name, types[name]) for name in (*self.keys, *self.values)]

    def compared(self) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

        rows = self.frame
        key = _pack(rows, self.keys)
        kind = _type_of(rows, key)
        ids = [_comparable(key, kind).alias("id")] if _has_maps(kind) else []
        if not self.is_bag:
            return rows.select(*ids, key.alias("key"), _pack(rows, self.values).alias("value"))
        how_often = F.struct(F.count("*").alias("rows")).alias("value")
        if ids:
            return rows.groupBy(*ids).agg(F.first(key).alias("key"), how_often)
        return rows.groupBy(key.alias("key")).agg(how_often)


def _changes(left: _Side, right: _Side) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

    one, other = left.compared().alias("one"), right.compared().alias("other")
    location = "id" if "id" in one.columns else "key"
    ids = [F.col(f"{side}.{location}") for side in ("one", "other")]
    both = one.join(other, ids[0].eqNullSafe(ids[1]), "full_outer")
    kind = one.schema["value"].dataType
    values = [F.col(f"{side}.value") for side in ("one", "other")]
    forms = [_comparable(value, kind) for value in values]
    change = (
        F.when(ids[0].isNull(), ADDED)
        .when(ids[1].isNull(), REMOVED)
        .when(~forms[0].eqNullSafe(forms[1]), CHANGED)
    )
    key = F.coalesce(F.col("other.key"), F.col("one.key"))
    names = unique_names(["change", *left.keys, "before", "after"])
    shown = [value.alias(name) for value, name in zip(values, names[-2:], strict=True)]
    return both.select(
        change.alias("change"),
        *(key[name].alias(new) for name, new in zip(left.keys, names[1:-2], strict=True)),
        *(shown if left.values or left.is_bag else []),
    ).where(F.col("change").isNotNull())


def _pack(rows: DataFrame, names: Sequence[str]) -> Column:
    """Return columns as one; without any a constant, since a struct cannot be empty."""
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

    columns = [rows[f"`{name}`"] for name in names]
    return F.struct(*(columns or [F.lit(1).alias("nothing")]))


def _type_of(rows: DataFrame, column: Column) -> DataType:
    return rows.select(column.alias("it")).schema["it"].dataType


def _has_maps(kind: DataType) -> bool:
    return "map<" in kind.simpleString()


def _comparable(column: Column, kind: DataType) -> Column:
    """Return a column in a form that Spark can compare: it cannot compare maps."""
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
    from pyspark.sql.types import ArrayType, MapType, StructType

    if not _has_maps(kind):
        return column
    if isinstance(kind, StructType):
        parts = [_comparable(column[f.name], f.dataType).alias(f.name) for f in kind.fields]
        return F.when(column.isNotNull(), F.struct(*parts))
    if isinstance(kind, ArrayType):
        return F.transform(column, lambda each: _comparable(each, kind.elementType))
    if isinstance(kind, MapType):
        entries = ArrayType(StructType().add("key", kind.keyType).add("value", kind.valueType))
        return F.array_sort(_comparable(F.map_entries(column), entries))
    return column


log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Measure:
    """The size of one stateful operator in one savepoint: of its files, and its tables' rows."""

    savepoint: str
    taken: str
    query: str
    batch: int
    operator: str
    kind: str
    bytes: int
    rows: int | None


def state_growth(job_dir: str, spark: SparkSession | None = None) -> list[Measure]:
    """Measure the state in each savepoint of a job, oldest first.

    Without *spark* rows are not counted: no record knows their number.
    """
    directory = known_job(job_dir)
    with refusing(directory.url, "read"):
        savepoints, others = find_savepoints(directory.storage.at("savepoints"))
    for other in others:
        if other.damage is not None:
            log.warning("%s: not measured: %s", other.location.url, other.damage)
    if not savepoints:
        raise ConfigError(
            f"{directory.url}: the job has no savepoint; take some with "
            "'spark-stream savepoint take'"
        )
    return [measure for each in savepoints for measure in _measures(each, spark)]


def _measures(savepoint: Savepoint, spark: SparkSession | None) -> Iterator[Measure]:
    state = open_state(savepoint.url)
    reader = StateReader(spark, state) if spark is not None else None
    for query in state.queries.values():
        for operator in query.operators:
            rows = None
            if reader is not None:
                with spark_errors(query.checkpoint):
                    rows = sum(
                        reader.read(query, address).count()
                        for address in query.tables()
                        if address.operator is operator
                    )
            yield Measure(
                savepoint=savepoint.folder,
                taken=savepoint.record.taken,
                query=query.name,
                batch=query.batch,
                operator=operator.name,
                kind=operator.kind,
                bytes=operator.bytes,
                rows=rows,
            )
