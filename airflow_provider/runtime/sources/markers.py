"""Markers of a source, which advance its watermark while it gives no rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.jobdir.end_of_input import MARKER_COLUMN
from airflow_provider.runtime.sources.path_patterns import even_if_missing
from airflow_provider.runtime.storage.open import spark_url

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader
    from pyspark.sql.streaming.readwriter import DataStreamReader

_IS_MARKER: Final = "__spark_stream_is_marker"
_YES, _NO = True, False


def with_markers(
    df: DataFrame,
    markers: DataStreamReader | DataFrameReader,
    folder: str,
    watermark: tuple[str, str],
) -> DataFrame:
    """Return *df* with its watermark, which the markers in *folder* advance as well."""
    from pyspark.sql import functions as sf

    column = watermark[0].lower()
    # Files that are read are removed; one that is gone when its batch is run again is not missed,
    # since the source is announced again.
    reader = markers.format("json").schema(f"{MARKER_COLUMN} long")
    reader = reader.option("cleanSource", "delete").option("ignoreMissingFiles", "true")
    rows = reader.load(even_if_missing(df.sparkSession, spark_url(folder)))
    values = [
        (sf.timestamp_micros(MARKER_COLUMN) if field.name.lower() == column else sf.lit(None))
        .cast(field.dataType)
        .alias(field.name)
        for field in df.schema
    ]
    both = df.withColumn(_IS_MARKER, sf.lit(_NO)).union(rows.select(*values, sf.lit(_YES)))
    # Spark pushes what it can below the watermark, where a marker would be lost; what depends on
    # the partition it leaves where it is, and all filters above it as well.
    only_rows = sf.when(sf.spark_partition_id() >= 0, ~sf.col(_IS_MARKER))
    return both.withWatermark(*watermark).where(only_rows).drop(_IS_MARKER)
