"""Measure how long a savepoint takes under backpressure, with and without batches that are paced.

The job takes a millisecond for every row, and reads a backlog that it cannot catch up with. Without
pacing a batch is what the job's own limit allows, 30 seconds of one core; with it, what fits into a
second. Aligned savepoints wait for the batch in flight; they are asked for when it has just begun,
which is the worst moment.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".work" / "backpressure"
sys.path.insert(0, str(ROOT))
ROWS_PER_FILE = 250
FILES_PER_BATCH = 120
FILES = 5 * FILES_PER_BATCH
TARGET_S = 1.0
SETTLED = 6  # batches after which the size is found
CONF = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


def main() -> int:
    """Measure both, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--savepoints", type=int, default=5, help="of the paced job")
    arguments = parser.parse_args()
    from airflow_provider.runtime.session import start_spark

    shutil.rmtree(WORK, ignore_errors=True)
    make_input(WORK / "input")
    spark = start_spark("backpressure", "local[2]", CONF)
    spark.sparkContext.setLogLevel("ERROR")
    print("| batches | savepoint | seconds | the batch in flight |\n|---|---|---|---|")
    with running(spark, "whole", files_per_batch=str(FILES_PER_BATCH)) as job:
        for name, timeout_s in (("aligned", 600.0), ("unaligned", 0.0), ("timeout 5 s", 5.0)):
            job.await_new_batch()
            tell("as the job limits them", name, [job.savepoint(timeout_s)])
    with running(spark, "paced", target_batch_s=TARGET_S) as job:
        for _ in range(SETTLED):
            job.await_new_batch()
        taken = []
        for _ in range(arguments.savepoints):
            job.await_new_batch()
            taken.append(job.savepoint(600.0))
        tell(f"paced to {TARGET_S:g} s", "aligned", taken)
        print(f"\n{job.pacing}")
    spark.stop()
    return 0


def make_input(folder: Path) -> None:
    """Write the backlog."""
    folder.mkdir(parents=True)
    for number in range(FILES):
        first = number * ROWS_PER_FILE
        lines = (f"{n},{'x' * 20}\n" for n in range(first, first + ROWS_PER_FILE))
        (folder / f"{number:05d}.csv").write_text("".join(lines))


def tell(batches: str, kind: str, taken: list[tuple[float, bool]]) -> None:
    """Print one line of the table."""
    seconds = sorted(took for took, _ in taken)
    text = f"{seconds[0]:.2f} s"
    if len(seconds) > 1:
        text = f"{statistics.median(seconds):.2f} s ({seconds[0]:.2f} to {seconds[-1]:.2f})"
    aligned = {aligned for _, aligned in taken}
    ended = "has ended" if aligned == {True} else "is run again by a restore"
    print(f"| {batches} | {kind} | {text} | {ended} |", flush=True)


class Job:
    """A run in a thread of its own, looked at from outside."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._seen = -1
        self._taken = 0
        self.pacing: Any = None

    def note(self, progress: Any) -> None:
        """Take the run's progress."""
        self.pacing = progress.queries["slow"]["pacing"]

    def await_new_batch(self) -> None:
        """Wait until a batch has begun after the one that was seen last; one must have ended."""
        from airflow_provider.runtime.checkpoint import CheckpointLogs
        from airflow_provider.runtime.storage import open_storage

        logs = CheckpointLogs(open_storage(str(self._place / "job/queries/slow/checkpoint")))
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            position = logs.position()
            if position.last_offsets > max(position.last_commit, self._seen, 0):
                self._seen = position.last_offsets
                return
            time.sleep(0.02)
        sys.exit("backpressure: no batch has begun in five minutes")

    def savepoint(self, aligned_timeout_s: float) -> tuple[float, bool]:
        """Return how long a savepoint took, and whether it is aligned."""
        from airflow_provider.runtime.clock import SystemClock
        from airflow_provider.runtime.savepoint import job_source, take_savepoint

        self._taken += 1
        begun = time.monotonic()
        taken = take_savepoint(
            job_source(str(self._place / "job"), SystemClock()),
            str(self._place / "savepoints" / str(self._taken)),
            aligned_timeout_s=aligned_timeout_s,
        )
        seconds = time.monotonic() - begun
        return seconds, taken.record.aligned


@contextlib.contextmanager
def running(
    spark: SparkSession, name: str, *, target_batch_s: float = 0.0, **params: str
) -> Iterator[Job]:
    """Run the slow job until the block ends."""
    from airflow_provider.runtime.asking import Ask
    from airflow_provider.runtime.driver import run_job
    from airflow_provider.runtime.errors import RunCancelledError

    place = WORK / name
    job, stop = Job(place), threading.Event()
    ask = Ask(
        job_dir=str(place / "job"),
        entry=f"{ROOT}/scripts/benchmarks/slow.py:slow",
        until="stopped",
        params={"input": str(WORK / "input"), "output": str(place / "output"), **params},
        conf=CONF,
        target_batch_s=target_batch_s,
    )

    def drive() -> None:
        with contextlib.suppress(RunCancelledError):
            run_job(ask, spark=spark, stop=stop, on_progress=job.note)

    thread = threading.Thread(target=drive)
    thread.start()
    try:
        yield job
    finally:
        stop.set()
        thread.join()


if __name__ == "__main__":
    sys.exit(main())
