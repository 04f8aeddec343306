"""Job directories made by hand: every state a task can find, without Spark."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from airflow_provider.hooks.launchers import LauncherChoice
from airflow_provider.runtime.base.host import ProcessIdentity, identify
from airflow_provider.runtime.jobdir.query_reports import FinalQuery
from airflow_provider.runtime.jobdir.requests import CANCEL
from airflow_provider.runtime.jobdir.run_records import (
    FinalCheckpoint,
)
from airflow_provider.runtime.testing.job_directories import JobDirectoryBuilder, a_run
from tests.present import present

if TYPE_CHECKING:
    from pathlib import Path

RUN = "flights-daily-run_1"
LAUNCHER = LauncherChoice.of(None, "spark_default").to_dict()
"""What the trigger of a task without ``launcher=`` stores."""
TI: Any = SimpleNamespace(
    dag_id="flights",
    task_id="daily",
    run_id="run_1",
    map_index=-1,
    max_tries=0,
    xcom_push=lambda key, value: None,
)


class OutletEvents:
    """The events of assets in a task's context; assets of some versions of Airflow have no hash."""

    def __init__(self, *assets: Any) -> None:
        self._events = {asset.name: SimpleNamespace(extra=None) for asset in assets}

    def __getitem__(self, asset: Any) -> Any:
        return self._events[asset.name]


AT = "2026-01-01T00:00:00.000Z"
MISSING = "/nowhere/jobs.py:daily"  # as soon as a driver is to be submitted, this is refused
ELSEWHERE = ProcessIdentity(host="elsewhere", space="another/machine", processes=((1, 1),))


def ended_process() -> ProcessIdentity:
    """Return a process of this machine that has certainly ended."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        identity = identify([process.pid])
        process.kill()
    return identity


class Job(JobDirectoryBuilder):
    """The job directory of a task, and the run of its DAG run."""

    def __init__(self, root: Path | str, run_id: str = RUN) -> None:
        super().__init__(root, run_id)

    def finish(self, outcome: str = "FINISHED") -> FinalCheckpoint:
        """Put the final checkpoint of a run whose queries had nothing to read, which is true."""
        self.begin("daily")
        run = self.run.put_record(a_run(self.run_id, starting={}, params={}))
        nothing = FinalQuery(query_id="none", batch_id=None, sinks=())
        final = FinalCheckpoint(
            job=present(self.directory.name()),  # as it is, where the job had one before
            run_id=self.run_id,
            outcome=outcome,
            mode="STREAMING",
            attempts=1,
            started=AT,
            committed=AT,
            rows_read=3,
            savepoint=None,
            queries=dict.fromkeys(run.starting, nothing),
        )
        return self.run.put_final(final)

    def cancels(self) -> list[str]:
        """Return the drivers that were asked to end at once."""
        return [request.driver_id for request in self.requests() if request.kind == CANCEL]
