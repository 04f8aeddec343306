"""Measure what the runtime costs over the same query in plain PySpark.

The input is 5 million CSV rows: 1,000 keys, 120 one-minute windows, event times out of order by up
to 5 seconds. Each side runs in a fresh JVM, in turns, so that a slow moment of the machine meets
both; the figures are ratios within one run of this script.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".work" / "bench"
KEYS = 1_000
WINDOWS = 120
JITTER_S = 5
FILES = 20
TARGET_RATIO = 1.10
CONF = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


def main() -> int:
    """Run the benchmark, or one side of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--batches", type=int, default=2, help="batches that read the input")
    parser.add_argument("--rounds", type=int, default=3, help="how often each side runs")
    parser.add_argument("--side", choices=("plain", "runtime"), help="run one side, print JSON")
    arguments = parser.parse_args()
    folder = WORK / f"input-{arguments.rows}"
    make_input(folder, arguments.rows)
    if arguments.side:
        print(json.dumps(measure(arguments.side, folder, arguments.batches)))
        return 0
    return compare(arguments.rows, arguments.batches, arguments.rounds)


def make_input(folder: Path, rows: int) -> None:
    """Write the input once; the same numbers make the same rows."""
    if folder.is_dir():
        return
    unfinished = folder.with_name(f".{folder.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    random = np.random.default_rng(2013)
    offset = np.arange(rows) * (WINDOWS * 60.0 / rows) + random.uniform(-JITTER_S, 0, rows)
    moments = pd.Timestamp("2026-01-01") + pd.to_timedelta(np.maximum(offset, 0), unit="s")
    frame = pd.DataFrame(
        {
            "ts": moments.strftime("%Y-%m-%dT%H:%M:%S.%f"),
            "key": random.integers(0, KEYS, rows),
            "value": random.integers(0, 100, rows),
        }
    )
    for number, part in enumerate(np.array_split(np.arange(rows), FILES)):
        name = f"part-{number:02d}.csv"
        frame.iloc[part[0] : part[-1] + 1].to_csv(unfinished / name, index=False, header=False)
    unfinished.replace(folder)


def measure(side: str, folder: Path, batches: int) -> dict[str, float]:
    """Run one side in this process; return seconds and rows."""
    from airflow_provider.runtime.session import jvm_pid, start_spark

    place = WORK / side
    shutil.rmtree(place, ignore_errors=True)
    spark = start_spark("bench", "local[2]", CONF)
    spark.sparkContext.setLogLevel("ERROR")
    pids = (os.getpid(), jvm_pid(spark))
    run = {"plain": run_plain, "runtime": run_runtime}[side]
    cpu, wall = cpu_seconds(pids), time.perf_counter()
    run(spark, folder, place, FILES // batches)
    measured = {
        "wall_s": time.perf_counter() - wall,
        "cpu_s": cpu_seconds(pids) - cpu,
        "rows": float(len(pd.read_parquet(place / "output"))),
    }
    spark.stop()
    return measured


def run_plain(spark: SparkSession, folder: Path, place: Path, files_per_batch: int) -> None:
    """Run the query as Spark's guide shows it, with the native Parquet sink."""
    sys.path.insert(0, str(ROOT / "scripts" / "benchmarks"))
    from windows import SCHEMA, WATERMARK, count_by_window

    events = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", files_per_batch)
    query = (
        count_by_window(events.csv(str(folder)).withWatermark(*WATERMARK))
        .writeStream.format("parquet")
        .option("path", str(place / "output"))
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def run_runtime(spark: SparkSession, folder: Path, place: Path, files_per_batch: int) -> None:
    """Run the same query to its final checkpoint."""
    from airflow_provider.runtime.asking import Ask
    from airflow_provider.runtime.driver import run_job

    params = {
        "input": str(folder),
        "output": str(place / "output"),
        "files_per_batch": str(files_per_batch),
    }
    entry = f"{ROOT}/scripts/benchmarks/windows.py:windows"
    run_job(Ask(job_dir=str(place / "job"), entry=entry, params=params, conf=CONF), spark=spark)


def cpu_seconds(pids: tuple[int, ...]) -> float:
    """Return the CPU time that the processes have used, user and system."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def compare(rows: int, batches: int, rounds: int) -> int:
    """Run both sides in turns and print the ratios."""
    found: dict[str, list[dict[str, float]]] = {"plain": [], "runtime": []}
    for turn in range(rounds):
        sides = ("plain", "runtime") if turn % 2 == 0 else ("runtime", "plain")
        for side in sides:
            options = ["--rows", str(rows), "--batches", str(batches), "--side", side]
            done = subprocess.run(
                [sys.executable, __file__, *options], stdout=subprocess.PIPE, text=True, check=True
            )
            found[side].append(json.loads(done.stdout.splitlines()[-1]))
            print(f"round {turn + 1} {side:8s} {found[side][-1]}", flush=True)
    medians = {
        side: {key: statistics.median(m[key] for m in measured) for key in measured[0]}
        for side, measured in found.items()
    }
    plain, runtime = medians["plain"], medians["runtime"]
    wall, cpu = runtime["wall_s"] / plain["wall_s"], runtime["cpu_s"] / plain["cpu_s"]
    print(f"\n{rows:,} rows in {batches} batches, medians of {rounds} rounds in turns")
    print(f"plain PySpark  {plain['wall_s']:6.2f} s wall  {plain['cpu_s']:6.2f} s CPU", end="")
    print(f"  {plain['rows']:,.0f} of {KEYS * WINDOWS:,} groups written")
    print(f"this runtime   {runtime['wall_s']:6.2f} s wall  {runtime['cpu_s']:6.2f} s CPU", end="")
    print(f"  {runtime['rows']:,.0f} of {KEYS * WINDOWS:,} groups written, drained")
    print(f"ratio          {wall:6.3f} wall    {cpu:6.3f} CPU    (target: {TARGET_RATIO} wall)")
    return 0 if wall <= TARGET_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
