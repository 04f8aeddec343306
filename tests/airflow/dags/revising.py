"""A DAG that starts a run of another one for each hour of a stream, again if it is revised."""

from __future__ import annotations

import os
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import Asset, AssetWatcher, dag, task

from airflow_provider.triggers.stream_events import SparkCompleteTrigger

REVISED = Asset(
    "revised",
    watchers=[
        AssetWatcher(
            name="complete",
            trigger=SparkCompleteTrigger(
                f"{os.environ['TEST_DATA']}/revised/job",
                since="1970-01-01T00:00:00Z",
                revisions=True,
                poll_interval=1,
            ),
        )
    ],
)


@dag(dag_id="revising", schedule=[REVISED], catchup=False)
def revising() -> None:
    """Start a run for each event, whose id is that of the event."""

    @task
    def hours(triggering_asset_events: Any = None) -> list[dict[str, Any]]:
        payloads = [event.extra["payload"] for event in triggering_asset_events[REVISED]]
        known = {payload["id"]: payload for payload in payloads}
        return [{"trigger_run_id": each, "conf": known[each]} for each in known]

    TriggerDagRunOperator.partial(
        task_id="report", trigger_dag_id="hour_report", skip_when_already_exists=True
    ).expand_kwargs(hours())


@dag(dag_id="hour_report", schedule=None, catchup=False, max_active_runs=50)
def hour_report() -> None:
    """Stand for what reads an hour."""
    EmptyOperator(task_id="read")


revising()
hour_report()
