"""Measure how long savepoints and stops take under backpressure, with batches paced and not.

The job takes a millisecond for every row, and reads a backlog that it cannot catch up with. Without
batch_sizing a batch is what the job's own limit allows, 30 seconds of one core; with it, what fits
into a second. Aligned savepoints wait for the batch in flight, and so do stops; both are asked for
when it has just begun, which is the worst moment. A stop is measured from the request to the answer
SUSPENDED, and, where the batch in flight is waited for, from that one's commit.
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

from sessions import QUIET

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.checkpoint.logs import CheckpointLogs

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".work" / "backpressure"
sys.path.insert(0, str(ROOT))
ROWS_PER_FILE = 250
FILES_PER_BATCH = 120
FILES = 5 * FILES_PER_BATCH
TARGET_S = 1.0
SETTLED = 6  # batches after which the size is found
AFTER_BATCH_S = 2.0  # a stop may take so much longer than the batch in flight
FLINK_S = 1.5  # Flink 2.3's stop with debloating, on such a job
CONF = {
    **QUIET,
    "spark.sql.session.timeZone": "UTC",
}


def main() -> int:
    """Measure both, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--savepoints", type=int, default=5, help="of the paced job")
    parser.add_argument("--stops", type=int, default=3, help="of each kind; paced, two more")
    arguments = parser.parse_args()
    from airflow_provider.runtime.spark.session import start_spark

    shutil.rmtree(WORK, ignore_errors=True)
    make_input(WORK / "input")
    spark = start_spark("backpressure", "local[2]", CONF)
    spark.sparkContext.setLogLevel("ERROR")
    measure_savepoints(spark, arguments.savepoints)
    is_met = measure_stops(spark, arguments.stops)
    spark.stop()
    return 0 if is_met else 1


def measure_savepoints(spark: SparkSession, paced: int) -> None:
    """Take savepoints of both jobs, print a table."""
    print("| batches | savepoint | seconds | the batch in flight |\n|---|---|---|---|")
    with running(spark, "whole", files_per_batch=str(FILES_PER_BATCH)) as job:
        for name, timeout_s in (("aligned", 600.0), ("unaligned", 0.0), ("timeout 5 s", 5.0)):
            job.await_new_batch()
            tell("as the job limits them", name, [job.savepoint(timeout_s)])
    with running(spark, "paced", target_batch_s=TARGET_S) as job:
        for _ in range(SETTLED):
            job.await_new_batch()
        taken = []
        for _ in range(paced):
            job.await_new_batch()
            taken.append(job.savepoint(600.0))
        tell(f"paced to {TARGET_S:g} s", "aligned", taken)
        print(f"\n{job.batch_sizing}")


def measure_stops(spark: SparkSession, rounds: int) -> bool:
    """Stop both jobs again and again, print a table; tell whether they are quick enough."""
    from airflow_provider.runtime.base.clock import SystemClock

    whole: dict[str, Any] = {"files_per_batch": str(FILES_PER_BATCH)}
    kinds: list[tuple[str, float | None, int, int, dict[str, Any]]] = [
        ("as the job limits them", None, rounds, 1, whole),
        ("the same, `--aligned-timeout 0`", 0.0, rounds, 1, whole),
        ("the same, `--aligned-timeout 5`", 5.0, rounds, 1, whole),
        (f"paced to {TARGET_S:g} s", None, rounds + 2, SETTLED, {"target_batch_s": TARGET_S}),
    ]
    print("\n| batches | from request to SUSPENDED | after the batch in flight |\n|---|---|---|")
    late, paced = 0.0, 0.0
    for number, (name, timeout_s, count, settled, params) in enumerate(kinds):
        took, after = [], []
        for turn in range(count):
            with running(spark, f"stopped-{number}-{turn}", **params) as job:
                for _ in range(settled):
                    job.await_new_batch()
                each = job.stop(SystemClock(), timeout_s)
            took.append(each[0])
            after += [each[1]] if each[1] is not None else []
        print(
            f"| {name} | {spread(took)} | {spread(after) if after else 'is cut short'} |",
            flush=True,
        )
        late, paced = max([late, *after]), statistics.median(took)
    print(f"\ntargets: {AFTER_BATCH_S:g} s after the batch in flight; paced, below {FLINK_S:g} s")
    return late <= AFTER_BATCH_S and paced < FLINK_S


