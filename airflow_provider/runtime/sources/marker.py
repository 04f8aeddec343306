"""In-band markers: how a source says that its event time has moved on, without a row of the job's.

Spark's watermark of a query is the least of its sources', a source's moves with its rows alone, and
is forgotten when the query stops. So a source that has ended, or is silent, holds all others back.
A *marked* source is read as ``union(source, markers)``, then the watermark, then a filter that lets
no marker through. Its markers are a tiny stream of files: one row, with an event time, moves the
source's watermark as a row of the source's would. Sources that have ended are announced after each
start, as Flink does with tasks that were finished when it restored them (FLIP-147); those that are
silent are moved along with the others (idling.py).
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.storage import open_storage, spark_url

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader
    from pyspark.sql.streaming.readwriter import DataStreamReader

END_MS: Final = 253402300799999
"""The event time that no row is later than: 9999-12-31, the last that Spark can count with."""

_SUFFIX: Final = ":marker"  # a colon is in no source's own name
_AT: Final = "at"
_IS_MARKER: Final = "__spark_stream_is_marker"
_YES, _NO = True, False


def marker_name(source: str) -> str:
    """Return the name of the stream of a source's markers."""
    return f"{source}{_SUFFIX}"


def is_marker(name: str | None) -> bool:
    """Tell whether a stream is one of markers."""
    return name is not None and name.endswith(_SUFFIX)


def put_marker(folder: str, at_ms: int) -> None:
    """Let the source whose markers lie in *folder* be at event time *at_ms*, if it is not later.

    Crash safety: a marker lies there whole or not at all; two say the same as the later one.
    """
    row = json.dumps({_AT: at_ms * 1000}).encode()
    open_storage(folder).put(f"{uuid.uuid4().hex}.json", row)


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

    column, _ = watermark
    # Files that are read are removed; one that is gone when its batch is run again is not missed,
    # since the source is announced again.
    reader = markers.format("json").schema(f"{_AT} long")
    reader = reader.option("cleanSource", "delete").option("ignoreMissingFiles", "true")
    rows = reader.load(even_if_missing(spark_url(folder)))
    values = [
        (sf.timestamp_micros(_AT) if field.name.lower() == column.lower() else sf.lit(None))
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
