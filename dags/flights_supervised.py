"""Supervision of a stream that never ends, by DAG runs of an hour each.

Every hour a run adopts the stream's one driver, or starts one that continues where the last was. It
stops a driver that is alive but makes no progress, and its own retries start another. When its time
is over it succeeds, the driver goes on, and the next run adopts it. So the stream outlives DAG
runs, deployments of Airflow and ``airflow db clean``. Each hour is green or red, has retries of its
own, and ends with an asset event that says how far the stream is.

Pausing the DAG leaves the stream running, unwatched. ``spark-stream stop`` ends it: the run that
watches it succeeds, and the next one starts it again, so pause the DAG before.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from airflow.sdk import Asset, dag, task

from airflow_provider.operators.retry_policy import FailureRetryPolicy
from airflow_provider.operators.spark_streaming import SparkStreamingOperator

HERE = Path(__file__).resolve().parent
DATA = os.environ.get("FLIGHTS_DATA") or str(Path.home() / "flights")
LOCATION = f"{DATA}/supervised"
DELAYS = Asset("flights_daily_delays_so_far")


@dag(
    schedule="0 * * * *",
    catchup=False,  # nothing is made up for: the stream has gone on
    max_active_runs=1,  # one watches at a time
    tags=["spark", "streaming"],
    doc_md=__doc__,
)
def flights_supervised() -> None:
    """Watch the stream for an hour."""
    SparkStreamingOperator(
        task_id="stream",
        job=f"{HERE}/jobs/daily_delays.py:daily_delays_so_far",
        job_dir=f"{LOCATION}/job",
        params={"input": f"{DATA}/input", "output": f"{LOCATION}/output"},
        until="stopped",
        trigger="10 seconds",
        max_runtime="59 minutes",
        progress_timeout="10 minutes",  # longer than Spark takes to start, and any batch to end
        on_kill="detach",  # clearing or marking a run is no reason to interrupt the stream
        retries=5,  # an hour
        retry_policy=FailureRetryPolicy(),
        outlets=[DELAYS],
        conf={"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "4"},
    )


@dag(schedule=[DELAYS], catchup=False, tags=["spark", "streaming"])
def flights_supervised_how_far() -> None:
    """Do what can be done with whole days: here, say up to when there are some."""

    @task
    def whole_until(triggering_asset_events: Any = None) -> str | None:
        """Return the watermark: all days that ended before it are written, and stay as they are."""
        newest = max(triggering_asset_events[DELAYS], key=lambda event: event.timestamp)
        watermark = newest.extra["queries"]["daily"]["watermark"]
        return None if watermark is None else str(watermark)

    whole_until()


flights_supervised()
flights_supervised_how_far()
