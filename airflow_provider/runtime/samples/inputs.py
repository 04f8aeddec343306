"""Input of a run on samples: the caller's rows, as files in a temporary folder."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import functools
import itertools
import os
import shutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.api.sources import TypedSource
from airflow_provider.runtime.errors import AbsentInputError, ConfigError
from airflow_provider.runtime.errors.explanation import first_line

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

    from airflow_provider.runtime.sources.declared import SourceDefinition

_BATCH: Final = "__spark_stream_batch"
_ROW: Final = "__spark_stream_row"
_FIRST_S: Final = 1_000_000_000  # the files' modification times, which are their order


class Samples:
    """The samples of one run; each is written when the job first reads its source."""

    def __init__(self, folder: Path, inputs: Mapping[str, Any], rows: int | None = None) -> None:
        self.folder = folder
        self._inputs = inputs
        self._rows = rows
        self._written: dict[tuple[str, str], tuple[str, StructType]] = {}
        self._read: dict[str, None] = {}
        self._numbers = itertools.count()

    def find(self, name: str) -> Any:
        self._read[name] = None
        return self._inputs.get(name)

    def check_all_read(self) -> None:
        for name in self._inputs:
            if name not in self._read:
                known = ", ".join(self._read) or "none"
                raise ConfigError(f"inputs: the job reads no source {name!r}; its sources: {known}")

    def source(self, declared: SourceDefinition, session: SparkSession) -> tuple[str, StructType]:
        """Return the folder and the columns of a source's sample.

        Raises:
            ConfigError: there is no sample, or it does not fit the source.
        """
        name, where, read = declared.name, f"source {declared.name!r}", declared.source
        schema = getattr(read, "schema", None)
        if declared.records is not None and declared.records.line_format is None:
            schema = None  # that of messages' values
        if schema is None and isinstance(read, TypedSource):
            schema = read.columns()
        columns = None if schema is None else session.createDataFrame([], schema).schema
        key = name, "" if columns is None else columns.json()
        if key not in self._written:
            given = self._inputs.get(name)
            if given is None:
                given, columns = self._first_rows(declared, session, where), None
            self._written[key] = self._write(session, given, columns, where)
        return self._written[key]

    def table(
        self, name: str, schema: StructType | str | None, session: SparkSession
    ) -> DataFrame | None:
        given = self.find(name)
        if given is None:
            return None
        columns = None if schema is None else session.createDataFrame([], schema).schema
        folder, columns = self._write(session, given, columns, f"initial state {name!r}")
        return session.read.schema(columns).parquet(folder)

    def _first_rows(
        self, declared: SourceDefinition, session: SparkSession, where: str
    ) -> DataFrame:
        from pyspark.errors import PySparkException

        if self._rows is None:
            given = ", ".join(self._inputs) or "none"
            raise ConfigError(
                f"{where} has no sample (inputs: {given}); give its rows, or take some of the "
                "source itself with preview(job)"
            )
        plain = dataclasses.replace(declared, bounded=True, watermark=None, without_rejected=None)
        try:
            frame = plain.load(session, streaming=False)
            # collectAsList opens only as many files as have so many rows.
            return table_of(
                session, frame.limit(self._rows)._jdf.collectAsList(), frame._jdf.schema()
            )
        except (AbsentInputError, ConfigError, PySparkException) as error:
            named = f"{where}: " if isinstance(error, PySparkException) else ""
            raise ConfigError(
                f"{named}{first_line(str(error))}; or give rows for it: "
                f"preview(job, {{{declared.name!r}: […]}})"
            ) from error

    def _write(
        self, session: SparkSession, given: Any, columns: StructType | None, where: str
    ) -> tuple[str, StructType]:
        from pyspark.errors import PySparkException

        folder = self.folder / "inputs" / str(next(self._numbers))
        try:
            batches = batches_of(given, where)
            columns = columns or _inferred(session, batches, where)
            frames = [_frame(session, batch, columns, where) for batch in batches]
            _write_batches(session, frames, folder)
        except ConfigError:
            raise
        except (PySparkException, TypeError, ValueError) as error:
            raise ConfigError(
                f"{where}: Spark cannot take the sample: {first_line(str(error))}"
            ) from error
        return str(folder), columns


def batches_of(given: Any, where: str) -> list[Any]:
    """Return the batches: each a DataFrame, Spark's or pandas', or a list of rows."""
    if _is_frame(given):
        return [given]
    if not isinstance(given, list | tuple) or hasattr(given, "__fields__"):
        raise ConfigError(
            f"{where}: {type(given).__name__} is no sample; give a DataFrame, a list of rows, or a "
            "list of such batches"
        )
    are_batches = {_is_frame(each) or isinstance(each, list) for each in given}
    if len(are_batches) > 1:
        raise ConfigError(
            f"{where}: rows and batches of rows are mixed; give a list of rows for each batch"
        )
    return list(given) if True in are_batches else [list(given)]


def values_of(row: Any, names: Sequence[str], where: str) -> tuple[Any, ...]:
    """Return a row's values in the order of the columns; None for a column that it lacks."""
    if hasattr(row, "__fields__"):
        row = row.asDict()
    unknown = [name for name in row if name not in names] if isinstance(row, Mapping) else []
    if isinstance(row, Mapping) and not unknown:
        return tuple(row.get(name) for name in names)
    if isinstance(row, tuple) and len(row) == len(names):
        return row
    if unknown:
        why = f"a row has a column {unknown[0]!r}, and the source has"
    elif isinstance(row, tuple):
        why = f"a row has {len(row)} values, and the source {len(names)} columns:"
    else:
        why = f"{row!r} is no row; give a dict, a tuple or a Row of"
    raise ConfigError(f"{where}: {why} {', '.join(names)}")


