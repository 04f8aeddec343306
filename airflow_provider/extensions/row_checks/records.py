"""Records that cannot be read: lines of JSON and CSV, and values of Kafka's messages.

Each is parsed whole, also where a query uses one column: so the same records are rejected in each
query and each mode. A record has one location: it is given as a whole, or rejected as a whole.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Final, cast

from airflow_provider.extensions.row_checks.csv_headers import HeaderTap
from airflow_provider.extensions.row_checks.record_lines import (
    LINE,
    format_of,
    has_header,
    header_line,
    lines_of,
    load_lines,
    options_of,
)
from airflow_provider.extensions.row_checks.record_text import RAW, RecordText
from airflow_provider.extensions.row_checks.rules import rule_of
from airflow_provider.extensions.row_checks.taps import BitTap
from airflow_provider.runtime.base.names import quoted
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.queries.taps import ADDED, ORIGIN, quarantine_columns
from airflow_provider.runtime.sources.files import FilesSource

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

_RECORD: Final = f"{ADDED}record"
_ROWS: Final = f"{ADDED}rows"
_FITS: Final = f"{ADDED}fits"
_TEXTS: Final = ("csv", "json")
_COLUMN: Final = "columnNameOfCorruptRecord"
_LINES: Final = {
    "csv": "a quote that is not closed makes one record of all lines that follow",
    "json": "a record is a whole file",
}


def records_of(
    source: str,
    read: Any,
    *,
    value: str | None,
    on: str,
    limit: str | int | None,
) -> Records:
    """Return how a source is read, or raise ConfigError.

    Args:
        source: its name.
        read: what it reads: files, or messages of Kafka.
        value: the format of Kafka's values; None for files.
        on: ``fail``, ``count`` or ``quarantine``.
        limit: the most records of a run that may be rejected.
    """
    is_kafka = not isinstance(read, FilesSource) and hasattr(read, "with_records")
    kind = (value or "") if is_kafka else read.kind
    where = f"source {source!r}"
    if value is not None and not is_kafka:
        raise ConfigError(
            f"{where}: value={value!r} is the format of Kafka's messages; leave it out"
        )
    if kind not in _TEXTS:
        has = f"value={value!r}" if is_kafka else f"format {read.kind!r}"
        raise ConfigError(
            f"{where}: {has} has no records that are rejected one by one; use csv or json"
        )
    schema, options = read.schema, read.options
    if schema is None:
        raise ConfigError(
            f"{where}: without a schema nothing tells which records are wrong; give schema=…"
        )
    given = {key.lower(): each for key, each in options.items()}
    is_permissive = given.get("mode", "permissive").lower() == "permissive"
    if not is_permissive or _COLUMN.lower() in given:
        option = _COLUMN if is_permissive else "mode"
        raise ConfigError(
            f"{where}: rejected={on!r} decides about wrong records; leave the option {option!r} out"
        )
    if given.get("multiline", "false").lower() == "true":
        raise ConfigError(f"{where}: with multiLine {_LINES[kind]}; leave it out, or rejected")
    rule = rule_of(f"records of {source}", on, limit, takes=True)
    return Records(source, kind, schema, dict(options), is_kafka=is_kafka, rule=rule)


@dataclasses.dataclass(frozen=True)
class Records:
    """How a source's records are read."""

    source: str
    kind: str
    schema: StructType | str
    options: dict[str, str]
    is_kafka: bool
    rule: Any

    @property
    def line_format(self) -> str | None:
        """The format for Spark's reader; None for Kafka, whose messages are read as they are."""
        return None if self.is_kafka else format_of(self.kind, self.options)

    def read_options(self) -> dict[str, str]:
        """Return the options for Spark's reader."""
        return self.options if self.is_kafka else options_of(self.kind, self.options)

    def load(self, reader: Any, path: str | list[str] | None) -> DataFrame:
        """Return what Spark reads of files: a record in each row."""
        schema = self._schema()
        name = LINE
        if has_header(self.kind, self.options):
            name = header_line(schema.names, self.options)
        return load_lines(reader, path, str(self.line_format), schema, name)

    def tap(self, df: DataFrame) -> BitTap:
        """Return the tap on what Spark's reader gives, or raise ConfigError."""
        from pyspark.sql import functions as sf

        is_sample = LINE not in df.columns and not self.is_kafka  # which has columns
        text = self._text(() if is_sample or self.is_kafka else df.columns)
        if is_sample:
            df, good = df.withColumn(LINE, sf.lit(None).cast("string")), sf.lit(_YES)
        elif self.is_kafka:
            df, good = self._of_messages(df, text)
        else:
            df, good = self._of_json(df, text) if self.kind == "json" else _of_csv(df, text)
        where = [sf.col("topic"), sf.col("partition"), sf.col("offset")]
        if not self.is_kafka:
            where = [sf.input_file_name(), sf.input_file_block_start()]
        # For the rejected alone, and below what may lose the file that a task reads.
        rows = df.withColumn(ORIGIN, sf.when(~good, sf.concat_ws(":", *where)))
        given: dict[str, Any] = {
            "rules": (self.rule,),
            "given": rows,
            "wrong": sf.when(good, 0).otherwise(1).cast("long"),
            "describe": functools.partial(self._describe, text),
            "source": self.source,
            "lines": lines_of(self.kind, text.schema.names, {} if self.is_kafka else self.options),
        }
        if not self.is_kafka and not is_sample and has_header(self.kind, self.options):
            return HeaderTap(**given, options=self.options, schema=text.schema)
        return BitTap(**given)

    def passed(self, rows: DataFrame) -> DataFrame:
        """Return the columns that the job sees."""
        from pyspark.sql import functions as sf

        if self.is_kafka:
            fields = [sf.col("value")[name].alias(name) for name in self._schema().names]
            return rows.withColumn("value", sf.struct(*fields)).drop(LINE, ORIGIN)
        if _ROWS not in rows.columns:
            return rows.drop(*_OWN)
        folders = [quoted(name) for name in rows.columns if name not in _OWN]
        return rows.select(sf.inline(_ROWS), *folders).drop(RAW)

    def _of_messages(self, df: DataFrame, text: RecordText) -> tuple[DataFrame, Column]:
        from pyspark.sql import functions as sf

        # A message without a value, or with bytes that are no text, is no record either.
        line, value = sf.col(LINE), sf.col("value")
        none = sf.lit(None).cast(text.fields)
        df = df.withColumn(LINE, sf.coalesce(value.cast("string"), sf.lit("")))
        df = df.withColumn("value", sf.coalesce(text.parsed(value.cast("string")), none))
        return df, text.is_one(line, value)

    def _of_json(self, df: DataFrame, text: RecordText) -> tuple[DataFrame, Column]:
        """Return the rows of each line, which are several of an array, and none of a blank line."""
        from pyspark.sql import functions as sf
        from pyspark.sql.types import ArrayType

        line, record = sf.col(LINE), sf.col(_RECORD)
        df = df.withColumn(_RECORD, text.parsed(line))
        rows = (
            sf.when(record.isNull(), sf.array().cast(ArrayType(text.fields)))
            .when(text.is_one(line, record), sf.array(record))
            .otherwise(text.elements(line))
        )
        return df.withColumn(_ROWS, rows), sf.col(_ROWS).isNotNull()

    def _describe(self, text: RecordText, rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as sf

        rows, reason = text.with_reason(rows, sf.col(LINE))
        columns = {"reason": reason, "row": sf.col(LINE), "origin": sf.col(ORIGIN)}
        return rows.select(*quarantine_columns("rejected", sf.lit(self.source), **columns))

    def _text(self, folders: Iterable[str]) -> RecordText:
        """Return how the text of a record is read, without the columns that *folders* have."""
        from pyspark.sql.types import StructType

        others = {name.lower() for name in folders}
        fields = [each for each in self._schema().fields if each.name.lower() not in others]
        return RecordText(self.kind, StructType(fields), self.options)

    def _schema(self) -> StructType:
        from pyspark.errors import ParseException
        from pyspark.sql.types import _parse_datatype_string

        schema: Any = self.schema
        where = f"source {self.source!r}"
        try:
            schema = _parse_datatype_string(schema) if isinstance(schema, str) else schema
        except ParseException as error:
            raise ConfigError(f"{where}: schema {schema!r} is none: {error}") from error
        if any(each.name.lower() == RAW for each in schema.fields):
            raise ConfigError(
                f"{where}: the schema has {RAW!r} itself; leave that out, or 'rejected'"
            )
        return cast("StructType", schema)


_OWN: Final = (LINE, RAW, _RECORD, _ROWS, _FITS, ORIGIN)
_YES: Final = True


def _of_csv(df: DataFrame, text: RecordText) -> tuple[DataFrame, Column]:
    from pyspark.sql import functions as sf

    folders = [quoted(name) for name in df.columns if name != LINE]
    df = df.withColumn(_RECORD, text.parsed(sf.col(LINE)))
    df = df.withColumn(_FITS, text.is_one(sf.col(LINE), sf.col(_RECORD)))
    return df.select(f"{_RECORD}.*", *folders, LINE, _FITS), sf.col(_FITS)
