"""Acts on savepoints, for processes that a test lets die."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from airflow_provider.extensions.state_rewrite.rewrite import rewrite_savepoint
from airflow_provider.extensions.state_rewrite.rewrite_plan import Changes
from airflow_provider.runtime.api.sinks import OpenFence
from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.driver.restore_job import restore_job
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.savepoints.restore import Restore
from airflow_provider.runtime.savepoints.restore_plan import RestoreSettings
from airflow_provider.runtime.savepoints.retention import (
    Retention,
    dispose,
    pinned_savepoint,
    retain,
)
from airflow_provider.runtime.savepoints.take import take_savepoint
from airflow_provider.runtime.storage.open import open_storage
from tests.unit.support import EpochBench


def act(action: str, root: Path) -> None:
    """Do one thing to the job in ``root/job`` and its savepoints."""
    job, savepoints = str(root / "job"), str(root / "job" / "savepoints")
    acts: dict[str, Callable[[], object]] = {
        "take": lambda: take_savepoint(
            job_source(job, SystemClock()), f"{savepoints}/new", origin="periodic"
        ),
        "restore": lambda: restore_job(str(root / "restored"), f"{savepoints}/old"),
        "claim": lambda: restore_job(
            str(root / "restored"), f"{savepoints}/old", claim_mode="claim"
        ),
        "spread": lambda: spread(root),
        "back": lambda: restore_job(job, f"{savepoints}/old"),
        "change": lambda: rewrite_savepoint(
            f"{savepoints}/old",
            f"{savepoints}/new",
            Changes(rename={"q": "renamed"}, reset=("0",)),
        ),
        "dispose": lambda: dispose(f"{savepoints}/old"),
        "retain": lambda: retain(savepoints, Retention(keep=1)),
    }
    acts[action]()


def spread(root: Path) -> None:
    """Restore with other partitions; Spark's part is written by hand: a batch without input."""
    directory = JobDirectory(open_storage(str(root / "restored")))
    clock = SystemClock()

    def repartition(_: str, logs: CheckpointLogs, __: int) -> None:
        batch = logs.position().last_commit + 1
        EpochBench(root / "restored").spark.plan(batch).commit(batch)

    with pinned_savepoint(str(root / "job/savepoints/old"), clock) as savepoint:
        settings = RestoreSettings(savepoint, {"q": "q"}, partitions=5)
        Restore(directory, OpenFence(), clock).run(settings, repartition)


def main(action: str, root: str) -> None:
    """Be a process that does one thing."""
    act(action, Path(root))
