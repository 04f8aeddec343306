"""A job whose runs have ended, put together by hand: no flush to the disk, so that many are quick."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from airflow_provider.runtime.base.host import identify_this
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.lease_records import HeartbeatRecord, LeaseRecord
from airflow_provider.runtime.jobdir.run_records import SUSPENDED
from airflow_provider.runtime.jobdir.submissions import ProcessRecord
from airflow_provider.runtime.testing.job_directories import (
    NOW,
    JobDirectoryBuilder,
    a_final,
    a_run,
    a_submission,
    an_attempt,
    an_exit,
)
from tests.unit.counting import CountingStorage

if TYPE_CHECKING:
    from airflow_provider.runtime.storage.documents import Document


class Ended:
    """A job whose runs have ended, each with its lease."""

    def __init__(self, job: JobDirectoryBuilder) -> None:
        self.job = job.begin()
        self.token = 0
        self.counted = CountingStorage(job.storage)
        self.directory = JobDirectory(self.counted)

    def lease(self, run_id: str, *, first: int = 0) -> int:
        """Let a driver of the run take the lease, and release it."""
        self.token += 1
        lease = LeaseRecord(
            token=self.token,
            run_id=run_id,
            driver_id=f"d{first or self.token}",
            first=first,
            nonce="n",
            owner=identify_this(),
            heartbeat_s=2.0,
            timeout_s=20.0,
            acquired=NOW,
        )
        beat = HeartbeatRecord(token=self.token, beat=1, at=NOW, released=True)
        self.write(f"leases/{self.token}.json", lease)
        self.write(f"heartbeats/{self.token}.json", beat)
        return self.token

    def run(self, run_id: str, *, ended: bool = True) -> None:
        token = self.lease(run_id)
        self.write(f"runs/{run_id}/run.json", a_run(run_id, token=token))
        self.write(f"runs/{run_id}/attempts/1.json", an_attempt(token=token))
        if ended:
            self.write(f"runs/{run_id}/final.json", a_final(run_id, outcome=SUSPENDED))

    def submit(self, run_id: str, driver_id: str, number: int = 1) -> None:
        """Put down all that is of a submission whose driver has ended, and its log."""
        folder = f"runs/{run_id}/submissions/{driver_id}"
        record = dataclasses.replace(a_submission(driver_id), run_id=run_id, number=number)
        process = ProcessRecord(identity=identify_this())
        self.write(f"{folder}.json", record)
        self.write(f"{folder}.process.json", process)
        self.write(f"{folder}.end.json", an_exit())
        self.write(f"runs/{run_id}/logs/{driver_id}.log", an_exit())

    def runs(self, count: int) -> Ended:
        for number in range(1, count + 1):
            self.run(f"r{number}")
        return self

    def write(self, path: str, document: Document) -> None:
        target = self.job.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(document.to_bytes())
