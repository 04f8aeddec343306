"""Measure what it takes to bootstrap, read, query and compare the state of ten million keys.

The job counts and sums sales per account. Its state is bootstrapped from Parquet files with one
sale for each account, which gives savepoint A; then the live job reads one more sale for each
hundredth account, and some for new ones, which gives savepoint B. The rows of both are written as
Parquet, too. What is done with state is then done with these files in the same JVM, in turns, so
that the ratios are of one moment of the machine. Every result is compared with what it must be.

Each size has a JVM of its own, with a small heap; in local mode its executors are in it. Peaks of
memory are those that Linux has seen, of the Python driver and of the JVM with all its native parts.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from sessions import QUIET

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from airflow_provider.extensions.state_tools import StateReader, TableDiff

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".work" / "state"
sys.path[:0] = [str(ROOT), str(ROOT / "scripts" / "benchmarks")]
FILES = 20
CHANGED_EVERY = 100
ADDED_EVERY = 1_000
HEAP = "2g"
STATE = "spark.sql.streaming.stateStore"
PROVIDERS = "org.apache.spark.sql.execution.streaming.state"
STORES = {"rocksdb": "RocksDBStateStoreProvider", "hdfs": "HDFSBackedStateStoreProvider"}
SQL = "SELECT count(*), sum(count), max(sum), count_if(account LIKE '%7') FROM {}"
MEGABYTE = 1 << 20
TARGET_GROWTH = 1.1  # of the Python driver's memory, from the fewest keys to the most
STEPS = {
    "bootstrap": ("aggregated", "history read"),
    "read": ("rows read",),
    "query": ("queried",),
    "diff": ("compared", "both read"),
}
"""What is measured, and what is done with Parquet files that it is compared with."""


def main() -> int:
    """Measure all sizes and stores, or one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--rounds", type=int, default=2, help="of reading, after one that warms")
    parser.add_argument("--state-partitions", type=int, default=8, help="of the state")
    parser.add_argument("--store", choices=tuple(STORES), default="rocksdb")
    parser.add_argument("--heap", default=HEAP, help="of the JVM")
    parser.add_argument("--side", action="store_true", help="measure one size, print JSON")
    arguments = parser.parse_args()
    if arguments.side:
        return measure(arguments)
    found = [run_side(arguments, keys) for keys in arguments.keys]
    return 0 if report(found) else 1


def run_side(arguments: argparse.Namespace, keys: int) -> dict[str, Any]:
    """Measure one size in processes of its own."""
    asked = {"keys": keys, "heap": arguments.heap, "store": arguments.store}
    asked |= {"rounds": arguments.rounds, "state-partitions": arguments.state_partitions}
    command = [sys.executable, __file__, "--side"]
    command += [f"--{name}={value}" for name, value in asked.items()]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(arguments: argparse.Namespace) -> int:
    """Measure one size, and print what was found as JSON."""
    from airflow_provider.runtime.spark.session import jvm_pid, start_spark

    (keys,) = arguments.keys
    location = WORK / f"{arguments.store}-{keys}"
    shutil.rmtree(location, ignore_errors=True)
    conf = {
        **QUIET,
        "spark.driver.memory": arguments.heap,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(arguments.state_partitions),
        f"{STATE}.providerClass": f"{PROVIDERS}.{STORES[arguments.store]}",
    }
    spark = start_spark("state", "local[2]", conf)
    spark.sparkContext.setLogLevel("ERROR")
    bench = Bench(spark, conf, location, keys, arguments.rounds, Memory(jvm_pid(spark)))
    try:
        print(json.dumps(bench.run()))
    finally:
        spark.stop()
        shutil.rmtree(location, ignore_errors=True)
    return 0


class Memory:
    """The peaks of the memory of the Python driver and of the JVM, as Linux has seen them."""

    def __init__(self, jvm: int) -> None:
        self._processes = {"python": os.getpid(), "jvm": jvm}
        self.peaks: dict[str, dict[str, int]] = {}

    def begin(self) -> None:
        """Forget the peaks so far."""
        for process in self._processes.values():
            Path(f"/proc/{process}/clear_refs").write_text("5")

    def end(self, step: str) -> None:
        """Keep the peaks of a step, and those of its earlier rounds."""
        before = self.peaks.get(step, {})
        self.peaks[step] = {
            name: max(before.get(name, 0), peak_of(process))
            for name, process in self._processes.items()
        }


