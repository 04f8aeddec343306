"""One driver's life without Spark, for a process of its own that a failpoint can end.

``main(ROOT, "drive", RUN, EPOCHS)`` recovers, then runs batches until there are EPOCHS of them;
``main(ROOT, "revert", RUN, EPOCH)`` reverts, for the run RUN, all that was written after EPOCH.
"""

from __future__ import annotations

import functools
from pathlib import Path
from types import SimpleNamespace

from airflow_provider.runtime.jobdir import epochs as epoch_records
from airflow_provider.runtime.sinks.committer import QuarantinedRows
from airflow_provider.runtime.sinks.revert import revert_after
from tests.unit.support import EpochBench, FakeFrame, HandStagedFiles, counted

SINKS = ("out", "copy", "taken")  # folders; the last one is for quarantined rows
KEPT = 2  # records of earlier runs, so that folding happens


def open_job(root: Path) -> EpochBench:
    sinks = [HandStagedFiles(root / name) for name in SINKS]
    return EpochBench(root / "job", *sinks, kept=sinks[-1])


def rows_of(epoch: int) -> list[str]:
    return [f"{epoch}.{number}" for number in range((epoch * 3 + 2) % 4)]


def taken_of(epoch: int) -> list[str]:
    """Return the rows that are kept; not every epoch has some."""
    return [f"{epoch}.taken.{number}" for number in range((epoch + 1) % 3)]


def kept_of(epoch: int) -> QuarantinedRows | None:
    taken = taken_of(epoch)
    return QuarantinedRows(FakeFrame(*taken), len(taken)) if taken else None


def drive(root: Path, run_id: str, upto: int) -> None:
    job = open_job(root)
    if job.spark.logs.query_id() is None:
        job.spark.begin()
    driver = job.driver(run_id)
    driver.recover()
    while (position := job.spark.logs.position()).last_commit < upto - 1:
        epoch = position.last_commit + 1
        if position.open_batch is None:
            job.spark.plan(epoch)
        rows = rows_of(epoch)
        count = counted(len(rows) + len(taken_of(epoch)))
        driver.pre_commit(
            FakeFrame(*rows), epoch, count, quarantined=functools.partial(kept_of, epoch)
        )
        job.spark.commit(epoch)
        driver.commit_ready()
    driver.remove_leftovers()
    job.close()


def revert(root: Path, run_id: str, epoch: int) -> None:
    job = open_job(root)
    for work in revert_after(
        SimpleNamespace(name="q", sinks=job.sinks, native=None),
        storage=job.committables,
        epoch=epoch,
        fence=job.lease(run_id),
        clock=job.clock,
    ):
        work.revert()
    job.close()


def main(root: str, action: str, run: str, number: str) -> None:
    """Be a driver, or who reverts what drivers have written."""
    setattr(epoch_records, "KEEP_EPOCHS", KEPT)  # noqa: B010 - it is Final for all but this
    {"drive": drive, "revert": revert}[action](Path(root), run, int(number))
