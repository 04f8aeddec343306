"""A DAG that runs for the complete hours of a stream, many at once."""

from __future__ import annotations

import os
from typing import Any

from airflow.sdk import Asset, AssetWatcher, dag, task

from airflow_provider.triggers.stream_events import SparkCompleteTrigger

WATCHED = Asset(
    "watched",
    watchers=[
        AssetWatcher(
            name="complete",
            trigger=SparkCompleteTrigger(
                f"{os.environ['TEST_DATA']}/watched/job",
                since="1970-01-01T00:00:00Z",
                poll_interval=0.2,
                burst=50,
            ),
        )
    ],
)


@dag(dag_id="watching", schedule=[WATCHED], catchup=False)
def watching() -> None:
    """Return the ids of the events of the run."""

    @task
    def ids(triggering_asset_events: Any = None) -> list[str]:
        return [event.extra["payload"]["id"] for event in triggering_asset_events[WATCHED]]

    ids()


watching()
