"""Rows of a batch, in the form in which Spark's tasks upload them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from airflow_provider.extensions.bucket_files import lines, parquet
from airflow_provider.runtime.api.errors import ConfigError
from airflow_provider.runtime.api.kit.columns import quoted, with_folder_values
from airflow_provider.runtime.api.kit.data_files import BUCKET_FORMATS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from airflow_provider.extensions.bucket_files.upload import FileFormat

_PARQUET_OPTIONS: Final = frozenset({"compression", "maxrecordsperfile"})
_LOCATION: Final = "spark_stream_folder_{}"
_UTF8: Final = frozenset({"utf8", "utf-8"})


@dataclasses.dataclass(frozen=True)
class RowFormat:
    """How rows become files."""

    format: str
    partition_by: tuple[str, ...]
    options: Mapping[str, str]

    @property
    def most_rows(self) -> int:
        """Return after how many rows a file ends; 0 for any number."""
        return int(self._option("maxRecordsPerFile", "0"))

    def check(self, schema: StructType) -> None:
        if self.format not in BUCKET_FORMATS:
            known = ", ".join(BUCKET_FORMATS)
            raise ConfigError(
                f"format {self.format!r} is not written to buckets; use one of {known}"
            )
        if not self._option("maxRecordsPerFile", "0").isdigit():
            raise ConfigError("the option maxRecordsPerFile is a number of rows")
        if self.format == "parquet":
            self._check_parquet(self._data_schema(schema))
        else:
            self._check_lines()

    def _check_parquet(self, data: StructType) -> None:
        parquet.check_codec(self._option("compression", "snappy").lower())
        parquet.check_types(data)
        unknown = sorted(n for n in self.options if n.lower() not in _PARQUET_OPTIONS)
        if unknown:
            raise ConfigError(
                f"the option {unknown[0]!r} is not known for Parquet in buckets; there are "
                "'compression' and 'maxRecordsPerFile'"
            )

    def _check_lines(self) -> None:
        lines.check_codec(self._option("compression", "none").lower())
        if self._option("encoding", self._option("charset", "UTF-8")).lower() not in _UTF8:
            raise ConfigError(
                "text in buckets is written in UTF-8; leave the option 'encoding' out"
            )

    def rows(self, df: DataFrame) -> DataFrame:
        """Return what the tasks get: the columns of the files, then the folders' as strings."""
        names = [name for name in df.columns if name not in self.partition_by]
        folders = [
            _column(name).cast("string").alias(_LOCATION.format(number))
            for number, name in enumerate(self.partition_by)
        ]
        return with_folder_values(df, self.partition_by).select(*self._data(names), *folders)

    def file_format(self, df: DataFrame) -> FileFormat:
        if self.format == "parquet":
            return parquet.ParquetFormat(
                codec=self._option("compression", _codec_of(df)).lower(),
                schema=self._data_schema(df.schema).json(),
                spark_version=df.sparkSession.version,
            )
        return lines.LineFormat(
            self.format,
            self._option("compression", "none").lower(),
            self._option("lineSep", "\n"),
            self._header(df),
        )

    def _data(self, names: list[str]) -> list[Column]:
        from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

        columns = [_column(name) for name in names]
        if self.format == "parquet":
            return columns
        as_line = F.to_json if self.format == "json" else F.to_csv
        return [as_line(F.struct(*columns), dict(self.options)).alias("line")]

    def _header(self, df: DataFrame) -> str | None:
        from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

        if self.format != "csv" or self._option("header", "false").lower() != "true":
            return None
        names = [name for name in df.columns if name not in self.partition_by]
        line = F.to_csv(
            F.struct(*(F.lit(name).alias(f"c{i}") for i, name in enumerate(names))),
            dict(self.options),
        )
        return str(df.sparkSession.range(1).select(line.alias("line")).collect()[0]["line"])

    def _data_schema(self, schema: StructType) -> StructType:
        kept = [field for field in schema.fields if field.name not in self.partition_by]
        return type(schema)(kept)

    def _option(self, name: str, otherwise: str) -> str:
        return next((v for n, v in self.options.items() if n.lower() == name.lower()), otherwise)


def _column(name: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

    return F.col(quoted(name))


def _codec_of(df: DataFrame) -> str:
    return str(df.sparkSession.conf.get("spark.sql.parquet.compression.codec", "snappy"))
