"""Measure how long a job takes from the end of its data to its final checkpoint, by its stages.

One query; a chain of three, each of which reads what the one before writes; three side by side. The
end of data is when the first query has read its last row and published what came of it: its intent
to drain. The chain's other two then read, drain and publish one after the other, and all have one
final checkpoint. In the second half the jobs run until they are stopped with a drain, and all
stages read along: measured from the request to the answer. All rounds run in one JVM, in turns.
"""

from __future__ import annotations

import argparse
import datetime as dt
import shutil
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sessions import QUIET

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider.runtime.jobdir.run_spec import RunSpec

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".work" / "ends"
sys.path.insert(0, str(ROOT))
JOBS = {"one": ("fine",), "chain": ("fine", "coarse", "top"), "side_by_side": ("top",)}
NAMES = {"one": "one query", "chain": "a chain of three", "side_by_side": "three side by side"}
KEYS = 50
SECONDS = 4_000  # 200,000 rows
REST_S = 2.0  # without a new batch: all is read
CONF = {
    **QUIET,
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
}


def main() -> int:
    """Measure all jobs, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how often each job runs")
    arguments = parser.parse_args()
    from airflow_provider.runtime.spark.session import start_spark

    shutil.rmtree(WORK, ignore_errors=True)
    make_input(WORK / "input")
    spark = start_spark("ends", "local[2]", CONF)
    spark.sparkContext.setLogLevel("ERROR")
    found: dict[tuple[str, str], list[float]] = {}
    for number in range(arguments.rounds + 1):  # the first one warms the JVM
        for job in JOBS:
            for how, measure in (("end of data", measure_end), ("stop --drain", measure_stop)):
                took = measure(spark, job, WORK / f"{job}-{how[:3]}-{number}")
                if number:
                    found.setdefault((how, job), []).append(took)
    spark.stop()
    report(found)
    return 0


def make_input(folder: Path) -> None:
    """Write a row for each key and second."""
    folder.mkdir(parents=True)
    for part in range(4):
        seconds = range(part * SECONDS // 4, (part + 1) * SECONDS // 4)
        lines = (f"{second},{key},1\n" for second in seconds for key in range(KEYS))
        (folder / f"{part}.csv").write_text("".join(lines))


def ask_for(job: str, location: Path, **more: Any) -> RunSpec:
    """Ask for a job as streams, in a location of its own."""
    from airflow_provider.runtime.jobdir.run_spec import RunSpec

    bounded = "no" if more.get("until") == "stopped" else "yes"
    params = {"input": str(WORK / "input"), "output": str(location / "output"), "bounded": bounded}
    entry = f"{ROOT}/scripts/benchmarks/stages.py:{job}"
    asked = {"mode": "streaming", "params": params, "conf": CONF, **more}
    return RunSpec(job_dir=str(location / "job"), entry=entry, **asked)


def measure_end(spark: SparkSession, job: str, location: Path) -> float:
    """Run a bounded job; return the seconds from the end of data to its final checkpoint."""
    from airflow_provider.runtime.driver.run import run_job
    from airflow_provider.runtime.jobdir.end_of_input import drain_intent
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.storage.open import open_storage

    final = run_job(ask_for(job, location), spark=spark)
    intent = drain_intent(JobDirectory(open_storage(str(location / "job"))), "fine")
    if intent is None:
        sys.exit("ends: the job did not drain")
    check(job, location)
    return (parsed(final.committed) - parsed(intent.at)).total_seconds()


def measure_stop(spark: SparkSession, job: str, location: Path) -> float:
    """Run a job that has no end; return the seconds from a stop with drain to its answer."""
    from airflow_provider.runtime.base.clock import SystemClock
    from airflow_provider.runtime.control.stop import request_stop
    from airflow_provider.runtime.driver.run import run_job

    ask = ask_for(job, location, until="stopped")
    thread = threading.Thread(target=run_job, args=(ask,), kwargs={"spark": spark})
    thread.start()
    await_idle(location, job)
    clock, begun = SystemClock(), time.monotonic()
    answer = request_stop(str(location / "job"), clock, drain=True).wait(clock, 120)
    took = time.monotonic() - begun
    thread.join()
    if answer.outcome != "FINISHED":
        sys.exit(f"ends: {answer}")
    check(job, location)
    return took


def await_idle(location: Path, job: str) -> None:
    """Wait until all queries have read what is there."""
    from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
    from airflow_provider.runtime.storage.open import open_storage

    names = ("fine",) if job == "one" else ("fine", "coarse", "top")
    logs = [CheckpointLogs(open_storage(f"{location}/job/queries/{n}/checkpoint")) for n in names]
    since, before, deadline = time.monotonic(), None, time.monotonic() + 120
    while time.monotonic() < deadline:
        seen = [each.position() for each in logs]
        busy = any(p.last_commit < 0 or p.open_batch is not None for p in seen)
        if busy or seen != before:
            since, before = time.monotonic(), seen
        if time.monotonic() - since > REST_S:
            return
        time.sleep(0.05)
    sys.exit("ends: the job has not become idle within two minutes")


def check(job: str, location: Path) -> None:
    """See that every row is in the last table, and that there is one final checkpoint."""
    import pandas as pd

    for name in JOBS[job]:
        counted = pd.read_parquet(location / "output" / name)["n"].sum()
        if counted != KEYS * SECONDS:
            sys.exit(f"ends: {job} has counted {counted} of {KEYS * SECONDS} rows in {name}")
    finals = len(list((location / "job" / "runs").glob("*/final.json")))
    if finals != 1:
        sys.exit(f"ends: {job} has {finals} final checkpoints")


def parsed(moment: str) -> dt.datetime:
    """Return a record's time."""
    return dt.datetime.fromisoformat(moment.replace("Z", "+00:00"))


def report(found: dict[tuple[str, str], list[float]]) -> None:
    """Print medians, and their ratios to one query's."""
    print("\n| from | job | final checkpoints | time, median | to one query's |")
    print("|---|---|---|---|---|")
    for (how, job), times in sorted(found.items(), key=lambda item: item[0][0]):
        median = statistics.median(times)
        ratio = median / statistics.median(found[how, "one"])
        spread = f"{median:.2f} s ({min(times):.2f} to {max(times):.2f})"
        print(f"| {how} | {NAMES[job]} | 1 | {spread} | {ratio:.1f} |")


if __name__ == "__main__":
    sys.exit(main())