def plain_values(values: Sequence[Any], column: DataType) -> tuple[list[Any], DataType]:
    """Return a column's values as PySpark takes them, and the type to give them."""
    from pyspark.sql import types

    cast = (types.NumericType, types.BooleanType, types.DateType)
    if isinstance(column, (*cast, types.TimestampType, types.TimestampNTZType)) and any(
        isinstance(value, str) for value in values
    ):
        return [None if value is None else _text_of(value) for value in values], types.StringType()

    def plain(value: Any) -> Any:
        if isinstance(value, int | float) and not isinstance(value, bool):
            if isinstance(column, types.DecimalType):
                return decimal.Decimal(str(value))
            return float(value) if isinstance(column, types.FractionalType) else value
        is_text = isinstance(value, str) and isinstance(column, types.BinaryType)
        return value.encode() if is_text else value

    return [plain(value) for value in values], column


def _text_of(value: Any) -> str:
    return value.isoformat(" ") if isinstance(value, dt.datetime) else str(value)


def table_of(session: SparkSession, rows: Any, schema: Any) -> DataFrame:
    """Return a ``java.util.List`` of Spark's rows as a table, which costs no job to read."""
    from pyspark.sql import DataFrame

    return DataFrame(session._jsparkSession.createDataFrame(rows, schema), session)


def _is_frame(given: Any) -> bool:
    return hasattr(given, "columns") and not isinstance(given, Mapping | tuple)


def _inferred(session: SparkSession, batches: Sequence[Any], where: str) -> StructType:
    for batch in batches:
        if not isinstance(batch, list):
            return _as_frame(session, batch).schema
    rows = [row for batch in batches for row in batch]
    if rows and isinstance(rows[0], dict):
        return session.createDataFrame(rows).schema
    raise ConfigError(
        f"{where}: the job does not say its columns; give a DataFrame, or rows as dicts"
    )


def _as_frame(session: SparkSession, batch: Any) -> DataFrame:
    return batch if hasattr(batch, "sparkSession") else session.createDataFrame(batch)


def _frame(session: SparkSession, batch: Any, columns: StructType, where: str) -> DataFrame:
    from pyspark.sql import functions as sf

    if isinstance(batch, list):
        batch = _from_rows(session, batch, columns, where)
    frame = _as_frame(session, batch)
    unknown = [name for name in frame.columns if name not in columns.names]
    if unknown:
        source = ", ".join(columns.names)
        raise ConfigError(
            f"{where}: the sample has a column {unknown[0]!r}, and the source has {source}"
        )
    if frame.schema == columns:
        return frame
    present = {name: sf.col(f"`{name.replace('`', '``')}`") for name in frame.columns}
    return frame.select(
        *(
            present.get(field.name, sf.lit(None)).cast(field.dataType).alias(field.name)
            for field in columns.fields
        )
    )


def _from_rows(
    session: SparkSession, rows: Sequence[Any], columns: StructType, where: str
) -> DataFrame:
    from pyspark.sql.types import StructField, StructType

    values = [values_of(row, columns.names, where) for row in rows]
    found = [
        plain_values([row[position] for row in values], field.dataType)
        for position, field in enumerate(columns.fields)
    ]
    fields = [StructField(name, kind) for name, (_, kind) in zip(columns.names, found, strict=True)]
    plain = list(zip(*(column for column, _ in found), strict=True))
    return session.createDataFrame(plain, StructType(fields))


def _write_batches(session: SparkSession, batches: Sequence[DataFrame], folder: Path) -> None:
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as sf

    parts, empty = (
        folder.with_name(f"{folder.name}-parts"),
        folder.with_name(f"{folder.name}-empty"),
    )
    frames = [batch.withColumn(_BATCH, sf.lit(number)) for number, batch in enumerate(batches)]
    together = functools.reduce(DataFrame.union, frames).coalesce(1)
    numbered = together.withColumn(_ROW, sf.monotonically_increasing_id())
    in_order = numbered.sortWithinPartitions(_BATCH, _ROW).drop(_ROW)
    in_order.write.partitionBy(_BATCH).parquet(str(parts))
    written = {path.parent.name.partition("=")[2]: path for path in parts.glob("*/*.parquet")}
    if len(written) < len(batches):  # Spark writes nothing for a batch without rows
        batches[0].limit(0).coalesce(1).write.parquet(str(empty))
        written[""] = next(empty.glob("*.parquet"))
    folder.mkdir(parents=True)
    for number in range(len(batches)):
        file = folder / f"{number:06d}.parquet"
        shutil.copyfile(written.get(str(number)) or written[""], file)
        os.utime(file, (_FIRST_S + number, _FIRST_S + number))
    shutil.rmtree(parts)
