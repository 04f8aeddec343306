"""Measure what a job costs as it grows: by batches up to a million, by runs up to ten thousand.

Storage operations and time of a start, a batch, a savepoint and status in a local job directory,
without Spark. A job's last three hundred batches go through the runtime itself, which folds the
records of its epochs; those before them are folded as it would have, in runs of a hundred batches
each, and Spark's logs keep their last hundred. Runs have ended, each with its lease, attempt and
final checkpoint. An operation is a request to a bucket, or nearly (docs/storage.md). The last two
columns must have the same numbers.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import shutil
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".work" / "growth"
sys.path.insert(0, str(ROOT))

from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.cli import main as main_module
from airflow_provider.runtime.driver.run import check_before_spark
from airflow_provider.runtime.jobdir.epoch_documents import HistoryRecord
from airflow_provider.runtime.jobdir.expiry import KEEP_LEASES, retire_old
from airflow_provider.runtime.jobdir.run_spec import RunSpec
from airflow_provider.runtime.jobdir.runs import resolve_run_id
from airflow_provider.runtime.observe.observer import RunWatcher
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.savepoints.rewind import replayable_runs
from airflow_provider.runtime.savepoints.take import take_savepoint
from airflow_provider.runtime.sinks.committer import EpochCommitter
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.testing.job_directories import CheckpointBuilder, JobDirectoryBuilder
from tests.unit.ended import Ended
from tests.unit.support import (
    EpochBench,
    FakeFrame,
    FakeSink,
    counted,
)

OPERATIONS = {
    "read": "read",
    "exists": "read",
    "put": "put",
    "put_if_absent": "put",
    "list": "list",
    "delete": "delete",
    "delete_all": "delete",
}
REAL = 300  # batches that run
KEPT = 100  # of Spark's logs
OF_RUN = 100  # so many batches has each run that is folded away
OPS: Counter[str] = Counter()
Found = dict[str, tuple[str, float]]


def main() -> int:
    """Measure both, print a table of each; 1 if a number of operations has grown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, nargs="+", default=[100, 10_000, 1_000_000])
    parser.add_argument("--runs", type=int, nargs="+", default=[10, 1_000, 10_000])
    parser.add_argument("--work", type=Path, default=WORK)
    arguments = parser.parse_args()
    count_operations()
    grown = 0
    for what, sizes, measure in (
        ("batches", arguments.batches, measure_batches),
        ("runs", arguments.runs, measure_runs),
    ):
        shutil.rmtree(arguments.work, ignore_errors=True)
        found = {size: measure(arguments.work / f"{what}-{size}", size) for size in sizes}
        print(f"\n{what}: operations (r read, p put, l list, d delete), time\n")
        print(table(what, found))
        last = [[ops for ops, _ in row[-2:]] for row in rows_of(found).values()]
        grown += sum(len(set(ops)) > 1 for ops in last)
    shutil.rmtree(arguments.work, ignore_errors=True)
    return 1 if grown else 0


def count_operations() -> None:
    """Count whatever the runtime asks of a local folder."""

    def counting(name: str, inner: Callable[..., Any]) -> Callable[..., Any]:
        def count(*args: Any) -> Any:
            OPS[OPERATIONS[name]] += 1
            return inner(*args)

        return count

    for name in OPERATIONS:
        setattr(LocalStorage, name, counting(name, getattr(LocalStorage, name)))


def measured(act: Callable[[], Any], *, times: int = 1) -> tuple[str, float]:
    """Return the operations of one call, and its time in milliseconds."""
    OPS.clear()
    began = time.perf_counter()
    for _ in range(times):
        act()
    took = (time.perf_counter() - began) / times
    each = [f"{OPS[op] / times:.4g} {op[0]}" for op in ("read", "put", "list", "delete") if OPS[op]]
    return " ".join(each), took * 1000


