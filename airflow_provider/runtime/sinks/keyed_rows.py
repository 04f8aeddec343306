"""Rows by key: the words of a sink, their checks, and Spark's reduction of an epoch.

A table by key holds for each key the change with the greatest sequence, whichever epoch brought it.
A change is a row, or a delete of the key. Without a sequence a later epoch's change counts.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base.names import quoted
from airflow_provider.runtime.errors import ConfigError, RefusedRowsError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import Column, DataFrame

log = logging.getLogger(__name__)

DELETED: Final = "_spark_stream_deleted"
"""The staged column that says whether a change deletes its key; no table has it."""

_RANK: Final = "_spark_stream_rank"
_MOST_SHOWN: Final = 3  # keys, in one error
# Their order is the same in Spark, in Arrow and in PostgreSQL, and equal values are equal there.
_WHOLE: Final = frozenset(
    {"byte", "short", "integer", "long", "date", "timestamp", "timestamp_ntz"}
)
_ORDERED: Final = _WHOLE | {"string", "decimal"}
_IDENTIFYING: Final = _ORDERED | {"boolean", "binary"}


@dataclasses.dataclass(frozen=True)
class KeyedRows:
    """How a sink tells rows apart, and which of a key's changes counts.

    Attributes:
        keys: the key columns; empty if rows are only added.
        sequence_by: the columns by which a key's changes are ordered, compared one after another.
        delete_when: a condition in Spark's SQL on the query's columns; a change for which it is
            true deletes its key.
    """

    keys: tuple[str, ...] = ()
    sequence_by: tuple[str, ...] = ()
    delete_when: str | None = None

    @classmethod
    def of(
        cls, keys: Sequence[str] | str, sequence_by: Sequence[str] | str, delete_when: str | None
    ) -> KeyedRows:
        """Return the words as a user gives them; a text is one column."""
        return cls(_columns(keys), _columns(sequence_by), delete_when)

    def check(self, name: str, df: DataFrame, output_mode: str) -> None:
        """Refuse words that the rows of *df* do not allow; reads the schema only.

        Args:
            name: the sink's.
            df: the query's output.
            output_mode: Spark's.

        Raises:
            ConfigError: the message names the column or the word.
        """
        if output_mode == "complete":
            raise ConfigError(
                f"{name}: output_mode 'complete' gives the whole result in every epoch, and rows "
                "are replaced by keys=; use output_mode 'update'"
            )
        kinds = {field.name: field.dataType for field in df.schema.fields}
        for word, columns, allowed in (
            ("keys", self.keys, _IDENTIFYING),
            ("sequence_by", self.sequence_by, _ORDERED),
        ):
            _check_columns(name, word, columns, kinds, allowed)
        if double := set(self.keys) & set(self.sequence_by):
            raise ConfigError(
                f"{name}: column {min(double)!r} is in keys= and in sequence_by=; the changes of "
                "one key have one value there, so it orders nothing"
            )
        if DELETED in {column.lower() for column in kinds}:
            raise ConfigError(
                f"{name}: the column name {DELETED!r} is the sink's own; rename it with alias()"
            )
        self._check_condition(name, df)

    def check_unused(self, name: str, replace: str | None = None) -> None:
        """Refuse words that are of use with keys only, and a slice to replace beside keys."""
        if self.keys and replace is not None:
            raise ConfigError(
                f"{name}: keys= replaces rows by key, and replace= a whole slice; give one of them"
            )
        if self.keys:
            return
        for word, value in (("sequence_by", self.sequence_by), ("delete_when", self.delete_when)):
            if value:
                raise ConfigError(
                    f"{name}: {word}= chooses between the changes of a key, and there is no "
                    "keys=; name the key columns"
                )

    def _check_condition(self, name: str, df: DataFrame) -> None:
        if self.delete_when is None:
            return
        from pyspark.errors import PySparkException
        from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

        try:
            kind = df.select(F.expr(self.delete_when).alias(DELETED)).schema[DELETED].dataType
        except PySparkException as error:
            raise ConfigError(
                f"{name}: delete_when={self.delete_when!r} is not understood: {error}"
            ) from error
        if kind.typeName() not in {"boolean", "void"}:
            raise ConfigError(
                f"{name}: delete_when={self.delete_when!r} gives {kind.simpleString()}; write a "
                "condition, such as \"op = 'd'\""
            )

    # --- staging ----------------------------------------------------------------------------------

    def newest(self, df: DataFrame) -> tuple[DataFrame, Callable[[str], int]]:
        """Return the newest changes of each key, and what to call when Spark has written them.

        The frame has :data:`DELETED` as its last column. Changes of one key with one sequence are
        all in it; :func:`.keyed_merge.unique_changes` tells whether they are one change. The
        function takes the sink's name, and returns how many changes of the epoch there were.

        One pass: the frame is shuffled by key only if there is a sequence.
        """
        from pyspark.sql import Observation, Window
        from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

        deletes = F.lit(False) if self.delete_when is None else F.expr(self.delete_when)  # noqa: FBT003 - a column
        counted = Observation()
        rows = df.withColumn(DELETED, F.coalesce(deletes.cast("boolean"), F.lit(False)))  # noqa: FBT003
        rows = rows.observe(
            counted,
            F.count(F.lit(1)).alias("changes"),
            F.count_if(_any_null(self.keys)).alias("without_key"),
            F.count_if(_any_null(self.sequence_by)).alias("without_sequence"),
        )
        if self.sequence_by:
            keys = [F.col(quoted(key)) for key in self.keys]
            newest_first = [F.col(quoted(column)).desc() for column in self.sequence_by]
            window = Window.partitionBy(*keys).orderBy(*newest_first)
            rows = rows.repartition(_tasks(df), *keys).withColumn(_RANK, F.rank().over(window))
            rows = rows.where(F.col(_RANK) == 1).drop(_RANK)
        return rows, lambda name: self._count(name, counted.get)

    def _count(self, name: str, counted: dict[str, Any]) -> int:
        for columns, missing in (
            (self.keys, counted["without_key"]),
            (self.sequence_by, counted["without_sequence"]),
        ):
            if missing:
                raise RefusedRowsError(
                    f"{name}: {missing} rows of the epoch have a null in {', '.join(columns)}, by "
                    "which the newest row of a key is found; leave such rows out, or give them a "
                    "value with coalesce()"
                )
        return int(counted["changes"])

    def check_tombstones(self, name: str, known: Sequence[str] | None) -> None:
        """Refuse a table whose deletes are recorded by other columns; *known* is None for none."""
        wanted = [*self.keys, *self.sequence_by]
        if known is not None and list(known) != wanted:
            raise ConfigError(
                f"{name}: the table's deleted keys are recorded by {', '.join(known)}, and keys= "
                f"and sequence_by= name {', '.join(wanted)}; keep to them, or write a new table"
            )

    # --- messages ---------------------------------------------------------------------------------

    def conflict(
        self, name: str, epoch: str, keys: Sequence[Sequence[Any]], *, in_table: bool = False
    ) -> RefusedRowsError:
        """Return the error of keys with two changes of which neither is newer.

        If one of them is *in_table*, Spark has committed the other: the same epoch comes again.
        """
        shown = self.shown(keys)
        if not self.sequence_by:
            return RefusedRowsError(
                f"{name}: {epoch} has several rows of one key, and nothing says which one counts: "
                f"{shown}; name a column that orders them in sequence_by=, or aggregate by "
                f"{', '.join(self.keys)} first"
            )
        by = ", ".join(self.sequence_by)
        way = "correct that row of the table, and try again; or rewind the run, and " * in_table
        return RefusedRowsError(
            f"{name}: {epoch} has another row of a key with the same {by}, and neither is newer: "
            f"{shown}; {way}name a further column in sequence_by= that decides, and run it again"
        )

    def shown(self, keys: Sequence[Sequence[Any]]) -> str:
        """Return a few keys as a text of a message."""
        texts = [
            ", ".join(f"{column} = {value!r}" for column, value in zip(self.keys, key, strict=True))
            for key in keys[:_MOST_SHOWN]
        ]
        more = len(keys) - _MOST_SHOWN
        return "; ".join(texts) + (f"; and {more} keys more" if more > 0 else "")


def log_superseded(name: str, epoch: int, changes: int, kept: int) -> None:
    """Log how many changes of an epoch are not staged, because a newer one of their key is."""
    if changes > kept:
        log.info(
            "%s: epoch %s: %s of %s changes are superseded by newer ones of their keys in it",
            name,
            epoch,
            changes - kept,
            changes,
        )


def log_older(name: str, epoch: int, changes: int) -> None:
    """Log how many changes of a published epoch are older than what the table has."""
    if changes:
        text = "%s: epoch %s: %s changes are older than the table's rows or deletes of their keys"
        log.info(text, name, epoch, changes)


def _columns(given: Sequence[str] | str) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _check_columns(
    name: str, word: str, columns: Sequence[str], kinds: dict[str, Any], allowed: frozenset[str]
) -> None:
    if double := [column for column in columns if columns.count(column) > 1]:
        raise ConfigError(f"{name}: {word}= names column {double[0]!r} twice")
    for column in columns:
        if column not in kinds:
            raise ConfigError(f"{name}: there is no column {column!r}, which {word}= names")
        kind = kinds[column]
        is_allowed = kind.typeName() in allowed
        if kind.typeName() == "string":
            is_allowed = kind.simpleString() == "string"  # not one with a collation
        if not is_allowed:
            raise ConfigError(
                f"{name}: column {column!r} of {word}= is of type {kind.simpleString()}, whose "
                "values are not compared alike everywhere; cast it to a number without a "
                "fraction, a decimal, a date, a timestamp or a string"
            )


def _any_null(columns: Sequence[str]) -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

    found = F.lit(False)  # noqa: FBT003 - a column
    for column in columns:
        found = found | F.col(quoted(column)).isNull()
    return found


def _tasks(df: DataFrame) -> int:
    spark = df.sparkSession
    wanted = int(str(spark.conf.get("spark.sql.shuffle.partitions")))
    return max(1, min(wanted, int(spark.sparkContext.defaultParallelism)))
