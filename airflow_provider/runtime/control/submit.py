"""Submission of a driver: from the intent to the launcher process; nothing is lost in between.

``submissions/<driver id>.process.json`` is put if absent, by the process that is about to start
``spark-submit``, or by the next try that finds an intent and nobody behind it. One of the two wins,
whatever has died or is only late; no clock is read.

==========================  ========================================================================
a crash, or a long pause    what the next try finds, and does
==========================  ========================================================================
before the intent           nothing: it submits
``submission.intended``     an intent: it revokes it, and submits. A launcher that comes up after
                            that starts nothing
``submission.launched``     the same, or the launcher, which it adopts with its driver
``submission.entered``      (the launcher's) a process that is gone: it submits
``submission.started``      (the launcher's) ``spark-submit``, which goes on: it adopts the driver
==========================  ========================================================================

The token of a submission is its driver id: it is in the command line, in the request, in the
application's name, tags or labels, in the lease that the driver takes, and in its attempt.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime import failpoints
from airflow_provider.runtime.host import identify, identify_this
from airflow_provider.runtime.jobdir.submissions import ProcessRecord

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from airflow_provider.runtime.jobdir.layout import RunDirectory
    from airflow_provider.runtime.jobdir.run_spec import DriverSpec
    from airflow_provider.runtime.jobdir.submissions import SubmissionRecord


def submit_driver(
    run: RunDirectory,
    record: SubmissionRecord,
    *,
    spec: DriverSpec,
    job_dir: str,
    log: Path,
    command: Sequence[str],
    standby: Mapping[str, Any] | None = None,
    environment: Mapping[str, str],
) -> None:
    """Store the intent and the request, start what looks after the driver, and return at once.

    Args:
        run: the run.
        record: the intent.
        spec: the request that the driver reads.
        job_dir: URL of the job directory.
        log: where the driver's output goes.
        command: what starts the driver.
        standby: master and configuration that a warm driver must have been started with, to be
            given the run in place of the command; None for no warm driver.
        environment: the driver's.

    Crash safety: see the table above.
    """
    run.put_submission(record)
    failpoints.hit("submission.intended")
    spec.send(run.storage)
    launcher = [sys.executable, "-m", "airflow_provider.runtime.control.launcher"]
    options = ["--job-dir", job_dir, "--run-id", record.run_id]
    options += ["--driver-id", record.driver_id, "--log", str(log)]
    if standby is not None:
        options += ["--standby", json.dumps(standby)]
    process = subprocess.Popen(
        [*launcher, *options, "--", *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # neither the worker's death nor its signals reach the driver
        env=dict(environment),
    )
    # A process that outlives it must not leave it a zombie; nobody else waits for it.
    threading.Thread(target=process.wait, name="reaper", daemon=True).start()
    failpoints.hit("submission.launched")


def enter(run: RunDirectory, driver_id: str) -> bool:
    """Say that this process looks after the driver.

    Returns:
        False when the submission was revoked: nothing may be started for it any more.
    """
    record = ProcessRecord(identity=identify_this())
    if not record.put_if_absent(run.storage, f"submissions/{driver_id}.process.json"):
        return False
    failpoints.hit("submission.entered")
    return True


def entered_with(run: RunDirectory, driver_id: str, pid: int) -> None:
    """Add the process that was started; it lives on when this one dies."""
    identity = identify_this(pid)
    if identity.space is not None:  # else it has ended already, which its exit code tells
        record = ProcessRecord(identity=identity)
        record.put(run.storage, f"submissions/{driver_id}.process.json")
    failpoints.hit("submission.started")


def revoke_unstarted(run: RunDirectory) -> bool:
    """Revoke every intent that nobody has begun to act on.

    Returns:
        False when somebody has begun meanwhile: look again.

    Idempotent: an intent is revoked once.
    """
    nobody = ProcessRecord(identity=identify([]), is_revoked=True)
    return all(
        nobody.put_if_absent(run.storage, f"submissions/{driver_id}.process.json")
        for driver_id in run.unstarted()
    )
