"""Measure what savepoints cost the query that they are taken of, and the process that takes them.

``running``: one query at full speed in one JVM (counts per key in RocksDB, with changelogs and with
snapshots and cleaning as often as can be). Short phases without savepoints and with one each second
follow each other, in the order ABBA, so that a slow moment of the machine meets both. The taker is
a process of its own, as it is in production, and shares the cores with the query.

``size``: a gigabyte of state in files of about one and two megabytes, once taken and once copied
with ``cp -r``, in turns. All files are in the page cache, which is what suits ``cp`` best.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sessions import QUIET

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".work" / "bench" / "savepoints"
sys.path.insert(0, str(ROOT))

from tests.pipes import stdin_of, stdout_of

TARGET_RATIO = 0.97
TARGET_PART = 20
KEYS = 20_000
ROWS_PER_BATCH = 100_000
WARM_BATCHES = 30
STORE = "spark.sql.streaming.stateStore"
CONF = {
    **QUIET,
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.numRecentProgressUpdates": "100000",
    f"{STORE}.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    f"{STORE}.rocksdb.changelogCheckpointing.enabled": "true",
    f"{STORE}.minDeltasForSnapshot": "3",
    f"{STORE}.maintenanceInterval": "1s",
    "spark.sql.streaming.minBatchesToRetain": "2",
}


def main() -> int:
    """Run one benchmark, or the process that takes savepoints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("running", "size", "taker"))
    parser.add_argument("--pairs", type=int, default=40, help="of phases, with and without")
    parser.add_argument("--phase", type=float, default=3.0, help="seconds of one phase")
    parser.add_argument("--rounds", type=int, default=7, help="of taking and copying")
    arguments = parser.parse_args()
    if arguments.what == "taker":
        return serve_takes()
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    try:
        if arguments.what == "running":
            return measure_running(arguments.pairs, arguments.phase)
        return measure_size(arguments.rounds)
    finally:
        shutil.rmtree(WORK, ignore_errors=True)


# --- a running query ----------------------------------------------------------------------------


def serve_takes() -> int:
    """Take a savepoint for each name on stdin; say how long it took, and the CPU time."""
    from airflow_provider.runtime.savepoints.checkpoint_source import checkpoint_source
    from airflow_provider.runtime.savepoints.take import take_savepoint

    for line in sys.stdin:
        began, used = time.monotonic(), time.process_time()
        source = checkpoint_source(str(WORK / "checkpoint"))
        take_savepoint(source, str(WORK / "taken" / line.strip()), aligned_timeout_s=0)
        taken_s, cpu_s = time.monotonic() - began, time.process_time() - used
        print(json.dumps({"taken_s": taken_s, "cpu_s": cpu_s}), flush=True)
    return 0


class Taker:
    """The process that takes savepoints on request."""

    def __init__(self) -> None:
        command = [sys.executable, __file__, "taker"]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(command, **pipes)
        self._names = itertools.count()
        self.found: list[dict[str, float]] = []

    def take(self) -> None:
        """Take one more savepoint, and wait for it."""
        stdin_of(self._process).write(f"s{next(self._names)}\n")
        stdin_of(self._process).flush()
        self.found.append(json.loads(stdout_of(self._process).readline()))

    def stop(self) -> None:
        """Let the process end."""
        stdin_of(self._process).close()
        self._process.wait(timeout=30)


def measure_running(pairs: int, phase_s: float) -> int:
    """Compare a query's throughput with and without savepoints."""
    from airflow_provider.runtime.spark.session import start_spark

    spark = start_spark("bench", "local[2]", CONF)
    spark.sparkContext.setLogLevel("ERROR")
    query, taker = start_query(spark), Taker()
    while not query.recentProgress or query.recentProgress[-1]["batchId"] < WARM_BATCHES:
        time.sleep(0.5)
    taker.take()  # so is the taker
    taker.found.clear()
    phases: list[tuple[bool, float, float]] = []
    for number in range(2 * pairs):
        phases.append(run_phase(taker if number % 4 in {1, 2} else None, phase_s))
    time.sleep(3.0)  # the batch that began in the last phase ends
    progress = [json.loads(each.json) for each in query.recentProgress]
    query.stop()
    taker.stop()
    spark.stop()
    return report_running(phases, progress, taker.found)


def start_query(spark: SparkSession) -> StreamingQuery:
    """Start counting rows per key, as fast as it goes."""
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS_PER_BATCH).load()
    counted = rows.groupBy((rows["value"] % KEYS).alias("key")).count()
    writer = counted.writeStream.format("noop").outputMode("update")
    return writer.option("checkpointLocation", str(WORK / "checkpoint")).start()


def run_phase(taker: Taker | None, phase_s: float) -> tuple[bool, float, float]:
    """Let the query run; return whether savepoints were taken, and from when to when."""
    begun, due = time.time(), time.time()
    while (now := time.time()) < begun + phase_s:
        if taker is not None and now >= due:
            taker.take()
            due += 1.0
        else:
            time.sleep(0.005)
    return taker is not None, begun, time.time()


