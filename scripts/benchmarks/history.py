"""Measure what the history of batches costs a driver: the same job with it and without.

One JVM runs a job of fifty small batches, which is where a history costs most: with its history,
and with a writer that does nothing, in turns, after two runs that warm. Which side begins changes
from round to round. The ratio is one of times within a round; the last line gives the CPU time that
the writer took, and what it put.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".work" / "history"
sys.path.insert(0, str(ROOT))
# The archive of classes is that of the other benchmarks.
os.environ.setdefault("SPARK_STREAM_CACHE", str(ROOT / ".work" / "cache"))

from airflow_provider.runtime.driver.progress import HistoryWriter
from airflow_provider.runtime.driver.run import run_job
from airflow_provider.runtime.jobdir.run_spec import RunSpec
from airflow_provider.runtime.spark.session import start_spark
from scripts.benchmarks.sessions import QUIET

KEYS = 1_000
AIM = 0.99
SPENT: list[float] = []
LOCATIONS = (WORK / str(number) for number in itertools.count())


def main() -> int:
    """Measure, and print a line for each round; 1 if the aim is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--batches", type=int, default=50)
    parser.add_argument("--rows", type=int, default=20_000, help="of a batch")
    arguments = parser.parse_args()
    shutil.rmtree(WORK, ignore_errors=True)
    make_input(arguments.batches, arguments.rows)
    spark = start_spark("history", "local[2]", {**QUIET, "spark.sql.session.timeZone": "UTC"})
    spark.sparkContext.setLogLevel("ERROR")
    ratios = []
    try:
        for _ in range(2):
            run(spark, with_history=True)
        SPENT.clear()
        for number in range(arguments.rounds):
            order = (True, False) if number % 2 else (False, True)
            seconds = {side: run(spark, with_history=side) for side in order}
            ratios.append(seconds[False] / seconds[True])
            both = f"without {seconds[False]:.2f} s, with {seconds[True]:.2f} s"
            print(f"round {number + 1}: {both}, throughput {ratios[-1]:.3f}", flush=True)
    finally:
        spark.stop()
    median = statistics.median(ratios)
    put = max(file.stat().st_size for file in WORK.glob("*/job/runs/*/history/*.json"))
    print(f"throughput with the history, median of {len(ratios)}: {median:.3f} (aim {AIM})")
    print(
        f"its writer: {statistics.median(SPENT) * 1000:.0f} ms of CPU a run; {put:,} bytes stored"
    )
    shutil.rmtree(WORK, ignore_errors=True)
    return int(median < AIM)


def make_input(batches: int, rows: int) -> None:
    """Write a file of Parquet for each batch."""
    (WORK / "input").mkdir(parents=True)
    for number in range(batches):
        ids = np.arange(number * rows, (number + 1) * rows)
        when = pd.Timestamp("2026-01-01", tz="UTC") + pd.to_timedelta(ids % 86_400, unit="s")
        frame = pd.DataFrame({"ts": when, "id": ids, "value": ids % 97})
        frame = frame.astype({"ts": "datetime64[us, UTC]"})
        frame.to_parquet(WORK / "input" / f"{number:05d}.parquet")


def run(spark: SparkSession, *, with_history: bool) -> float:
    """Run the job to its final checkpoint; return the seconds."""
    location = next(LOCATIONS)
    spec = RunSpec(
        job_dir=str(location / "job"),
        entry=f"{ROOT}/scripts/benchmarks/scaled.py:scaled",
        params={
            "keys": KEYS,
            "queries": 1,
            "sinks": 1,
            "input": str(WORK / "input"),
            "output": str(location / "output"),
        },
        conf={"spark.sql.shuffle.partitions": "2"},
        mode="streaming",
    )
    write = HistoryWriter.write
    if with_history:
        SPENT.append(0.0)
    with patch.object(HistoryWriter, write.__name__, timed(write) if with_history else nothing):
        begun = time.monotonic()
        final = run_job(spec, spark=spark)
        seconds = time.monotonic() - begun
    if [sink.rows for sink in final.queries["q00"].sinks] != [KEYS]:
        sys.exit(f"history: the output is wrong: {final.queries}")
    return seconds


def timed(inner: Callable[..., None]) -> Callable[..., None]:
    """Count the CPU time of a method of the writer."""

    def call(*arguments: Any, **named: Any) -> None:
        begun = time.thread_time()
        inner(*arguments, **named)
        SPENT[-1] += time.thread_time() - begun

    return call


def nothing(*arguments: Any, **named: Any) -> None:
    """Write no history."""


if __name__ == "__main__":
    sys.exit(main())
