"""Records that cannot be read: lines of JSON and CSV, and values of Kafka's messages.

Spark's readers put a record that does not fit the schema into a column of its own (mode
``PERMISSIVE``). What is malformed depends on the columns that are parsed, and Spark parses only
those that a query uses; here it parses all, so that the same records are rejected in each query and
each mode.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.row_checks.rules import rule_of
from airflow_provider.extensions.row_checks.taps import BitTap
from airflow_provider.runtime.base.names import quoted
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.datasets import KAFKA_FORMATS
from airflow_provider.runtime.queries.taps import ADDED, ORIGIN, kept_columns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

_RAW: Final = "_corrupt_record"  # Spark's own name: with it, CSV is parsed whole
_TEXTS_OF: Final = f"{ADDED}texts"
_TEXTS: Final = ("csv", "json")
_COLUMN: Final = "columnNameOfCorruptRecord"
_MODE: Final = {"mode": "PERMISSIVE", _COLUMN: _RAW}


def records_of(
    source: str,
    file_format: str,
    schema: StructType | str | None,
    options: Mapping[str, str],
    *,
    value: str | None,
    on: str,
    limit: str | int | None,
) -> Records:
    """Return how a source is read, or raise ConfigError.

    Args:
        source: its name.
        file_format: of ``ctx.read``.
        schema: of its records.
        options: of Spark's reader.
        value: the format of Kafka's values; None for files.
        on: ``fail``, ``count`` or ``keep``.
        limit: the most records of a run that may be rejected.
    """
    is_kafka = file_format.lower() in KAFKA_FORMATS
    kind = (value or "") if is_kafka else file_format.lower()
    where = f"source {source!r}"
    if value is not None and not is_kafka:
        msg = f"{where}: value={value!r} is the format of Kafka's messages; leave it out"
        raise ConfigError(msg)
    if kind not in _TEXTS:
        has = f"value={value!r}" if is_kafka else f"format {file_format!r}"
        msg = f"{where}: {has} has no records that are rejected one by one; use csv or json"
        raise ConfigError(msg)
    if schema is None:
        msg = f"{where}: without a schema nothing tells which records are wrong; give schema=…"
        raise ConfigError(msg)
    given = {key.lower(): each for key, each in options.items()}
    is_permissive = given.get("mode", "permissive").lower() == "permissive"
    if not is_permissive or _COLUMN.lower() in given:
        option = _COLUMN if is_permissive else "mode"
        msg = (
            f"{where}: rejected={on!r} decides about wrong records; leave the option {option!r} out"
        )
        raise ConfigError(msg)
    if given.get("multiline", "false").lower() == "true":
        msg = f"{where}: with multiLine a record is a whole file; leave it out, or rejected"
        raise ConfigError(msg)
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

    def read_schema(self) -> StructType | None:
        """Return the schema for Spark's reader; None for Kafka."""
        return None if self.is_kafka else self._with_raw()

    def read_options(self) -> dict[str, str]:
        """Return the options for Spark's reader."""
        return self.options if self.is_kafka else {**self.options, **_MODE}

    def tap(self, df: DataFrame) -> BitTap:
        """Return the tap on what Spark's reader gives, or raise ConfigError."""
        from pyspark.sql import functions as sf

        rows = self._decoded(df) if self.is_kafka else df
        raw = rows["value"][_RAW] if self.is_kafka else rows[_RAW]
        where = (
            sf.concat_ws(":", "topic", "partition", "offset")
            if self.is_kafka
            else sf.concat_ws(":", sf.input_file_name(), sf.input_file_block_start())
        )
        # Never true, and Spark does not know it: so it parses all columns.
        whole = sf.length(sf.struct("*").cast("string"))
        is_wrong = raw.isNotNull() | ((sf.spark_partition_id() < 0) & (whole > 0))
        # For the rejected alone, and directly above the scan, which knows its file.
        rows = rows.withColumn(ORIGIN, sf.when(raw.isNotNull(), where))
        wrong = sf.when(is_wrong, 1).otherwise(0).cast("long")
        return BitTap(
            rules=(self.rule,),
            given=rows,
            wrong=wrong,
            describe=self._describe,
            source=self.source,
        )

    def passed(self, rows: DataFrame) -> DataFrame:
        """Return the columns that the job sees."""
        from pyspark.sql import functions as sf

        if self.is_kafka:
            fields = [sf.col("value")[name].alias(name) for name in self._names()]
            return rows.withColumn("value", sf.struct(*fields)).drop(ORIGIN)
        return rows.drop(_RAW, ORIGIN)

    def _decoded(self, df: DataFrame) -> DataFrame:
        from pyspark.sql import functions as sf

        options = {**self.options, **_MODE}
        text, schema = sf.col("value").cast("string"), self._with_raw()
        parsed = (
            sf.from_json(text, schema, options)
            if self.kind == "json"
            else sf.from_csv(text, _ddl(schema), options)
        )
        # A message without a value, or with bytes that are no text, is no record either.
        none = sf.struct(
            *(sf.lit(None).cast(each.dataType).alias(each.name) for each in schema.fields[:-1]),
            sf.coalesce(text, sf.lit("")).alias(_RAW),
        )
        return df.withColumn("value", sf.coalesce(parsed, none))

    def _describe(self, rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as sf

        raw = sf.col("value")[_RAW] if self.is_kafka else sf.col(_RAW)
        return rows.withColumn(_TEXTS_OF, self._as_texts(raw)).select(
            *kept_columns(
                "rejected",
                sf.lit(self.source),
                reason=self._reason(),
                row=raw,
                origin=sf.col(ORIGIN),
            )
        )

    def _as_texts(self, raw: Column) -> Column:
        from pyspark.sql import functions as sf

        if self.kind == "json":
            return sf.from_json(raw, "map<string,string>")
        texts = ", ".join(f"{quoted(name)} string" for name in self._names())
        return sf.from_csv(raw, f"{texts}, `{_RAW}` string", {**self.options, **_MODE})

    def _reason(self) -> Column:
        """Say what is wrong with a record, of which Spark says only that it is."""
        from pyspark.sql import functions as sf

        fields = self._with_raw().fields[:-1]
        texts = sf.col(_TEXTS_OF)
        if self.kind == "json":
            broken, said = texts.isNull(), "is no object of JSON"
        else:
            broken, said = texts[_RAW].isNotNull(), f"has not {len(fields)} fields"
        wrong = []
        for name, kind in (
            (each.name, each.dataType) for each in fields if _is_plain(each.dataType)
        ):
            escaped = name.replace("\\", "\\\\").replace("'", "\\'")
            text = f"['{escaped}']" if self.kind == "json" else f".{quoted(name)}"
            # Not a cast: before Spark 4 it makes 1 of 1.5.
            value = sf.expr(f"try_cast({_TEXTS_OF}{text} AS {kind.simpleString()})")
            what = sf.concat(
                sf.lit(f"{name} is no {kind.simpleString()}: "), sf.substring(texts[name], 1, 100)
            )
            wrong.append(sf.when(texts[name].isNotNull() & value.isNull(), what))
        found = sf.nullif(sf.concat_ws("; ", *wrong), sf.lit("")) if wrong else sf.lit(None)
        return sf.when(broken, sf.lit(said)).otherwise(
            sf.coalesce(found, sf.lit("does not fit the schema"))
        )

    def _names(self) -> list[str]:
        return [each.name for each in self._with_raw().fields[:-1]]

    def _with_raw(self) -> StructType:
        from pyspark.errors import ParseException
        from pyspark.sql.types import StringType, StructField, StructType, _parse_datatype_string

        schema: Any = self.schema
        where = f"source {self.source!r}"
        try:
            schema = _parse_datatype_string(schema) if isinstance(schema, str) else schema
        except ParseException as error:
            msg = f"{where}: schema {schema!r} is none: {error}"
            raise ConfigError(msg) from error
        if any(each.name.lower() == _RAW for each in schema.fields):
            msg = f"{where}: the schema has {_RAW!r} itself; leave that out, or 'rejected'"
            raise ConfigError(msg)
        return StructType([*schema.fields, StructField(_RAW, StringType())])


def _ddl(schema: StructType) -> str:
    fields = ((quoted(each.name), each.dataType.simpleString()) for each in schema.fields)
    return ", ".join(f"{name} {kind}" for name, kind in fields)


def _is_plain(kind: Any) -> bool:
    from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructType

    return not isinstance(kind, ArrayType | BinaryType | MapType | StringType | StructType)