def report_running(
    phases: Sequence[tuple[bool, float, float]],
    progress: Sequence[dict[str, Any]],
    takes: Sequence[dict[str, float]],
) -> int:
    """Print rows per second of both kinds of phases, their ratio, and what the taker used."""
    batches = [
        (began, began + each["durationMs"]["triggerExecution"] / 1000, each["numInputRows"])
        for each in progress
        for began in [datetime.fromisoformat(each["timestamp"].replace("Z", "+00:00")).timestamp()]
    ]
    rates = [(with_them, rows_per_s(batches, begun, end)) for with_them, begun, end in phases]
    without = [rate for with_them, rate in rates if not with_them]
    taken = [rate for with_them, rate in rates if with_them]
    ratios = sorted(a / b for a, b in zip(taken, without, strict=True))
    ratio = statistics.fmean(taken) / statistics.fmean(without)
    quartiles = statistics.quantiles(ratios, n=4)
    times = statistics.quantiles([1000 * take["taken_s"] for take in takes], n=20)
    cpu = 1000 * statistics.fmean(take["cpu_s"] for take in takes)
    print(f"\n{len(taken)} pairs of phases, {len(batches)} batches, {len(takes)} savepoints")
    for name, each in (("without", without), ("with", taken)):
        mean, median = statistics.fmean(each), statistics.median(each)
        print(f"{name}: {mean:,.0f} rows/s, median of the phases {median:,.0f}")
    print(f"ratio of all rows {ratio:.3f}; of pairs {quartiles[1]:.3f}")
    print(f"half of the pairs are within {quartiles[0]:.3f} and {quartiles[2]:.3f}")
    print(
        f"a savepoint: {times[9]:.0f} ms, p95 {times[18]:.0f} ms; CPU of its process {cpu:.0f} ms"
    )
    print(f"target: {TARGET_RATIO}")
    return 0 if quartiles[1] >= TARGET_RATIO else 1


def rows_per_s(batches: Sequence[tuple[float, float, int]], begun: float, end: float) -> float:
    """Return the rows that were read between two moments, each batch's spread over its time."""
    rows = sum(
        count * max(0.0, min(end, ended) - max(begun, began)) / (ended - began)
        for began, ended, count in batches
        if ended > began
    )
    return rows / (end - begun)


# --- a gigabyte ---------------------------------------------------------------------------------


def measure_size(rounds: int) -> int:
    """Compare taking a savepoint with ``cp -r``, for two layouts of a gigabyte."""
    from tests.perf.checkpoints import count_files, write_checkpoint

    print("| files | bytes | taken | CPU | cp -r | sync after it | cp -r / taken | with sync |")
    print("|---|---|---|---|---|---|---|---|")
    parts = []
    for tables in (25, 50):
        checkpoint = WORK / f"checkpoint-{tables}"
        write_checkpoint(checkpoint, tables=tables, table_bytes=50_000_000 // tables)
        files, size = count_files(checkpoint)
        found = [measure_round(checkpoint) for _ in range(rounds + 1)][1:]  # the first one warms
        taken, cpu, copied, synced = (statistics.median(each) for each in zip(*found, strict=True))
        parts.append(statistics.median(each[2] / each[0] for each in found))
        flushed = statistics.median((each[2] + each[3]) / each[0] for each in found)
        print(
            f"| {files:,} | {size / 1e9:.2f} GB | {1000 * taken:.0f} ms | {1000 * cpu:.0f} ms "
            f"| {copied:.2f} s | {synced:.2f} s | {parts[-1]:.1f} | {flushed:.1f} |",
            flush=True,
        )
        shutil.rmtree(checkpoint)
    print(f"target: {TARGET_PART}")
    return 0 if parts[0] >= TARGET_PART else 1


def measure_round(checkpoint: Path) -> tuple[float, float, float, float]:
    """Return the seconds of taking it, of CPU for that, of ``cp -r``, and of flushing its copy."""
    from airflow_provider.runtime.savepoints.checkpoint_source import checkpoint_source
    from airflow_provider.runtime.savepoints.take import take_savepoint

    os.sync()
    target, copy = WORK / "taken", WORK / "copy"
    used = resource.getrusage(resource.RUSAGE_SELF)
    taken = seconds(lambda: take_savepoint(checkpoint_source(str(checkpoint)), str(target)))
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    command = ["/bin/cp", "-r", str(checkpoint), str(copy)]
    copied = seconds(lambda: subprocess.run(command, check=True))
    synced = seconds(os.sync)
    for folder in (target, copy):
        shutil.rmtree(folder)
    return taken, cpu, copied, synced


def seconds(call: Callable[[], object]) -> float:
    """Return how long a call takes."""
    began = time.monotonic()
    call()
    return time.monotonic() - began


if __name__ == "__main__":
    sys.exit(main())
