"""DAGs whose job stands still in its last batch until a file appears."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import Any

from airflow.sdk import dag

from airflow_provider.operators.spark_bootstrap import SparkBootstrapOperator
from airflow_provider.operators.spark_streaming import SparkStreamingOperator
from airflow_provider.sensors.spark_watermark import SparkWatermarkSensor

HERE = Path(__file__).resolve().parent
DATA = Path(os.environ["TEST_DATA"])


def gated(dag_id: str, *, retries: int = 0, **arguments: Any) -> None:
    """Make a DAG of one task, whose folders are named like it."""
    location = DATA / dag_id

    @dag(dag_id=dag_id, schedule=None, catchup=False)
    def one_task() -> None:
        SparkStreamingOperator(
            task_id="count",
            job=f"{HERE}/jobs/gated.py:count",
            job_dir=f"{location}/job",
            params={
                "input": f"{location}/input",
                "output": f"{location}/output",
                "gate": f"{location}/gate",
            },
            conf={"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "1"},
            retries=retries,
            retry_delay=dt.timedelta(seconds=1),
            mode="streaming",  # the tests look at its batches
            poll_interval=0.5,
            **arguments,
        )

    one_task()


@dag(dag_id="bootstrapped", schedule=None, catchup=False)
def bootstrapped() -> None:
    """Stand still in the last batch of history; then begin the live job from it."""
    location = DATA / "bootstrapped"
    job: dict[str, Any] = {
        "job": f"{HERE}/jobs/gated.py:count",
        "job_dir": f"{location}/job",
        "conf": {"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "1"},
        "retries": 2,
        "retry_delay": dt.timedelta(seconds=1),
        "poll_interval": 0.5,
    }
    same = {"output": f"{location}/output", "gate": f"{location}/gate"}
    live = {"input": f"{location}/arriving", **same}
    history = {"input": f"{location}/input", **same}
    bootstrap = SparkBootstrapOperator(
        task_id="bootstrap", **job, history_params=history, live_params=live, output="keep"
    )
    begin = "{{ ti.xcom_pull(task_ids='bootstrap')['url'] }}"
    bootstrap >> SparkStreamingOperator(task_id="live", **job, params=live, from_savepoint=begin)


@dag(dag_id="follows", schedule=None, catchup=False)
def follows() -> None:
    """Wait until what another DAG's stream has written is complete."""
    SparkWatermarkSensor(
        task_id="complete",
        job_dir=f"{DATA}/held_by_the_triggerer/job",
        up_to="2030-01-01T00:00:00Z",
        poke_interval=0.5,
    )


follows()
bootstrapped()
gated("held_by_nobody", deferrable=False)
gated("held_by_a_worker", deferrable=False, retries=2)
gated("held_by_the_triggerer", retries=2, end_from_trigger=True)
gated("cleared")
gated("marked")
for victim in ("killed_pod", "deleted_pod", "killed_task", "killed_driver", "starting_pod"):
    gated(victim, retries=3)
for worker_dies, how in {
    "celery_killed_while_deferred": {},
    "celery_killed_while_it_waits": {"deferrable": False},
    "celery_container_lost": {"driver_outlives_task": False},
    "celery_shut_down_while_deferred": {},
    "celery_shut_down_while_it_waits": {"driver_outlives_task": False},
}.items():
    gated(worker_dies, retries=2, **how)