def peak_of(process: int) -> int:
    """Return the most memory that a process has held, in megabytes."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    peak = next(line for line in lines if line.startswith("VmHWM:"))
    return int(peak.split()[1]) // 1024


@dataclasses.dataclass
class Bench:
    """One size: what is measured, in order."""

    spark: SparkSession
    conf: dict[str, str]
    location: Path
    keys: int
    rounds: int
    memory: Memory
    times: dict[str, list[float]] = dataclasses.field(default_factory=dict)

    def run(self) -> dict[str, Any]:
        """Measure everything, and return it."""
        self.make_input()
        batches = self.bootstrap()
        self.change()
        a, b = self.reader("a"), self.reader("b")
        self.check_diff(a, b)
        for name, reader in (("a", a), ("b", b)):
            reader.table("totals", "keyed_state").write.parquet(f"{self.location}/rows-{name}")
        took = self.times["bootstrap"]
        for number in range(self.rounds + 1):
            self.compare(a, b)
            self.aggregate(a)
            if number == 0:  # it has warmed the JVM
                self.times = {"bootstrap": took}
        heap = self.spark._jvm.java.lang.Runtime.getRuntime().maxMemory()  # type: ignore[union-attr]
        return {
            "keys": self.keys,
            "heap": heap // MEGABYTE,
            "batches": batches,
            "times": self.times,
            "peaks": self.memory.peaks,
        }

    def timed(self, name: str, call: Callable[[], Any]) -> Any:
        """Return what a call returns, and keep how long it took, and the peaks of memory."""
        self.memory.begin()
        begun = time.monotonic()
        result = call()
        self.times.setdefault(name, []).append(time.monotonic() - begun)
        self.memory.end(name)
        return result

    # --- the states -----------------------------------------------------------------------------

    def make_input(self) -> None:
        """Write history, and what comes after it, both in no order of accounts."""
        history, live = self.location / "history", self.location / "live"
        self.sales(0, self.keys, 1).write.parquet(str(history))
        again = self.sales(0, self.keys, CHANGED_EVERY)
        new = self.sales(self.keys, self.keys + self.keys // ADDED_EVERY, 1)
        again.unionAll(new).coalesce(2).write.parquet(str(live))

    def sales(self, begin: int, end: int, step: int) -> DataFrame:
        """Return one sale for each account of a range."""
        ids = self.spark.range(begin, end, step, FILES)
        mixed = F.reverse(F.lpad(F.col("id").cast("string"), 12, "0"))
        account = F.concat(F.lit("account-"), mixed)
        return ids.select(account.alias("account"), (F.col("id") % 9_973 + 1).alias("amount"))

    def bootstrap(self) -> int:
        """Bootstrap savepoint A; return how many batches that took."""
        from airflow_provider.runtime.bootstrap import bootstrap_job
        from airflow_provider.runtime.control.bootstrap_request import BootstrapSpec

        ask = BootstrapSpec(
            job_dir=str(self.location / "job"),
            entry=f"{ROOT}/scripts/benchmarks/totals.py:totals",
            params={"input": str(self.location / "history")},
            to=str(self.location / "a"),
            conf=self.conf,
        )
        made = self.timed("bootstrap", lambda: bootstrap_job(ask, spark=self.spark))
        return int(made.record.queries["totals"].batch) + 1

    def change(self) -> None:
        """Let the live job begin from savepoint A, and take savepoint B."""
        from airflow_provider.runtime.base.clock import SystemClock
        from airflow_provider.runtime.driver.run import run_job
        from airflow_provider.runtime.jobdir.run_spec import RunSpec
        from airflow_provider.runtime.savepoints.checkpoint_source import job_source
        from airflow_provider.runtime.savepoints.take import take_savepoint

        ask = RunSpec(
            job_dir=str(self.location / "job"),
            entry=f"{ROOT}/scripts/benchmarks/totals.py:totals",
            params={"input": str(self.location / "live")},
            until="available",
            at_end="suspend",
            from_savepoint=str(self.location / "a"),
            conf=self.conf,
        )
        run_job(ask, spark=self.spark)
        take_savepoint(job_source(ask.job_dir, SystemClock()), str(self.location / "b"))

    def reader(self, name: str) -> StateReader:
        """Open one of the savepoints."""
        from airflow_provider.extensions.state_tools import StateReader, open_state

        return StateReader(self.spark, open_state(str(self.location / name)))

    def check_diff(self, a: StateReader, b: StateReader) -> None:
        """See that the keys that differ are those of the live rows, by what these say."""
        found = keyed_diff(a, b).frame
        if found is None:
            sys.exit("state: the two states cannot be compared")
        more = F.col("after.sum") - F.coalesce("before.sum", F.lit(0))
        live = self.spark.read.parquet(str(self.location / "live"))
        found = found.select("account", more.alias("amount"))
        expect("keys that differ", all_of(found), all_of(live))

    # --- what is done with them -----------------------------------------------------------------

    def compare(self, a: StateReader, b: StateReader) -> None:
        """Read, query and compare the states, and the same rows in Parquet, in turns."""
        from airflow_provider.extensions.state_tools import query_state

        rows_a, rows_b = (self.spark.read.parquet(f"{self.location}/rows-{n}") for n in "ab")
        rows_a.createOrReplaceTempView("rows_a")
        found = self.timed("read", lambda: all_of(a.table("totals", "keyed_state")))
        expect("rows", found, self.timed("rows read", lambda: all_of(rows_a)))
        expect("how many", found[0], self.keys)
        text = SQL.format("totals.keyed_state")
        found = self.timed("query", lambda: query_state(a, text).collect())
        other = self.timed("queried", lambda: self.spark.sql(SQL.format("rows_a")).collect())
        expect("query", found, other)
        truth = {
            "added": self.keys // ADDED_EVERY,
            "removed": 0,
            "changed": -(-self.keys // CHANGED_EVERY),
        }
        expect("diff", self.timed("diff", lambda: keyed_diff(a, b).counts()), truth)
        self.timed("both read", lambda: (all_of(rows_a), all_of(rows_b)))
        found = self.timed("compared", lambda: diff_rows(rows_a, rows_b))
        expect("diff of rows", found, {k: n for k, n in truth.items() if n})

    def aggregate(self, a: StateReader) -> None:
        """Read history as a batch job does, and aggregate it."""
        from totals import total

        history = self.spark.read.parquet(str(self.location / "history"))
        self.timed("history read", lambda: all_of(history))
        found = self.timed("aggregated", lambda: all_of(total(history)))
        expect("totals", all_of(a.table("totals", "keyed_state").drop("partition_id")), found)


def all_of(rows: DataFrame) -> tuple[int, int]:
    """Read every column of every row; return how many rows, and what tells them from others."""
    hashed = F.bit_xor(F.xxhash64(*rows.columns))
    found = rows.agg(F.count("*"), hashed).collect()[0]
    return int(found[0]), int(found[1] or 0)


def keyed_diff(a: StateReader, b: StateReader) -> TableDiff:
    """Compare the keyed state of two savepoints."""
    from airflow_provider.extensions.state_tools import diff_states

    return next(each for each in diff_states(a, b) if each.table == "keyed_state")


def diff_rows(before: DataFrame, after: DataFrame) -> dict[str, int]:
    """Compare rows as one would by hand."""
    both = before.alias("a").join(after.alias("b"), "account", "full_outer")
    change = (
        F.when(F.col("a.count").isNull(), "added")
        .when(F.col("b.count").isNull(), "removed")
        .when(F.expr("a.count <> b.count OR a.sum <> b.sum"), "changed")
    )
    counted = both.select(change.alias("change")).where("change IS NOT NULL")
    return {row[0]: row[1] for row in counted.groupBy("change").count().collect()}


def expect(what: str, found: object, truth: object) -> None:
    """End when something is not what it must be."""
    if found != truth:
        sys.exit(f"state: {what}: found {found}, not {truth}")


def report(found: list[dict[str, Any]]) -> bool:
    """Print what was found; tell whether the driver's memory does not follow the number of keys."""
    print("\n| keys | | rows/s | time | to Parquet's | peak of Python | peak of the JVM |")
    print("|---|---|---|---|---|---|---|")
    for each in found:
        for step, baselines in STEPS.items():
            print(f"| {each['keys']:,} | {step} | {' | '.join(cells(each, step, baselines))} |")
    for each in found:
        print(f"{each['keys']:,} keys: {each['batches']} batch(es), a heap of {each['heap']:,} MB")
    peaks = [max(peak["python"] for peak in each["peaks"].values()) for each in found]
    print(f"Python, from the fewest keys to the most: at most {TARGET_GROWTH} times the memory")
    return max(peaks) <= TARGET_GROWTH * min(peaks)


def cells(found: dict[str, Any], step: str, baselines: tuple[str, ...]) -> list[str]:
    """Return the cells of one line: rows/s, seconds, ratios, peaks."""
    took = statistics.median(found["times"][step])
    ratios = [
        f"{took / statistics.median(found['times'][name]):.1f} ({name})" for name in baselines
    ]
    peaks = found["peaks"][step]
    rows = found["keys"] / took
    size = [f"{peaks[name]:,} MB" for name in ("python", "jvm")]
    return [f"{rows:,.0f}", f"{took:.2f} s", ", ".join(ratios), *size]


if __name__ == "__main__":
    sys.exit(main())