def make_input(folder: Path) -> None:
    """Write the backlog."""
    folder.mkdir(parents=True)
    for number in range(FILES):
        first = number * ROWS_PER_FILE
        lines = (f"{n},{'x' * 20}\n" for n in range(first, first + ROWS_PER_FILE))
        (folder / f"{number:05d}.csv").write_text("".join(lines))


def tell(batches: str, kind: str, taken: list[tuple[float, bool]]) -> None:
    """Print one line of the table."""
    text = spread([took for took, _ in taken])
    aligned = {aligned for _, aligned in taken}
    ended = "has ended" if aligned == {True} else "is run again by a restore"
    print(f"| {batches} | {kind} | {text} | {ended} |", flush=True)


def spread(seconds: list[float]) -> str:
    """Return the median, and between what it lies."""
    if len(seconds) == 1:
        return f"{seconds[0]:.2f} s"
    return f"{statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f})"


class Job:
    """A run in a thread of its own, looked at from outside."""

    def __init__(self, location: Path) -> None:
        self._location = location
        self._seen = -1
        self._taken = 0
        self.batch_sizing: Any = None

    def note(self, progress: Any) -> None:
        """Take the run's progress."""
        self.batch_sizing = progress.queries["slow"].batch_sizing

    def await_new_batch(self) -> None:
        """Wait until a batch has begun after the one that was seen last; one must have ended."""
        logs = self._logs()
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            position = logs.position()
            if position.last_offsets > max(position.last_commit, self._seen, 0):
                self._seen = position.last_offsets
                return
            time.sleep(0.02)
        sys.exit("backpressure: no batch has begun in five minutes")

    def _logs(self) -> CheckpointLogs:
        from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
        from airflow_provider.runtime.storage.open import open_storage

        return CheckpointLogs(open_storage(str(self._location / "job/queries/slow/checkpoint")))

    def stop(self, clock: Clock, aligned_timeout_s: float | None) -> tuple[float, float | None]:
        """Return how long a stop took, and how long after the commit of the batch in flight.

        The latter is None when that batch was cut short.
        """
        from airflow_provider.runtime.control.stop import request_stop

        batch, path = self._seen, str(self._location / "job")
        begun = time.time()
        answer = request_stop(path, clock, aligned_timeout_s=aligned_timeout_s).wait(clock, 600)
        ended = time.time()
        if answer.outcome != "SUSPENDED":
            sys.exit(f"backpressure: {answer}")
        commit = self._location / "job/queries/slow/checkpoint/commits" / str(batch)
        after = ended - max(begun, commit.stat().st_mtime) if commit.exists() else None
        return ended - begun, after

    def savepoint(self, aligned_timeout_s: float) -> tuple[float, bool]:
        """Return how long a savepoint took, and whether it is aligned."""
        from airflow_provider.runtime.base.clock import SystemClock
        from airflow_provider.runtime.savepoints.checkpoint_source import job_source
        from airflow_provider.runtime.savepoints.take import take_savepoint

        self._taken += 1
        begun = time.monotonic()
        taken = take_savepoint(
            job_source(str(self._location / "job"), SystemClock()),
            str(self._location / "savepoints" / str(self._taken)),
            aligned_timeout_s=aligned_timeout_s,
        )
        seconds = time.monotonic() - begun
        return seconds, taken.record.aligned


@contextlib.contextmanager
def running(
    spark: SparkSession, name: str, *, target_batch_s: float = 0.0, **params: str
) -> Iterator[Job]:
    """Run the slow job until the block ends."""
    from airflow_provider.runtime.driver.run import run_job
    from airflow_provider.runtime.errors import RunCancelledError
    from airflow_provider.runtime.jobdir.run_spec import RunSpec

    location = WORK / name
    job, stop = Job(location), threading.Event()
    ask = RunSpec(
        job_dir=str(location / "job"),
        entry=f"{ROOT}/scripts/benchmarks/slow.py:slow",
        until="stopped",
        params={"input": str(WORK / "input"), "output": str(location / "output"), **params},
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
