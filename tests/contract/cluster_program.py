"""Program that the clusters of these tests start: an ending, a wait, or a driver without Spark.

``cluster_program.py wait``, ``cluster_program.py EXIT_CODE``, or what a launcher gives a driver:
``driver run JOB_DIR RUN_ID DRIVER_ID DIGEST``. Such a driver does what the function of its request's
entry point is called: ``finish``, ``fail``, ``refuse``, ``die`` with the lease, or ``hold``: without
a lease until a file ``go`` lies in the job directory, and then ``finish``.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

LINES = ("the first line", "the last line")


def main() -> int:
    first, *rest = sys.argv[1:]
    print(*LINES, sep="\n", file=sys.stderr, flush=True)
    if first == "driver":
        return drive(*rest)
    if first == "wait":
        while True:
            time.sleep(60)
    if first != "0":
        print(f"spark-stream: exit code {first}", file=sys.stderr, flush=True)
    return int(first)


def drive(_kind: str, job_dir: str, run_id: str, driver_id: str, digest: str) -> int:
    from airflow_provider.runtime.base.clock import SystemClock
    from airflow_provider.runtime.base.host import identify_this
    from airflow_provider.runtime.errors import LeaseHeldError
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.jobdir.lease import acquire_lease
    from airflow_provider.runtime.jobdir.run_spec import RunSpec
    from airflow_provider.runtime.storage.open import open_storage

    storage = open_storage(job_dir)
    run = JobDirectory(storage).run(run_id)
    does = RunSpec.receive(run.storage, driver_id, digest).entry.rpartition(":")[2]
    if does in {"fail", "refuse"}:
        code = 3 if does == "fail" else 2
        print("spark-stream: error: the input is not there", file=sys.stderr)
        print(f"spark-stream: exit code {code}", file=sys.stderr, flush=True)
        return code
    while does == "hold" and "go" not in storage.list(""):
        time.sleep(0.05)
    try:
        lease = acquire_lease(
            storage,
            run_id=run_id,
            driver_id=driver_id,
            owner=identify_this(),
            clock=SystemClock(),
            timeout_s=2.0,
            heartbeat_s=0.2,
        )
    except LeaseHeldError:
        return 5
    with Path(os.environ.get("PUBLISHED", os.devnull)).open("a") as file:
        file.write(f"{lease.token} {driver_id}\n")
    if does == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    while does == "work" and "go" not in storage.list(""):
        time.sleep(0.05)
    finish(storage, run)
    lease.release()
    return 0


def finish(storage, run) -> None:
    """Put the final checkpoint of a run whose queries had nothing to read, which is true."""
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.jobdir.run_options import RunOptions
    from airflow_provider.runtime.jobdir.run_records import (
        FinalCheckpoint,
        JobRecord,
        RunRecord,
    )

    at = "2026-01-01T00:00:00.000Z"
    JobDirectory(storage).put_job(JobRecord(name="daily", created=at))
    run.put_record(
        RunRecord(
            run_id=run.run_id,
            entry="jobs:finish",
            params={},
            options=RunOptions(mode="streaming", until="end", at_end="drain"),
            interval=None,
            starting={},
            started=at,
        )
    )
    run.put_final(
        FinalCheckpoint(
            job="daily",
            run_id=run.run_id,
            outcome="FINISHED",
            mode="STREAMING",
            attempts=1,
            started=at,
            committed=at,
            rows_read=3,
            savepoint=None,
            queries={},
        )
    )


if __name__ == "__main__":
    sys.exit(main())
