"""Simulated drivers of many jobs in one process: their records alone, no Spark, no rows.

It makes the job directories as drivers make them, renews each job's lease every two seconds, and
ends a job when its input says so: `end NUMBER`. It answers with the time at which it began
to put the final checkpoint.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from airflow_provider.runtime.base.clock import SystemClock, to_iso
from airflow_provider.runtime.base.host import ProcessIdentity, identify_this
from airflow_provider.runtime.jobdir.identity import begin_identity
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.lease import HEARTBEAT_S, TIMEOUT_S, Lease
from airflow_provider.runtime.jobdir.lease_records import LeaseRecord
from airflow_provider.runtime.jobdir.run_options import RunOptions
from airflow_provider.runtime.jobdir.run_records import (
    FINISHED,
    STREAMING,
    AttemptRecord,
    FinalCheckpoint,
    JobRecord,
    ProgressRecord,
    RunRecord,
)
from airflow_provider.runtime.jobdir.submissions import DriverEnd, ProcessRecord, SubmissionRecord
from airflow_provider.runtime.storage.open import open_storage

if TYPE_CHECKING:
    from collections.abc import Sequence

RUN_ID = "waited-for"
ENTRY = "jobs.py:job"
CLOCK = SystemClock()


class Driver:
    """The driver of one job, at work."""

    def __init__(self, root: Path, identity: ProcessIdentity) -> None:
        self._storage = open_storage(str(root))
        self._directory = JobDirectory(self._storage)
        self._run = self._directory.run(RUN_ID)
        self._identity = identity
        self._id = f"driver-{root.name}"
        self._began = to_iso(CLOCK.now())
        self._record()
        self.lease = self._take_lease()
        self.ended = False

    def _record(self) -> None:
        """Put what a submission and the driver itself put before its first batch."""
        begin_identity(self._storage, CLOCK)
        log = Path(self._storage.url) / "runs" / RUN_ID / "logs" / f"{self._id}.log"
        log.parent.mkdir(parents=True)
        log.write_text("a driver's log\n" * 20)
        self._run.put_submission(
            SubmissionRecord(driver_id=self._id, run_id=RUN_ID, submitted=self._began, log=str(log))
        )
        process = ProcessRecord(identity=self._identity)
        process.put(self._run.storage, f"submissions/{self._id}.process.json")
        self._directory.put_job(JobRecord(name="job", created=self._began))
        self._run.put_record(
            RunRecord(
                run_id=RUN_ID,
                entry=ENTRY,
                params={},
                options=RunOptions(mode="streaming", until="end", at_end="drain"),
                interval=None,
                starting={},
                started=self._began,
            )
        )
        self._run.put_attempt(self._attempt())
        progress = ProgressRecord(
            at=self._began, attempt=1, phase="reading", rows_read=0, rows_per_second=0.0, queries={}
        )
        progress.put(self._run.storage, "progress.json")

    def _attempt(self, ended: str | None = None) -> AttemptRecord:
        return AttemptRecord(
            attempt=1,
            driver_id=self._id,
            token=1,
            host=self._identity.host,
            pid=self._identity.processes[0][0],
            entry=ENTRY,
            started=self._began,
            ended=ended,
            outcome=FINISHED if ended else None,
        )

    def _take_lease(self) -> Lease:
        record = LeaseRecord(
            token=1,
            run_id=RUN_ID,
            driver_id=self._id,
            nonce="0",
            owner=self._identity,
            heartbeat_s=HEARTBEAT_S,
            timeout_s=TIMEOUT_S,
            acquired=self._began,
        )
        record.put_if_absent(self._storage, "leases/1.json")
        return Lease(self._storage, record, CLOCK)  # its heartbeats come from the loop below

    def end(self) -> float:
        """End as a driver does: the final checkpoint first; return when."""
        at = time.time()
        self._run.put_final(
            FinalCheckpoint(
                job="job",
                run_id=RUN_ID,
                outcome=FINISHED,
                mode=STREAMING,
                attempts=1,
                started=self._began,
                committed=to_iso(CLOCK.now()),
                rows_read=0,
                savepoint=None,
                queries={},
            )
        )
        now = to_iso(CLOCK.now())
        self._run.put_attempt(self._attempt(now))
        self.lease.release()
        self._run.put_end(self._id, DriverEnd(state="ended", exit_code=0, at=now))
        self.ended = True
        return at


def main(arguments: Sequence[str]) -> None:
    """Drive the jobs until the input ends."""
    folder, count = Path(arguments[0]), int(arguments[1])
    identity = identify_this()
    drivers = [Driver(folder / f"{number:04d}", identity) for number in range(count)]
    asked: queue.SimpleQueue[str] = queue.SimpleQueue()

    def listen() -> None:
        for line in sys.stdin:
            asked.put(line)
        asked.put("")

    threading.Thread(target=listen, daemon=True).start()
    print("at work", flush=True)
    began, turn = time.monotonic(), 0
    while True:
        due_s = began + turn * HEARTBEAT_S / count
        try:
            line = asked.get(timeout=max(due_s - time.monotonic(), 0.0001))
        except queue.Empty:
            driver = drivers[turn % count]
            turn += 1
            if not driver.ended:
                driver.lease.beat()
            continue
        if not line:
            return
        number = int(line.split()[1])
        print(f"{number} {drivers[number].end()!r}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
