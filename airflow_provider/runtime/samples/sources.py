"""Sources of a job on sample input: the rows that the caller gives, as files in a temporary folder.

Each batch is one file, of which a stream reads one at a time, so that the runtime's own ways of
reading, of finding the end and of counting hold for samples as well.
"""

from __future__ import annotations

import functools
import os
import shutil
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow_provider.runtime.api.sources import TypedSource
from airflow_provider.runtime.errors import AbsentInputError, ConfigError
from airflow_provider.runtime.errors.explanation import first_line
from airflow_provider.runtime.samples.sample_rows import batches_of, values_of, with_plain_values

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from airflow_provider.runtime.queries.source import SourceDefinition

FORMAT: Final = "parquet"  # keeps every type of Spark's
ONE_BATCH_EACH: Final = {"maxFilesPerTrigger": "1"}
_BATCH: Final = "__spark_stream_batch"
_ROW: Final = "__spark_stream_row"
_FIRST_S: Final = 1_000_000_000  # the files' times, which are their order


class SampleSource(NamedTuple):
    """A source's sample, written.

    Attributes:
        folder: where its batches lie, a file each.
        schema: of its rows.
    """

    folder: str
    schema: StructType


class Samples:
    """The samples of one run, each written when the job first reads its source.

    Args:
        folder: a temporary folder, which is the caller's to remove.
        inputs: what is given, by source.
        rows: how many rows are taken of a real source that has no sample; None for none: then such
            a source is refused.
    """

    def __init__(self, folder: Path, inputs: Mapping[str, Any], rows: int | None = None) -> None:
        self._folder = folder
        self._inputs = inputs
        self._rows = rows
        self._written: dict[tuple[str, str], SampleSource] = {}
        self._read: list[str] = []

    def is_given(self, name: str) -> bool:
        """Whether the caller gives rows for the source."""
        return name in self._inputs

    def note_read(self, name: str) -> None:
        """Note that the job reads the source."""
        if name not in self._read:
            self._read.append(name)

    def check_all_read(self) -> None:
        """Refuse a sample that the job, which has declared all, does not read.

        Raises:
            ConfigError: there is one; the message names the sources that there are.
        """
        for name in self._inputs:
            if name not in self._read:
                known = ", ".join(self._read) or "none"
                msg = f"inputs: the job reads no source {name!r}; its sources: {known}"
                raise ConfigError(msg)

    def source(self, definition: SourceDefinition, session: SparkSession) -> SampleSource:
        """Return the sample of a source; written when it is read for the first time.

        Args:
            definition: the source as the job declares it.
            session: the job's, whose time zone counts for text.

        Raises:
            ConfigError: there is none, or it does not fit the source.
        """
        schema = _schema_of(definition, session)
        key = definition.name, "" if schema is None else schema.json()
        if key not in self._written:
            batches, schema = self._frames(definition, schema, session)
            folder = self._folder / "inputs" / str(len(self._written))
            write_batches(session, batches, schema, folder, where=_where(definition.name))
            self._written[key] = SampleSource(str(folder), schema)
        return self._written[key]

    def table(self, name: str, schema: StructType | str | None, session: SparkSession) -> DataFrame:
        """Return the sample of an initial state, as a table of *session*.

        Raises:
            ConfigError: it does not fit.
        """
        where = f"initial state {name!r}"
        declared = None if schema is None else _struct(session, schema)
        batches = batches_of(self._inputs[name], where)
        frames, found = _frames_of(session, batches, declared, where)
        folder = self._folder / "tables" / name
        write_batches(session, frames, found, folder, where=where)
        return session.read.schema(found).parquet(str(folder))

    def _frames(
        self, definition: SourceDefinition, schema: StructType | None, session: SparkSession
    ) -> tuple[list[DataFrame], StructType]:
        name = definition.name
        if self.is_given(name):
            batches = batches_of(self._inputs[name], _where(name))
            return _frames_of(session, batches, schema, _where(name))
        if self._rows is None:
            given = ", ".join(self._inputs) or "none"
            msg = (
                f"source {name!r} has no sample (inputs: {given}); give its rows, or take some of "
                "the source itself with preview(job)"
            )
            raise ConfigError(msg)
        taken = _first_rows(definition, session, self._rows)
        return [taken], taken.schema


def _schema_of(definition: SourceDefinition, session: SparkSession) -> StructType | None:
    """Return the columns that a source declares; None where only the source itself tells them."""
    if definition.schema is not None:
        return _struct(session, definition.schema)
    known = definition.known_format
    return known.schema(definition.options) if isinstance(known, TypedSource) else None


def _first_rows(definition: SourceDefinition, session: SparkSession, rows: int) -> DataFrame:
    """Return some rows of the source itself, which is read as a table, once.

    Raises:
        ConfigError: it cannot be read so.
    """
    from pyspark.errors import PySparkException

    try:
        frame = definition.load(session, streaming=False)
        # Collected, Spark opens as few files as have so many rows.
        found = frame.limit(rows)._jdf.collectAsList()
    except (AbsentInputError, ConfigError, PySparkException) as error:
        named = (
            ""
            if isinstance(error, AbsentInputError | ConfigError)
            else f"{_where(definition.name)}: "
        )
        msg = (
            f"{named}{first_line(str(error))}; or give rows for it: "
            f"preview(job, {{{definition.name!r}: […]}})"
        )
        raise ConfigError(msg) from error
    return table_of(session, found, frame._jdf.schema())


def _where(name: str) -> str:
    return f"source {name!r}"


