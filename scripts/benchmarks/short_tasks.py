"""The DAGs of the benchmark of short tasks: without a pool and with one, in each way to come."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import TYPE_CHECKING

from airflow.sdk import dag
from airflow.timetables.interval import CronDataIntervalTimetable  # of every Airflow 3

from airflow_provider.operators.spark_streaming import SparkStreamingOperator

if TYPE_CHECKING:
    from collections.abc import Callable

ENTRY = "airflow_provider.runtime.warm_up:windows"
LOCATION = Path(os.environ["SHORT_LOCATION"])
TASKS = int(os.environ["SHORT_TASKS"])
CHAINS = int(os.environ["SHORT_CHAINS"])
MODE = os.environ["SHORT_MODE"]


def short_task(number: int, side: str) -> SparkStreamingOperator:
    """Make a task with a job directory of its own in each DAG run."""
    location = f"{LOCATION}/{{{{ dag.dag_id }}}}/{{{{ run_id | replace(':', '-') }}}}/{number:02d}"
    return SparkStreamingOperator(
        task_id=f"t{number:02d}",
        job=ENTRY,
        job_dir=f"{location}/job",
        params={"input": f"{LOCATION}/in", "output": f"{location}/out"},
        mode=MODE,
        warm=side in {"pool", "worker"},
        deferrable=side != "worker",
        defer_after=0 if side in {"deferred", "trigger"} else None,
        end_from_trigger=side == "trigger",
    )


def chains(side: str) -> Callable[[], None]:
    """Return the body of a DAG of chains side by side, each of whose tasks follows the last."""

    def body() -> None:
        tasks = [short_task(number, side) for number in range(TASKS)]
        for before, after in zip(tasks, tasks[CHAINS:], strict=False):
            before >> after

    return body


def one(side: str) -> Callable[[], None]:
    """Return the body of a DAG of one task, of which each run is another short task."""

    def body() -> None:
        short_task(0, side)

    return body


for name in ("cold", "pool", "worker", "deferred", "trigger"):
    dag(dag_id=f"{name}_at_once", schedule=None, catchup=False, max_active_tasks=CHAINS)(
        chains(name)
    )()
    dag(dag_id=f"{name}_spaced", schedule=None, catchup=False, max_active_runs=CHAINS)(one(name))()
    dag(
        dag_id=f"{name}_slices",
        schedule=CronDataIntervalTimetable("0 * * * *", timezone="UTC"),
        catchup=False,
        end_date=dt.datetime(2025, 12, 31, tzinfo=dt.timezone.utc),  # nothing runs by schedule
    )(one(name))()
