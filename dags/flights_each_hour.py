"""A report of each hour, one DAG run for each, started by the stream itself.

``flights_complete_hours`` has a run for each hour of the clock, which waits until its hour is
complete. Here nothing waits, and no clock decides: when the stream ``flights_hourly`` has completed
an hour, an event of the asset ``flights_hour`` starts ``flights_each_hour``, which gives the hour
to a run of ``flights_hour_report``. Airflow may give several events to one DAG run, so this one
starts a run for each; the run's id is that of the event, so that there is never a second one.
"""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import Asset, AssetWatcher, dag, task

from airflow_provider.triggers.stream_events import SparkCompleteTrigger

HERE = Path(__file__).resolve().parent
DATA = os.environ.get("FLIGHTS_DATA") or str(Path.home() / "flights")
STREAM = f"{DATA}/hourly"
HOUR = Asset(
    "flights_hour",
    watchers=[
        AssetWatcher(
            name="complete",
            trigger=SparkCompleteTrigger(
                f"{STREAM}/job", every=dt.timedelta(hours=1), queries=["hourly"]
            ),
        )
    ],
)


@dag(schedule=[HOUR], catchup=False, tags=["spark", "streaming"], doc_md=__doc__)
def flights_each_hour() -> None:
    """Start a run for each hour that is complete."""

    @task
    def hours(triggering_asset_events: Any = None) -> list[dict[str, Any]]:
        """Return the id and the configuration of each run."""
        payloads = [event.extra["payload"] for event in triggering_asset_events[HOUR]]
        return [{"trigger_run_id": payload["id"], "conf": payload} for payload in payloads]

    TriggerDagRunOperator.partial(
        task_id="report",
        trigger_dag_id="flights_hour_report",
        skip_when_already_exists=True,
    ).expand_kwargs(hours())


@dag(schedule=None, catchup=False, tags=["spark", "streaming"])
def flights_hour_report() -> None:
    """Report one hour; at the end of the stream, what lies after the last one."""

    @task
    def report(dag_run: Any = None) -> dict[str, Any]:
        """Return the flights of the hour, over all airports."""
        import pandas as pd

        rows = pd.read_parquet(f"{STREAM}/output")
        start, boundary = dag_run.conf["start"], dag_run.conf["boundary"]
        if start is not None:  # None: all until then
            rows = rows[rows["hour"] >= pd.Timestamp(start)]
        if boundary is not None:  # None: all that is left
            rows = rows[rows["hour"] < pd.Timestamp(boundary)]
        return {"start": start, "boundary": boundary, "flights": int(rows["flights"].sum())}

    report()


flights_each_hour()
flights_hour_report()
