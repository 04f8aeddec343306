"""A source that is read together with its markers (markers.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.jobdir.watermark_markers import MARKER_COLUMN
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
    """Return *df* with its watermark, which markers move as well.

    Args:
        df: a source, as it is read.
        markers: a reader of the session, for JSON.
        folder: where the markers lie; need not exist.
        watermark: event-time column and delay.
    """
    from pyspark.sql import functions as sf

    column = watermark[0].lower()
    # Files that are read are removed; one that is gone when its batch is run again is not missed,
    # since the source is announced again.
    reader = markers.format("json").schema(f"{MARKER_COLUMN} long")
    reader = reader.option("cleanSource", "delete").option("ignoreMissingFiles", "true")
    rows = reader.load(even_if_missing(spark_url(folder)))
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


def even_if_missing(path: str) -> str:
    """Return a pattern that matches this folder alone.

    Spark refuses to stream from a folder that is not there yet; a pattern may match nothing for a
    while.
    """
    folder, slash, name = path.rstrip("/").rpartition("/")
    return f"{folder}{slash}[{name[0]}]{name[1:]}"
