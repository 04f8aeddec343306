"""Preview: what a job makes of a few rows of its sources, as tables to look at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.samples.in_memory import Job, run_samples, warm_session

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession


def preview(
    job: Job | str,
    inputs: Mapping[str, Any] | None = None,
    *,
    params: Mapping[str, Any] | None = None,
    rows: int = 100,
    interval: tuple[dt.datetime, dt.datetime] | None = None,
    conf: Mapping[str, str] | None = None,
    spark: SparkSession | None = None,
    folder: str | None = None,
) -> Mapping[str, DataFrame]:
    """Return what the queries of a job make of a few rows of its sources; nothing is written.

    A source is read as a table, once, up to *rows* rows: those that Spark finds first. One that
    Spark reads as a stream only needs *inputs*. The job runs in BATCH where it can, else as a
    stream that is drained.

    Args:
        job: the job's function, or ``FILE.py:FUNC``.
        inputs: rows for some of its sources, as of :func:`~.run_in_memory`.
        params: for ``ctx.params``.
        rows: how many rows to take of each other source.
        interval: for ``ctx.interval``.
        conf: for Spark.
        spark: as of :func:`~.run_in_memory`.
        folder: the same.

    Returns:
        By query, its rows, which stay as they are.

    Raises:
        ConfigError: the job cannot be run, or a source cannot be read as a table.
        RunFailedError: it has failed; what it says is what a run would say.
    """
    if rows < 1:
        msg = f"preview: rows={rows} takes nothing of a source; give a number of rows"
        raise ConfigError(msg)
    found = run_samples(
        job,
        inputs or {},
        rows=rows,
        spark=warm_session(spark),
        folder=folder,
        params=dict(params or {}),
        mode="automatic",
        interval=interval,
        conf=dict(conf or {}),
    )
    return found.outputs