def measure_batches(root: Path, batches: int) -> Found:
    """Measure a stream that has run so many batches."""
    job = EpochBench(root / "job", FakeSink()).begun()
    real = min(REAL, batches)
    if batches > real:
        job.records.put_folded(folded(batches - real))
    numbers = iter(range(batches - real, sys.maxsize))
    first, spark = stream_of(job, "r1"), job.spark
    for batch in range(max(batches - real - KEPT, 0), batches - real):
        spark.run(batch)
    first.recover()
    for _ in range(real):
        run_batch(spark, first, next(numbers))
    second = stream_of(job, "r2")
    source = job_source(job.storage.url, job.clock)
    locations = iter(range(sys.maxsize))

    def save() -> None:
        target = root / "savepoints" / str(next(locations))
        take_savepoint(source, str(target), aligned_timeout_s=0, clock=job.clock)

    found = {
        "start: recovery of a query": measured(second.recover),
        "batch (mean of 200)": measured(lambda: run_batch(spark, second, next(numbers)), times=200),
        "a look of a savepoint": measured(lambda: source.poll(source.queries[0])),
        "savepoint": measured(save),
        "start after these batches": measured(stream_of(job, "r3").recover),
    }
    job.close()
    return {**found, "`status`": measured(lambda: status(job))}


def folded(batches: int) -> HistoryRecord:
    """Return what is left of the records of so many batches: a line for each run of a hundred."""
    runs = range(0, batches, OF_RUN)
    ends = (min(first + OF_RUN, batches) - 1 for first in runs)
    return HistoryRecord(
        ranges=[
            (first, last, first + 1, f"r-{first}") for first, last in zip(runs, ends, strict=True)
        ]
    )


def stream_of(job: EpochBench, run_id: str) -> EpochCommitter:
    """Return what a driver of a stream commits with, under the next lease."""
    job.close()
    return EpochCommitter(
        "q",
        storage=job.committables,
        logs=job.spark.logs,
        sinks=job.sinks,
        lease=job.lease(run_id),
        run_id=run_id,
        clock=job.clock,
        keep_runs=[],
    )


def run_batch(spark: CheckpointBuilder, epochs: EpochCommitter, batch: int) -> None:
    """Run a batch as Spark does, which forgets the one a hundred before it."""
    spark.plan(batch)
    epochs.pre_commit(FakeFrame("row"), batch, counted(1))
    spark.commit(batch)
    epochs.commit_ready()
    for log in ("offsets", "commits"):
        (spark.root / log / str(batch - KEPT)).unlink(missing_ok=True)


def measure_runs(root: Path, runs: int) -> Found:
    """Measure a job that so many runs have suspended."""
    made = Ended(JobDirectoryBuilder(root / "job").ran(2)).runs(runs)
    job, clock = made.job, SystemClock()
    entry = root / "entry.py"
    entry.write_text("def job(ctx): ...\n")
    ask = RunSpec(job_dir=job.directory.url, entry=f"{entry}:job")

    def retire() -> None:
        retire_old(job.directory, made.token)

    first = runs - KEEP_LEASES
    for token in range(1, first):  # as the starts before this one have done
        (job.root / "heartbeats" / f"{token}.json").unlink()
    if first > 1:
        job.storage.put("retired.json", f'{{"version": 1, "token": {first - 1}}}'.encode())
    return {
        "which run, without an id": measured(
            lambda: resolve_run_id(job.directory, ask, clock.now())
        ),
        "what is refused before Spark starts": measured(
            lambda: check_before_spark(ask, job.directory, "new", clock)
        ),
        "which runs stay replayable": measured(lambda: replayable_runs(job.directory, "new", 3)),
        "what is old is removed": measured(retire),
        "a watcher's first look": measured(lambda: RunWatcher(job.storage, "new", clock).poll()),
        "`status`": measured(lambda: status(job)),
    }


def status(job: EpochBench | JobDirectoryBuilder) -> None:
    """Call the command; nobody drives the job, or it would watch the driver for a moment."""
    with contextlib.redirect_stdout(io.StringIO()):
        main_module.main(["status", job.storage.url])


def rows_of(found: dict[int, Found]) -> dict[str, list[tuple[str, float]]]:
    """Return for each thing what it cost at each size."""
    first = next(iter(found.values()))
    return {what: [found[size][what] for size in found] for what in first}


def table(what: str, found: dict[int, Found]) -> str:
    """Return a table in Markdown."""

    def lines() -> Iterator[str]:
        yield f"| | {' | '.join(f'{size:,} {what}' for size in found)} |"
        yield f"|---{'|---' * len(found)}|"
        for name, row in rows_of(found).items():
            yield f"| {name} | {' | '.join(f'{ops}; {ms:.1f} ms' for ops, ms in row)} |"

    return "\n".join(lines())


if __name__ == "__main__":
    sys.exit(main())