def _struct(spark: SparkSession, schema: StructType | str) -> StructType:
    return spark.createDataFrame([], schema).schema


def _frames_of(
    spark: SparkSession, batches: Sequence[Any], schema: StructType | None, where: str
) -> tuple[list[DataFrame], StructType]:
    """Return each batch as a DataFrame with the columns of the source."""
    from pyspark.errors import PySparkException

    try:
        schema = schema or _inferred(spark, batches, where)
        if any(isinstance(batch, list) for batch in batches):
            batches = _from_rows(spark, batches, schema, where)
        return [_fitted(spark, batch, schema, where) for batch in batches], schema
    except (PySparkException, TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        msg = f"{where}: Spark cannot take the sample: {first_line(str(error))}"
        raise ConfigError(msg) from error


def _inferred(spark: SparkSession, batches: Sequence[Any], where: str) -> StructType:
    """Return the columns of a source whose own the job does not say."""
    for batch in batches:
        if not isinstance(batch, list):
            frame = batch if hasattr(batch, "sparkSession") else spark.createDataFrame(batch)
            return frame.schema
    rows = [row for batch in batches for row in batch]
    if rows and isinstance(rows[0], dict):
        return spark.createDataFrame(rows).schema
    msg = f"{where}: the job does not say its columns; give a DataFrame, or rows as dicts"
    raise ConfigError(msg)


def _from_rows(
    spark: SparkSession, batches: Sequence[Any], schema: StructType, where: str
) -> list[Any]:
    """Return the batches with DataFrames for lists of rows."""
    from pyspark.sql import functions as sf
    from pyspark.sql.types import StringType, StructField, StructType

    names = [field.name for field in schema.fields]
    listed = [batch if isinstance(batch, list) else [] for batch in batches]
    values = [[values_of(row, names, where) for row in rows] for rows in listed]
    types = [field.dataType for field in schema.fields]
    rows, texts = with_plain_values(values, types)
    kinds = [StringType() if text else kind for text, kind in zip(texts, types, strict=True)]
    given = StructType([StructField(n, k) for n, k in zip(names, kinds, strict=True)])
    casts = [sf.col(_quoted(f.name)).cast(f.dataType).alias(f.name) for f in schema.fields]
    return [
        spark.createDataFrame(plain, given).select(*casts) if isinstance(batch, list) else batch
        for batch, plain in zip(batches, rows, strict=True)
    ]


def _fitted(spark: SparkSession, batch: Any, schema: StructType, where: str) -> DataFrame:
    """Return a batch with the source's columns in their order; of one that it has not, nulls."""
    from pyspark.sql import functions as sf

    frame: DataFrame = batch if hasattr(batch, "sparkSession") else spark.createDataFrame(batch)
    names = [field.name for field in schema.fields]
    for column in frame.columns:
        if column not in names:
            columns = ", ".join(names)
            msg = f"{where}: the sample has a column {column!r}, and the source has {columns}"
            raise ConfigError(msg)
    if frame.schema == schema:
        return frame
    present = set(frame.columns)
    return frame.select(
        *(
            (sf.col(_quoted(f.name)) if f.name in present else sf.lit(None))
            .cast(f.dataType)
            .alias(f.name)
            for f in schema.fields
        )
    )


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def table_of(session: SparkSession, rows: Any, schema: Any) -> DataFrame:
    """Return rows that the JVM has as a table, which costs no job to read.

    Args:
        session: whose it is to be.
        rows: a ``java.util.List`` of Spark's rows.
        schema: the JVM's.
    """
    from pyspark.sql import DataFrame

    return DataFrame(session._jsparkSession.createDataFrame(rows, schema), session)


def write_batches(
    session: SparkSession,
    batches: Sequence[DataFrame],
    schema: StructType,
    folder: Path,
    *,
    where: str,
) -> None:
    """Write each batch as one file, in the order in which a stream reads them.

    Args:
        session: which writes them.
        batches: at least one.
        schema: of their rows.
        folder: is made.
        where: the source, for errors.

    Raises:
        ConfigError: Spark cannot compute a batch, or keep its rows.
    """
    from pyspark.errors import PySparkException

    parts = folder.with_name(f"{folder.name}-parts")
    try:
        _numbered(batches).write.partitionBy(_BATCH).parquet(str(parts))
        written = {path.parent.name.partition("=")[2]: path for path in parts.glob("*/*.parquet")}
        if len(written) < len(batches):  # of a batch without rows nothing was written
            none = folder.with_name(f"{folder.name}-none")
            session.createDataFrame([], schema).coalesce(1).write.parquet(str(none))
            written[""] = next(none.glob("*.parquet"))
    except PySparkException as error:
        msg = f"{where}: Spark cannot take the sample: {first_line(str(error))}"
        raise ConfigError(msg) from error
    folder.mkdir(parents=True)
    for number in range(len(batches)):
        file = folder / f"{number:06d}.parquet"
        shutil.copyfile(written.get(str(number)) or written[""], file)
        os.utime(file, (_FIRST_S + number, _FIRST_S + number))
    shutil.rmtree(parts)


def _numbered(batches: Sequence[DataFrame]) -> DataFrame:
    """Return all batches in one partition, which one Spark job writes, their rows in order."""
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as sf

    frames = [batch.withColumn(_BATCH, sf.lit(number)) for number, batch in enumerate(batches)]
    together = functools.reduce(DataFrame.union, frames).coalesce(1)
    placed = together.withColumn(_ROW, sf.monotonically_increasing_id())
    return placed.sortWithinPartitions(_BATCH, _ROW).drop(_ROW)
