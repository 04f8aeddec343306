"""A driver's command that a cluster starts once more: the lease lets one of the two do anything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import airflow_provider
from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.base.host import identify_this
from airflow_provider.runtime.errors import EXIT_LEASE
from airflow_provider.runtime.jobdir.lease import acquire_lease
from airflow_provider.runtime.jobdir.run_spec import RunSpec
from airflow_provider.runtime.testing.job_directories import JobDirectoryBuilder, a_submission

PACKAGE = Path(airflow_provider.__file__).parent
APPLICATION = PACKAGE / "runtime" / "cli" / "application" / "spark_stream_driver.py"
MOVING = "heartbeats"


@pytest.fixture
def job(tmp_path: Path) -> JobDirectoryBuilder:
    return JobDirectoryBuilder(tmp_path / "job")


def documents(job: JobDirectoryBuilder) -> dict[str, bytes]:
    """Return all that is in the job directory, but for what a driver that is alive renews."""
    files = [path for path in Path(job.root).rglob("*") if path.is_file()]
    return {str(path): path.read_bytes() for path in files if path.parent.name != MOVING}


def request(job: JobDirectoryBuilder) -> str:
    """Put what the submission asks for, and return its digest."""
    spec = RunSpec(job_dir=str(job.root), entry="flights:daily", run_id="r1", driver_id="d1")
    job.directory.run("r1").put_submission(spec.inside(a_submission("d1")))
    return spec.sha256()


def launch(job: JobDirectoryBuilder, digest: str) -> subprocess.CompletedProcess[str]:
    """Run the command that the submission's ``spark-submit`` starts, where no Java is."""
    command = [sys.executable, str(APPLICATION), "driver", "run"]
    path = os.pathsep.join([str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [*command, str(job.root), "r1", "d1", digest],
        env={**os.environ, "PYTHONPATH": path, "JAVA_HOME": str(job.root)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.slow
def test_a_driver_that_is_started_twice_is_one_driver(job: JobDirectoryBuilder) -> None:
    """
    The same command with the same driver id ends with the code of a lease that another one holds,
    before it starts Spark, and changes nothing in the job directory.
    """
    lease = acquire_lease(
        job.storage,
        run_id="r1",
        driver_id="d1",
        owner=identify_this(),
        clock=SystemClock(),
        heartbeat_s=0.1,
    )
    try:
        request(job)
        before = documents(job)
        second = launch(job, request(job))
        lease.check()
    finally:
        lease.release()

    assert EXIT_LEASE == second.returncode, second.stderr
    assert "another driver is running this job (lease 1, run 'r1'" in second.stderr
    assert before == documents(job)
