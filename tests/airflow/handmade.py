"""Job directories made by hand: every state a task can find, without Spark."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.base.clock import SystemClock, to_iso
from airflow_provider.runtime.base.host import ProcessIdentity, identify
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.lease import Lease, acquire_lease
from airflow_provider.runtime.jobdir.requests import CANCEL, requests_of
from airflow_provider.runtime.jobdir.run_records import (
    AttemptRecord,
    FinalCheckpoint,
    JobRecord,
    RequestRecord,
)
from airflow_provider.runtime.jobdir.submissions import ExitRecord, ProcessRecord, SubmissionRecord
from airflow_provider.runtime.storage.open import open_storage
from tests.present import identified, present
from tests.unit.jobs import a_run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RUN = "flights-daily-run_1"
TI: Any = SimpleNamespace(
    dag_id="flights",
    task_id="daily",
    run_id="run_1",
    map_index=-1,
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


class Job:
    """A job directory and one run of it, put together document by document.

    Args:
        root: the job directory.
        run_id: the run.
    """

    def __init__(self, root: Path, run_id: str = RUN) -> None:
        self.root = root
        self.storage = open_storage(str(root))
        self.run = JobDirectory(self.storage).run(run_id)
        self.run_id = run_id

    @property
    def url(self) -> str:
        return str(self.root)

    def finish(self, outcome: str = "FINISHED") -> FinalCheckpoint:
        """Put the final checkpoint of a run whose queries had nothing to read, which is true."""
        directory = JobDirectory(identified(self.storage))
        directory.put_job(JobRecord(name="daily", created=AT))
        run = self.run.put_record(a_run(self.run_id, starting={}, params={}))
        nothing: dict[str, Any] = {
            "query_id": "none",
            "batch_id": None,
            "watermark": None,
            "sources": [],
            "sinks": [],
        }
        final = FinalCheckpoint(
            job=present(directory.name()),  # as it is, where the job had one before
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

    def submit(
        self,
        driver_id: str = "driver",
        *,
        process: ProcessIdentity | None = None,
        ago_s: float = 0.0,
        log: Path | None = None,
    ) -> str:
        """Put the intent to start a driver, and what looks after it if it has come up."""
        identified(self.storage)
        submitted = dt.datetime.now(dt.timezone.utc) - dt.timedelta(seconds=ago_s)
        record = SubmissionRecord(
            driver_id=driver_id,
            run_id=self.run_id,
            submitted=to_iso(submitted),
            log=str(log) if log else None,
        )
        self.run.put_submission(record)
        if process is not None:
            name = f"submissions/{driver_id}.process.json"
            ProcessRecord(identity=process).put(self.run.storage, name)
        return driver_id

    def end(self, driver_id: str, exit_code: int, *lines: str) -> None:
        """Put how the driver's process ended."""
        self.run.put_exit(
            driver_id, ExitRecord(exit_code=exit_code, ended=AT, last_lines=list(lines))
        )

    def attempt(self, driver_id: str, outcome: str, failure: dict[str, Any] | None = None) -> None:
        """Put what the driver has recorded about its own end."""
        record = AttemptRecord(
            attempt=self.run.attempt_count() + 1,
            driver_id=driver_id,
            token=1,
            host="here",
            pid=1,
            entry="jobs.py:daily",
            started=AT,
            ended=AT,
            outcome=outcome,
            failure=failure,
        )
        self.run.put_attempt(record)

    @contextlib.contextmanager
    def lease(
        self,
        driver_id: str = "driver",
        *,
        owner: ProcessIdentity | None = None,
        run_id: str | None = None,
    ) -> Iterator[Lease]:
        """Hold the lease as a driver does, heartbeat included; released at the end."""
        identified(self.storage)
        lease = acquire_lease(
            self.storage,
            run_id=run_id or self.run_id,
            driver_id=driver_id,
            owner=owner or identify([os.getpid()]),
            clock=SystemClock(),
            heartbeat_s=0.05,
            timeout_s=5.0,
        )
        try:
            yield lease
        finally:
            lease.release()

    def documents(self) -> list[str]:
        """Return every file of the job directory."""
        return sorted(str(p.relative_to(self.root)) for p in self.root.rglob("*") if p.is_file())

    def asked(self) -> list[RequestRecord]:
        """Return what drivers were asked for."""
        drivers = self.storage.list("requests")
        return [request for driver in drivers for request in requests_of(self.storage, driver)]

    def cancels(self) -> list[str]:
        """Return the drivers that were asked to end at once."""
        return [request.driver_id for request in self.asked() if request.kind == CANCEL]
