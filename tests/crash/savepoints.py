"""What a process does to savepoints that a test lets die: ``python -m tests.crash.savepoints``."""

from __future__ import annotations

import sys
from pathlib import Path

from airflow_provider.runtime.clock import SystemClock
from airflow_provider.runtime.restore import restore_job
from airflow_provider.runtime.savepoint import (
    Retention,
    dispose,
    job_source,
    retain,
    take_savepoint,
)


def act(action: str, root: Path) -> None:
    """Do one thing to the job in ``root/job`` and its savepoints."""
    job, savepoints = str(root / "job"), str(root / "job" / "savepoints")
    if action == "take":
        take_savepoint(job_source(job, SystemClock()), f"{savepoints}/new", origin="periodic")
    elif action == "restore":
        restore_job(str(root / "restored"), f"{savepoints}/old")
    elif action == "claim":
        restore_job(str(root / "restored"), f"{savepoints}/old", claim_mode="claim")
    elif action == "back":
        restore_job(job, f"{savepoints}/old")
    elif action == "dispose":
        dispose(f"{savepoints}/old")
    elif action == "retain":
        retain(savepoints, Retention(keep=1))
    else:
        raise ValueError(action)


if __name__ == "__main__":
    act(sys.argv[1], Path(sys.argv[2]))
