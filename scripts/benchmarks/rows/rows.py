"""Measure what rules cost, and twenty rules beside two libraries.

*Cost*: a copy of a table to Parquet, as a stream and in BATCH, with rules that count or quarantine
a share of the rows, and with rejected records. All variants run in one warm JVM, in turns within a
round, and the round before the first one warms. Seconds are those of the batch, as Spark reports
them, and CPU seconds those of the JVM in the whole run; a ratio is that of two medians.

*Libraries*: twenty rules over a million rows, rows that break one beside the others, in BATCH.
``databricks-labs-dqx`` and ``sparkdq`` are installed in an environment of their own and used as
their pages show. The counts of each rule must be equal.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import logging
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]
from scripts.benchmarks.rows.rules import (
    RULES,
    SCHEMA,
    dqx_checks,
    make_orders,
    sparkdq_checks,
)
from scripts.benchmarks.sessions import QUIET

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession

WORK: Final = ROOT / ".work" / "rows"
CONF: Final = {
    **QUIET,
    "spark.driver.memory": "3g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
}
JOB: Final = f"{Path(__file__).with_name('jobs.py')}:orders"
VENV: Final = WORK / "venv"
LIBRARIES: Final = ("databricks-labs-dqx==0.17.0", "sparkdq==0.12.1")
PLAIN: Final = "none"
VARIANTS: Final = (
    PLAIN,
    "count 1",
    "count 20",
    "quarantine 0 %",
    "quarantine 0.1 %",
    "quarantine 5 %",
)
REJECTED: Final = "rejected quarantine"
AIM: Final = {"count 1": 1.02}


class Measure(NamedTuple):
    """Seconds of a run: those of its batch, of all of it, and of the JVM's CPU."""

    batch_s: float
    run_s: float
    cpu_s: float


Found = dict[str, list[Measure]]


