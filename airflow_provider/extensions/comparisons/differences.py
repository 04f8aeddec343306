"""Difference of two tables as multisets of rows, computed by Spark and kept in a scratch folder."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from airflow_provider.extensions.comparisons.published import quoted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

SHOWN: Final = 10
_MOST_CHARS: Final = 300
_SURPLUS: Final = "surplus"


@dataclasses.dataclass(frozen=True)
class Difference:
    """How two tables differ; a row that one has more often counts as often.

    Attributes:
        first_rows: the rows of the first table.
        second_rows: those of the second.
        only_first: the rows that only the first table has.
        only_second: those that only the second has.
        first_examples: some of *only_first*, as JSON.
        second_examples: some of *only_second*.
        by_column: of rows with the same key that differ, how many differ in a column.
        notes: what was not compared, a sentence each.
    """

    first_rows: int
    second_rows: int
    only_first: int
    only_second: int
    first_examples: tuple[str, ...] = ()
    second_examples: tuple[str, ...] = ()
    by_column: dict[str, int] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def is_none(self) -> bool:
        return not self.only_first and not self.only_second


def find_difference(
    first: DataFrame, second: DataFrame, folder: Path, keys: Sequence[str] = ()
) -> Difference:
    """Compare two tables by the columns that both have.

    Rows are grouped over all columns, so the order of rows and of the entries of maps means
    nothing; floating-point numbers are equal only if all their digits are.

    Args:
        first: one table.
        second: the other one.
        folder: where the rows that differ are written; it does not exist yet.
        keys: the columns of a key, for :attr:`Difference.by_column`.
    """
    from pyspark.sql import functions as sf

    spark = first.sparkSession
    names = [name for name in first.columns if name in second.columns]
    as_text = {n for n in names if first.schema[n].dataType != second.schema[n].dataType}
    columns = [f"c{number}" for number in range(len(names))]

    def sided(df: DataFrame, side: int) -> DataFrame:
        values = [
            _comparable(df, name, is_text=name in as_text).alias(column)
            for name, column in zip(names, columns, strict=True)
        ]
        return df.select(*values, sf.lit(side).cast("long").alias(_SURPLUS))

    both = sided(first, 1).unionByName(sided(second, -1))
    surplus = both.groupBy(*columns).agg(sf.sum(_SURPLUS).alias(_SURPLUS))
    surplus.where(sf.col(_SURPLUS) != 0).write.parquet(str(folder))
    found = spark.read.schema(surplus.schema).parquet(str(folder))
    only_first, only_second = _sums(found)
    by_key = {key: columns[names.index(key)] for key in keys if key in names}
    return Difference(
        first_rows=first.count(),
        second_rows=second.count(),
        only_first=only_first,
        only_second=only_second,
        first_examples=_examples(found.where(sf.col(_SURPLUS) > 0), names, columns),
        second_examples=_examples(found.where(sf.col(_SURPLUS) < 0), names, columns),
        by_column=_by_column(found, dict(zip(columns, names, strict=True)), [*by_key.values()]),
        notes=tuple(_notes(first.schema, second.schema, as_text)),
    )


def _sums(found: DataFrame) -> tuple[int, int]:
    from pyspark.sql import functions as sf

    surplus = sf.col(_SURPLUS)
    row = found.agg(
        sf.sum(sf.when(surplus > 0, surplus)).alias("first"),
        sf.sum(sf.when(surplus < 0, -surplus)).alias("second"),
    ).first()
    return (int(row["first"] or 0), int(row["second"] or 0)) if row is not None else (0, 0)


def _examples(rows: DataFrame, names: Sequence[str], columns: Sequence[str]) -> tuple[str, ...]:
    from pyspark.sql import functions as sf

    named = (sf.col(column).alias(name) for name, column in zip(names, columns, strict=True))
    text = sf.to_json(sf.struct(*named), {"ignoreNullFields": "false"})
    shown = rows.orderBy(*columns).limit(SHOWN).select(text.alias("row"))
    return tuple(_cut(str(row["row"])) for row in shown.collect())


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARS else f"{text[:_MOST_CHARS]}…"


def _by_column(found: DataFrame, names: dict[str, str], keys: Sequence[str]) -> dict[str, int]:
    """Count by column, of keys that stand once in each table's own rows, those that differ."""
    from pyspark.sql import functions as sf

    others = [column for column in names if column not in keys]
    if not keys or not others:
        return {}
    surplus = sf.col(_SURPLUS)
    once = (sf.sum(sf.when(surplus > 0, surplus)) == 1, sf.sum(sf.when(surplus < 0, -surplus)) == 1)
    differ = [
        (
            ~sf.max(sf.when(surplus > 0, sf.struct(column))).eqNullSafe(
                sf.max(sf.when(surplus < 0, sf.struct(column)))
            )
        ).alias(column)
        for column in others
    ]
    pairs = found.groupBy(*keys).agg((once[0] & once[1]).alias("is_pair"), *differ)
    sums = [sf.sum(sf.col(column).cast("long")).alias(column) for column in others]
    row = pairs.where("is_pair").agg(*sums).first()
    counts = {names[each]: int(row[each] or 0) for each in others} if row is not None else {}
    return {name: count for name, count in counts.items() if count}


def _notes(first: StructType, second: StructType, as_text: set[str]) -> list[str]:
    notes = []
    for ours, theirs, where in ((first, second, "first"), (second, first, "second")):
        only = [name for name in ours.names if name not in theirs.names]
        if only:
            notes.append(f"only the {where} has the columns {', '.join(only)}; not compared")
    notes += [
        f"column {name} is {first[name].dataType.simpleString()} in the first and "
        f"{second[name].dataType.simpleString()} in the second; compared as text"
        for name in first.names
        if name in as_text
    ]
    return notes


def _comparable(df: DataFrame, name: str, *, is_text: bool) -> Column:
    from pyspark.sql import functions as sf

    column = sf.col(quoted(name))
    return column.cast("string") if is_text else _ordered(column, df.schema[name].dataType)


def _ordered(column: Column, kind: DataType) -> Column:
    """Return a column of a type that can be grouped by: maps as sorted entries."""
    from pyspark.sql import functions as sf
    from pyspark.sql.types import ArrayType, MapType, StructType

    if not _has_maps(kind):
        return column
    if isinstance(kind, MapType):
        entries = sf.transform(
            sf.map_entries(column),
            lambda entry: sf.struct(
                _ordered(entry["key"], kind.keyType).alias("key"),
                _ordered(entry["value"], kind.valueType).alias("value"),
            ),
        )
        return sf.array_sort(entries)
    if isinstance(kind, ArrayType):
        return sf.transform(column, lambda each: _ordered(each, kind.elementType))
    if isinstance(kind, StructType):
        fields = [_ordered(column[each.name], each.dataType).alias(each.name) for each in kind]
        return sf.when(column.isNotNull(), sf.struct(*fields))
    return sf.to_json(column)  # a variant


def _has_maps(kind: DataType) -> bool:
    """Whether Spark cannot group by a type because it has a map, or a variant, in it."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, ArrayType):
        return _has_maps(kind.elementType)
    if isinstance(kind, StructType):
        return any(_has_maps(each.dataType) for each in kind)
    return isinstance(kind, MapType) or kind.typeName() == "variant"
