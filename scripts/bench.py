"""Measure what the runtime costs over the same query in plain PySpark, with each of its sinks.

The input is 5 million CSV rows: 1,000 keys, 120 one-minute windows, event times out of order by up
to 5 seconds. Plain PySpark writes with its native Parquet sink. Each side runs in a fresh JVM, in
turns, so that a slow moment of the machine meets all; the figures are ratios within one round.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from benchmarks.sessions import QUIET

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".work" / "bench"
sys.path[:0] = [str(ROOT), str(ROOT / "scripts" / "benchmarks")]
KEYS = 1_000
WINDOWS = 120
JITTER_S = 5
FILES = 20
TARGETS = {2: 1.10, 20: 1.05}  # of the files sink, for the query, by batches
CONF = {
    **QUIET,
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
}


def main() -> int:
    """Run the benchmark, or one side of it."""
    from locations import PLAIN, SINKS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--batches", type=int, default=2, help="batches that read the input")
    parser.add_argument("--rounds", type=int, default=5, help="how often each side runs")
    parser.add_argument("--sinks", default="files", help=f"with commas: {','.join(SINKS)}; or all")
    parser.add_argument("--side", choices=(PLAIN, *SINKS), help="run one side, print JSON")
    arguments = parser.parse_args()
    folder = WORK / f"input-{arguments.rows}"
    make_input(folder, arguments.rows)
    if arguments.side:
        print(json.dumps(measure(arguments.side, folder, arguments.batches)))
        return 0
    sinks = SINKS if arguments.sinks == "all" else tuple(arguments.sinks.split(","))
    found = run_in_turns((PLAIN, *sinks), arguments.rows, arguments.batches, arguments.rounds)
    return report(found, arguments.rows, arguments.batches, arguments.rounds)


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
    from locations import PLAIN, count_rows, prepare

    from airflow_provider.runtime.spark.session import jvm_pid, start_spark
    from tests.extensions.postgres.postgres_support import postgres_server

    location = WORK / side
    shutil.rmtree(location, ignore_errors=True)
    prepare(side, location)
    spark = start_spark("bench", "local[2]", CONF)
    spark.sparkContext.setLogLevel("ERROR")
    pids = (os.getpid(), jvm_pid(spark))
    with (
        postgres_server() if side.startswith("postgres") else contextlib.nullcontext("") as database
    ):
        cpu, begun = cpu_seconds(pids), dt.datetime.now(dt.timezone.utc)
        if side == PLAIN:
            all_read = run_plain(spark, folder, location, FILES // batches)
        else:
            params = {"sink": side, "location": str(location), "database": database}
            all_read = run_runtime(spark, folder, location, FILES // batches, params)
        ended = dt.datetime.now(dt.timezone.utc)
        measured = {
            "query_s": (all_read - begun).total_seconds(),
            "wall_s": (ended - begun).total_seconds(),
            "cpu_s": cpu_seconds(pids) - cpu,
            "rows": float(count_rows(side, location, database)),
        }
    spark.stop()
    return measured


def run_plain(
    spark: SparkSession, folder: Path, location: Path, files_per_batch: int
) -> dt.datetime:
    """Run the query as Spark's guide shows it, with the native Parquet sink.

    Returns:
        When all input was read and written.
    """
    from windows import SCHEMA, WATERMARK, count_by_window

    events = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", files_per_batch)
    query = (
        count_by_window(events.csv(str(folder)).withWatermark(*WATERMARK))
        .writeStream.format("parquet")
        .option("path", str(location / "output"))
        .option("checkpointLocation", str(location / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return dt.datetime.now(dt.timezone.utc)


def run_runtime(
    spark: SparkSession, folder: Path, location: Path, files_per_batch: int, params: dict[str, str]
) -> dt.datetime:
    """Run the same query to its final checkpoint.

    Returns:
        When all input was read and its output published; what follows is the drain, which plain
        Spark does not have.
    """
    from airflow_provider.runtime.driver.run import run_job
    from airflow_provider.runtime.jobdir.end_of_input import drain_intent
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.jobdir.run_spec import RunSpec
    from airflow_provider.runtime.storage.open import open_storage

    params = {**params, "input": str(folder), "files_per_batch": str(files_per_batch)}
    entry = f"{ROOT}/scripts/benchmarks/windows.py:windows"
    job_dir = str(location / "job")
    asked = RunSpec(job_dir=job_dir, entry=entry, params=params, conf=CONF, mode="streaming")
    final = run_job(asked, spark=spark)
    (query,) = final.queries
    intent = drain_intent(JobDirectory(open_storage(job_dir)), query)
    if intent is None:
        sys.exit("bench: the job did not drain")
    return dt.datetime.fromisoformat(intent.at.replace("Z", "+00:00"))


def cpu_seconds(pids: tuple[int, ...]) -> float:
    """Return the CPU time that the processes have used, user and system."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def run_in_turns(
    sides: tuple[str, ...], rows: int, batches: int, rounds: int
) -> dict[str, list[dict[str, float]]]:
    """Run every side once a round, back and forth; return what each round measured."""
    found: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    for turn in range(rounds):
        for side in sides if turn % 2 == 0 else reversed(sides):
            options = ["--rows", str(rows), "--batches", str(batches), "--side", side]
            done = subprocess.run(
                [sys.executable, __file__, *options], stdout=subprocess.PIPE, text=True, check=True
            )
            found[side].append(json.loads(done.stdout.splitlines()[-1]))
            print(f"round {turn + 1} {side:10s} {found[side][-1]}", flush=True)
    return found


def report(found: dict[str, list[dict[str, float]]], rows: int, batches: int, rounds: int) -> int:
    """Print medians, and the medians of the rounds' ratios to plain PySpark."""
    from locations import PLAIN

    print(f"\n{rows:,} rows in {batches} batches, medians of {rounds} rounds in turns")
    print("| | query | to the end | CPU | query / plain | end / plain | groups written |")
    print("|---|---|---|---|---|---|---|")
    ratios: dict[str, float] = {}
    for side, measured in found.items():
        query, wall, cpu, written = (
            statistics.median(m[key] for m in measured)
            for key in ("query_s", "wall_s", "cpu_s", "rows")
        )
        ratios[side], ended = (
            statistics.median(
                m[key] / plain["query_s"] for m, plain in zip(measured, found[PLAIN], strict=True)
            )
            for key in ("query_s", "wall_s")
        )
        print(
            f"| {side} | {query:.2f} s | {wall:.2f} s | {cpu:.2f} s | {ratios[side]:.3f} "
            f"| {ended:.3f} | {written:,.0f} of {KEYS * WINDOWS:,} |"
        )
    target = TARGETS.get(batches)
    if target is None or "files" not in ratios:
        return 0
    print(f"\nfiles: {ratios['files']:.3f} of plain PySpark for the query; target {target}")
    return 0 if ratios["files"] <= target else 1


if __name__ == "__main__":
    sys.exit(main())
