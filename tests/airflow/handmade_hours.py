"""A continuing job for the page "Streams", made by hand: a run for each hour, and its DAG runs."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from handmade_page import PageJob, ago, dag_run_id_of

from airflow_provider.hooks.task_runs import instance_run_id
from airflow_provider.runtime.base.clock import to_iso
from airflow_provider.runtime.jobdir.submissions import RunOwnerRecord
from airflow_provider.runtime.testing.job_directories import a_run
from airflow_provider.slices import Slice

if TYPE_CHECKING:
    from pathlib import Path


class HourlyJob:
    """A continuing job with a run for each hour: its DAG runs, its task and its job directory.

    Args:
        root: the job directory.
        dag_id: its DAG.
        task_id: its task.
    """

    def __init__(self, root: Path, dag_id: str = "hourly", task_id: str = "flights") -> None:
        self.root, self.dag_id, self.task_id = root, dag_id, task_id
        self.slices: list[tuple[Slice, str | None, str | None]] = []
        self.runs: list[PageJob] = []

    def hour(self, hour: int, state: str, rows: int | None, **counts: int) -> PageJob:
        """Add the run of an hour, the next one of the job.

        Args:
            hour: of a day of 2013.
            state: of its task in Airflow.
            rows: what it has read before it was suspended; None if its driver has failed.
            counts: its late rows, and those that it has kept.
        """
        start = dt.datetime(2013, 1, 1, hour, tzinfo=dt.timezone.utc)
        one = Slice(interval=(start, start + dt.timedelta(hours=1)))
        own = instance_run_id(self.dag_id, self.task_id, -1, dag_run_id_of(one))
        job = PageJob(self.root, own, name="flights")
        number = len(self.runs) + 1
        ends = [to_iso(moment) for moment in one.interval or ()]
        options: dict[str, Any] = {"until": "available", "at_end": "suspend", "token": number}
        job.run.storage.delete("run.json")
        began = 86_400 - 3600.0 * hour
        record = a_run(own, params={}, interval=ends, started=ago(began), **options)
        job.run.put_record(record)
        if rows is None:
            job.fail(f"driver-{hour}", token=number)
        else:
            job.suspend(rows, began=began, ended=began - 60 - hour, token=number, **counts)
        RunOwnerRecord(
            dag_id=self.dag_id,
            dag_run_id=dag_run_id_of(one),
            run_type="scheduled",
            slice=one.name,
            max_tries=0,
        ).put(job.run.storage, RunOwnerRecord.NAME)
        self.slices.append((one, state, job.url))
        self.runs.append(job)
        return job

    def address(self, number: int) -> dict[str, Any]:
        """Return the address of the task instance of an hour, by its location."""
        run_id = dag_run_id_of(self.slices[number][0])
        return {
            "dag_id": self.dag_id,
            "run_id": run_id,
            "task_id": self.task_id,
            "map_index": -1,
        }