def main() -> int:
    """Print the tables; return 1 if an aim is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="that count; one before them warms")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--formats", default="csv,parquet")
    parser.add_argument("--modes", default="streaming,batch")
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--parts", default="cost,rejected,libraries")
    given = parser.parse_args()
    parts, modes = given.parts.split(","), given.modes.split(",")
    spark = session()
    try:
        missed: list[str] = []
        if "cost" in parts:
            for file_format in given.formats.split(","):
                data = make_orders(WORK / "input", given.rows, file_format)
                for mode in modes:
                    found = measure(spark, data, mode, given.variants.split(","), given.rounds)
                    missed += report(f"{given.rows:,} rows of {file_format}, {mode}", found)
        if "rejected" in parts:
            for bad in (False, True):
                data = make_orders(WORK / "input", given.rows, "csv", bad=bad)
                for mode in modes:
                    found = measure(spark, data, mode, [PLAIN, REJECTED], given.rounds)
                    share = "5 %" if bad else "none"
                    missed += report(f"{given.rows:,} records of CSV, {share} bad, {mode}", found)
        if "libraries" in parts:
            beside_libraries(spark, given.rows, given.rounds)
    finally:
        spark.stop()
        shutil.rmtree(WORK / "runs", ignore_errors=True)
    print("\n" + ("\n".join(missed) or "every aim is met"))
    return 1 if missed else 0


def session() -> SparkSession:
    """Start Spark as a driver does."""
    from airflow_provider.runtime.spark.session import start_spark

    logging.getLogger("airflow_provider").setLevel(logging.ERROR)  # each run says what it counted
    spark = start_spark("rows", "local[2]", CONF)
    spark.sparkContext.setLogLevel("ERROR")
    return spark


# --- cost -----------------------------------------------------------------------------------------


def measure(spark: SparkSession, data: Path, mode: str, variants: list[str], rounds: int) -> Found:
    """Run each variant in each round, in an order that goes on by one from round to round."""
    found: Found = {variant: [] for variant in variants}
    for number in range(rounds + 1):
        turn = number % len(variants)
        for variant in (*variants[turn:], *variants[:turn]):
            one, _ = run(spark, data, mode, variant)
            if number:
                found[variant].append(one)
    return found


def run(spark: SparkSession, data: Path, mode: str, variant: str) -> tuple[Measure, dict[str, int]]:
    """Run a job to its final checkpoint; return what it took, and the rows that break each rule."""
    from airflow_provider.runtime.driver.run import run_job
    from airflow_provider.runtime.jobdir.run_spec import RunSpec

    location = WORK / "runs"
    shutil.rmtree(location, ignore_errors=True)
    params = {
        "variant": variant,
        "format": "parquet" if data.name.startswith("parquet") else "csv",
        "input": str(data),
        "output": str(location / "output"),
        "kept": str(location / "kept"),
    }
    spec = RunSpec(
        job_dir=str(location / "job"), entry=JOB, params=params, conf=CONF, mode=mode, run_id="r"
    )
    spark._jvm.System.gc()  # type: ignore[union-attr]
    cpu_s, begun = cpu_of(spark), time.monotonic()
    run_job(spec, spark=spark)
    run_s = time.monotonic() - begun
    measured = Measure(batch_of(location / "job"), run_s, cpu_of(spark) - cpu_s)
    return measured, broken_in(location / "job")


def batch_of(job: Path) -> float:
    """Return the seconds of the batches that have read rows."""
    history = json.loads((job / "runs" / "r" / "history" / "out.json").read_text())
    batches = [each for each in history["batches"] if each.get("rows")]
    return sum(each["duration_ms"]["triggerExecution"] for each in batches) / 1000


def broken_in(job: Path) -> dict[str, int]:
    """Return how many rows break each rule, from the records of the epochs."""
    broken: dict[str, int] = {}
    for file in sorted(job.glob("queries/out/**/committables/*/*.json")):
        for tap in json.loads(file.read_text()).get("taps", {}).values():
            broken |= tap["broken"]
    return broken


def cpu_of(spark: SparkSession) -> float:
    """Return the CPU seconds of the JVM so far."""
    from scripts.bench import cpu_seconds

    process = spark._jvm.java.lang.ProcessHandle.current()  # type: ignore[union-attr]
    return cpu_seconds((int(process.pid()),))


def report(title: str, found: Found) -> list[str]:
    """Print a table; return the aims that it misses."""
    print(f"\n{title}\n\n| | batch | run | CPU | batch, ratio | CPU, ratio |")
    print("|---|---|---|---|---|---|")
    missed = []
    base = medians(found[PLAIN])
    for variant, measures in found.items():
        own = medians(measures)
        batch, cpu = own.batch_s / base.batch_s, own.cpu_s / base.cpu_s
        low, high = min(m.batch_s for m in measures), max(m.batch_s for m in measures)
        print(
            f"| {variant} | {own.batch_s:.2f} s ({low:.2f} to {high:.2f}) | {own.run_s:.2f} s "
            f"| {own.cpu_s:.2f} s | {batch:.3f} | {cpu:.3f} |",
            flush=True,
        )
        if batch > AIM.get(variant, batch):
            missed.append(f"{title}: {variant}: {batch:.3f} times the batch, not {AIM[variant]}")
    return missed


def medians(measures: list[Measure]) -> Measure:
    """Return the median of each."""
    return Measure(*(statistics.median(each) for each in zip(*measures, strict=True)))


# --- beside two libraries -------------------------------------------------------------------------


def beside_libraries(spark: SparkSession, rows: int, rounds: int) -> None:
    """Take the rows that break one of twenty rules out, in three ways; print seconds and counts."""
    install()
    data = make_orders(WORK / "input", rows, "parquet")
    table = functools.partial(spark.read.schema(SCHEMA).parquet, str(data))
    ways: Mapping[str, Callable[[], tuple[float, dict[str, int]]]] = {
        "this runtime": lambda: through_runtime(spark, data),
        "databricks-labs-dqx": lambda: through_dqx(table()),
        "sparkdq": lambda: through_sparkdq(table()),
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    counts: dict[str, dict[str, int]] = {}
    for number in range(rounds + 1):
        for way in ways if number % 2 else reversed(list(ways)):
            took_s, counts[way] = ways[way]()
            seconds[way] += [took_s] if number else []
    print(f"\n20 rules, {rows:,} rows of Parquet, BATCH\n\n| | seconds | ratio |\n|---|---|---|")
    base = statistics.median(seconds["this runtime"])
    for way, took in seconds.items():
        middle = statistics.median(took)
        print(
            f"| {way} | {middle:.2f} s ({min(took):.2f} to {max(took):.2f}) | {middle / base:.2f} |"
        )
    own = counts["this runtime"]
    for way, theirs in counts.items():
        different = {rule: (own[rule], rows) for rule, rows in theirs.items() if own[rule] != rows}
        if different or set(own) != set(theirs):
            sys.exit(f"{way}: other counts than this runtime: {different}")
    print(f"\nthe counts of all {len(own)} rules are equal: {sum(own.values()):,} in all")


def install() -> None:
    """Install the libraries where they are not yet, and let them be imported."""
    done = VENV / "installed"
    if not done.exists() or done.read_text() != "\n".join(LIBRARIES):
        shutil.rmtree(VENV, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
        pip = [str(VENV / "bin" / "python"), "-m", "pip", "install", "-q"]
        subprocess.run([*pip, "--disable-pip-version-check", *LIBRARIES], check=True)
        done.write_text("\n".join(LIBRARIES))
    sys.path += map(str, VENV.glob("lib/python*/site-packages"))


def through_runtime(spark: SparkSession, data: Path) -> tuple[float, dict[str, int]]:
    """Run a job in BATCH to its final checkpoint."""
    measured, broken = run(spark, data, "batch", "quarantine all")
    return measured.run_s, broken


def through_dqx(df: DataFrame) -> tuple[float, dict[str, int]]:
    """Split with ``DQEngineCore``, whose observer counts.

    It is made for Databricks, and wants a client of a workspace, which it does not use here.
    """
    from unittest.mock import create_autospec

    from databricks.labs.dqx.engine import DQEngineCore
    from databricks.labs.dqx.metrics_observer import DQMetricsObserver
    from databricks.sdk import WorkspaceClient

    with written() as (good, bad):
        client = create_autospec(WorkspaceClient)
        begun = time.monotonic()
        engine = DQEngineCore(client, df.sparkSession, observer=DQMetricsObserver())
        valid, invalid, observation = engine.apply_checks_and_split(df, dqx_checks())
        valid.write.parquet(good)
        invalid.write.parquet(bad)
        metrics = observation.get["check_metrics"]
        took_s = time.monotonic() - begun
    return took_s, {each["check_name"]: each["error_count"] for each in json.loads(metrics)}


def through_sparkdq(df: DataFrame) -> tuple[float, dict[str, int]]:
    """Split with ``BatchDQEngine``; it has no counts of rules, so they are read afterwards."""
    from pyspark.sql import functions as sf
    from sparkdq.engine import BatchDQEngine

    with written() as (good, bad):
        begun = time.monotonic()
        result = BatchDQEngine(sparkdq_checks()).run_batch(df)
        result.pass_df().write.parquet(good)
        result.fail_df().write.parquet(bad)
        took_s = time.monotonic() - begun
        errors = df.sparkSession.read.parquet(bad).select(sf.explode("_dq_errors").alias("error"))
        counted = errors.groupBy("error.check-id").count().collect()
    found = {RULES[int(row[0].removeprefix("rule-"))].name: row[1] for row in counted}
    return took_s, {rule.name: found.get(rule.name, 0) for rule in RULES}


@contextlib.contextmanager
def written() -> Any:
    """Give two folders for the block."""
    location = WORK / "runs"
    shutil.rmtree(location, ignore_errors=True)
    try:
        yield str(location / "good"), str(location / "bad")
    finally:
        shutil.rmtree(location, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
