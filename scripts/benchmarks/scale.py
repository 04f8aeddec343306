"""Measure what a job costs as it grows with Spark: rows, keys, queries, state partitions, sinks.

One axis grows at a time, the others stay at a base. The job counts and sums per key, as a stream
that is drained: half a million rows of Parquet are a batch, and all keys stay in state until the
drain. Each point has a driver process and a JVM of its own with the settings that a run gets, which
has run the same job on one batch before. Seconds are those of the run in that JVM, from the call to
the verified final checkpoint; the median of up to three runs, of fewer where they are long. Peaks
of memory are those that Linux has seen; storage operations are counted as in ``growth.py``, and are
those of this runtime, to which Spark adds its own files. A straight line has the same *seconds per
further unit* all the way.

``--cluster`` compares one executor with two, on a standalone master and two workers.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".work" / "scale"
sys.path.insert(0, str(ROOT))
# The archive of classes is that of the other benchmarks.
os.environ.setdefault("SPARK_STREAM_CACHE", str(ROOT / ".work" / "cache"))
FILE_ROWS = 500_000
DAY_S = 86_400
PATIENCE_S = 12.0  # no further run of a point whose runs have taken so long
RUNS = 3
OPS: list[str] = []  # appended to by the threads of all queries
BASE = {"rows": 2_000_000, "keys": 10_000, "queries": 1, "partitions": 2, "sinks": 1}
AXES: dict[str, list[int]] = {
    "rows": [1_000_000, 2_000_000, 5_000_000, 10_000_000],
    "keys": [1_000, 10_000, 100_000, 1_000_000, 10_000_000],
    "queries": [1, 2, 5, 10, 20],
    "partitions": [1, 2, 10, 50, 200],
    "sinks": [1, 2, 3, 4],
}
ELSE = {"keys": {"rows": 10_000_000}, "sinks": {"keys": 200_000}}
"""Another base, so that there is a row for each key, and something to write."""
UNITS = {
    "rows": (1_000_000, "million"),
    "keys": (1_000_000, "million"),
    "queries": (1, "query"),
    "partitions": (1, "partition"),
    "sinks": (1, "sink"),
}
CLUSTER = {**BASE, "rows": 5_000_000, "keys": 100_000}


def main() -> int:
    """Measure each axis, then the cluster; print a table of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--axes", nargs="*", choices=tuple(AXES), default=list(AXES))
    for axis, sizes in AXES.items():
        parser.add_argument(f"--{axis}", type=int, nargs="+", default=sizes)
    parser.add_argument("--cluster", action="store_true", help="one executor against two")
    parser.add_argument("--runs", type=int, default=RUNS, help="of a point, at most")
    parser.add_argument("--point", type=json.loads, help="measure one point, print JSON")
    arguments = parser.parse_args()
    if arguments.point:
        print(json.dumps(measure(arguments.point)))
        return 0
    shutil.rmtree(WORK / "locations", ignore_errors=True)
    make_archive()
    for axis in arguments.axes:
        base = {**BASE, **ELSE.get(axis, {})}
        found = [
            run_point({**base, axis: size}, arguments.runs) for size in getattr(arguments, axis)
        ]
        report(axis, base, found)
    if arguments.cluster:
        report_cluster(measure_cluster(arguments.runs))
    return 0


def make_archive() -> None:
    """Make the archive of classes, if there is none, as the first run would meanwhile."""
    command = [sys.executable, "-m", "airflow_provider.runtime.spark.class_archive"]
    subprocess.run(command, check=True)


def run_point(point: Mapping[str, int], runs: int, **more: Any) -> dict[str, Any]:
    """Measure one point in a process of its own."""
    make_input(point["rows"])
    make_input(FILE_ROWS)
    asked = json.dumps({**point, "runs": runs, **more})
    command = [sys.executable, __file__, "--point", asked]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(f"{point} {more or ''} {found}", file=sys.stderr, flush=True)
    return {**point, **found}


def make_input(rows: int) -> Path:
    """Return a folder of so many rows, files that are written once and linked."""
    folder = WORK / f"input-{rows}"
    if folder.is_dir():
        return folder
    every, unfinished = WORK / "rows", folder.with_name(f".{folder.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    for location in (every, unfinished):
        location.mkdir(parents=True, exist_ok=True)
    for number in range(-(-rows // FILE_ROWS)):
        file = every / f"{number:05d}.parquet"
        if not file.exists():
            ids = np.arange(number * FILE_ROWS, (number + 1) * FILE_ROWS)
            seconds = pd.to_timedelta(ids % DAY_S, unit="s")
            frame = pd.DataFrame(
                {"ts": pd.Timestamp("2026-01-01", tz="UTC") + seconds, "id": ids, "value": ids % 97}
            )
            frame.astype({"ts": "datetime64[us, UTC]"}).to_parquet(file.with_suffix(".part"))
            file.with_suffix(".part").replace(file)
        (unfinished / file.name).hardlink_to(file)
    unfinished.replace(folder)
    return folder


def measure(point: dict[str, Any]) -> dict[str, Any]:
    """Measure one point in this process; return medians, peaks and counts."""
    from airflow_provider.runtime.spark.session import jvm_pid, start_spark

    conf = {"spark.sql.session.timeZone": "UTC", **point.get("conf", {})}
    spark = start_spark("scale", point.get("master", "local[2]"), conf)
    spark.sparkContext.setLogLevel("ERROR")
    count_operations()
    try:
        warm = {**BASE, "rows": FILE_ROWS, "sinks": point["sinks"]}
        run_once(spark, warm, "warm")
        processes = {
            "python": [os.getpid()],
            "jvm": [jvm_pid(spark)],
            "executors": executors_of(point),
        }
        return measured(spark, point, processes)
    finally:
        spark.stop()
        shutil.rmtree(WORK / "locations", ignore_errors=True)


def measured(
    spark: SparkSession, point: dict[str, Any], processes: Mapping[str, list[int]]
) -> dict[str, Any]:
    """Run a point again and again; return medians of the runs, and the peaks of all."""
    from scripts.benchmarks.state import peak_of

    every = [pid for group in processes.values() for pid in group]
    for pid in every:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    runs: list[dict[str, float]] = []
    while len(runs) < point["runs"] and sum(run["seconds"] for run in runs) < PATIENCE_S:
        before = sum(cpu_of(pid) for pid in every)
        OPS.clear()
        seconds, batches = run_once(spark, point, str(len(runs)))
        counted = Counter(OPS)
        runs.append(
            {
                "seconds": seconds,
                "cpu": sum(cpu_of(pid) for pid in every) - before,
                "batches": batches,
                **counted,
            }
        )
    found: dict[str, Any] = {
        name: statistics.median(run.get(name, 0) for run in runs) for name in runs[0]
    }
    peaks = {name: sum(map(peak_of, pids)) for name, pids in processes.items()}
    return {**found, "runs": len(runs), "peaks": peaks}


def run_once(spark: SparkSession, point: Mapping[str, Any], name: str) -> tuple[float, int]:
    """Run the job to its final checkpoint; return the seconds, and how many batches it took."""
    from airflow_provider.runtime.driver.run import run_job
    from airflow_provider.runtime.jobdir.run_spec import RunSpec

    location = WORK / "locations" / name
    shutil.rmtree(location, ignore_errors=True)
    params = {key: point[key] for key in ("keys", "queries", "sinks")}
    params |= {"input": str(WORK / f"input-{point['rows']}"), "output": str(location / "out")}
    spec = RunSpec(
        job_dir=str(location / "job"),
        entry=f"{ROOT}/scripts/benchmarks/scaled.py:scaled",
        params=params,
        conf={"spark.sql.shuffle.partitions": str(point["partitions"])},
        mode="streaming",
    )
    begun = time.monotonic()
    final = run_job(spec, spark=spark)
    seconds = time.monotonic() - begun
    groups = [sink.rows for query in final.queries.values() for sink in query.sinks]
    if groups != [point["keys"]] * point["queries"] * point["sinks"]:
        sys.exit(f"scale: {point}: {groups} groups were written")
    state = location / "job" / "queries" / "q00" / "checkpoint" / "state" / "0"
    if len([each for each in state.iterdir() if each.name.isdigit()]) != point["partitions"]:
        sys.exit(f"scale: {point}: another number of partitions in {state}")
    return seconds, max(query.last_batch for query in final.queries.values()) + 1


def count_operations() -> None:
    """Count whatever the runtime asks of a local folder, in any thread."""
    from airflow_provider.runtime.storage.local import LocalStorage
    from scripts.benchmarks.growth import OPERATIONS

    def counting(name: str, inner: Callable[..., Any]) -> Callable[..., Any]:
        def count(*args: Any, **kwargs: Any) -> Any:
            OPS.append(OPERATIONS[name])
            return inner(*args, **kwargs)

        return count

    for name in OPERATIONS:
        setattr(LocalStorage, name, counting(name, getattr(LocalStorage, name)))


def cpu_of(pid: int) -> float:
    """Return the CPU seconds of a process, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --- the cluster --------------------------------------------------------------------------------


def measure_cluster(runs: int) -> dict[str, dict[str, Any]]:
    """Measure the same job with one executor and with two, and with the same cores in one JVM."""
    from scripts.benchmarks.standalone import cluster

    found: dict[str, dict[str, Any]] = {}
    folder = WORK / "cluster"
    shutil.rmtree(folder, ignore_errors=True)
    for cores in (1, 2):
        found[f"`local[{cores}]`"] = run_point(CLUSTER, runs, master=f"local[{cores}]")
        with cluster(folder / str(cores), 2) as (url, workers):
            conf = {"spark.cores.max": str(cores), "spark.executor.cores": "1"}
            pids = [worker.pid for worker in workers]
            name = "one executor" if cores == 1 else "two executors"
            found[name] = run_point(CLUSTER, runs, master=url, conf=conf, workers=pids)
    shutil.rmtree(folder, ignore_errors=True)
    return found


def executors_of(point: Mapping[str, Any]) -> list[int]:
    """Return the PIDs of the executors that are processes of their own."""
    import psutil

    from scripts.benchmarks.standalone import executors

    return executors([psutil.Process(pid) for pid in point.get("workers", [])])


# --- tables -------------------------------------------------------------------------------------


def report(axis: str, base: Mapping[str, int], found: Sequence[dict[str, Any]]) -> None:
    """Print the table of one axis."""
    others = ", ".join(f"{name} {size:,}" for name, size in base.items() if name != axis)
    _, unit = UNITS[axis]
    heads = [axis, "seconds", f"per {unit}", f"per further {unit}", "CPU", "JVM", "Python"]
    heads += ["storage operations", f"per further {unit}"]
    rows = [list(line) for line in lines(axis, found)]
    if axis == "keys":  # time follows what is written into state, and not the number of keys
        heads += ["state updates", "seconds per million"]
        for row, each in zip(rows, found, strict=True):
            row.extend(update_cells(each))
    print(f"\n{axis}; {others}\n")
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)


def update_cells(found: Mapping[str, Any]) -> list[str]:
    """Return how often a key's state was written, once in each batch that has a row of it."""
    updates = min(found["keys"], FILE_ROWS) * -(-found["rows"] // FILE_ROWS)
    return [f"{updates:,}", f"{found['seconds'] / updates * 1e6:.1f} s"]


def lines(axis: str, found: Sequence[dict[str, Any]]) -> Iterator[list[str]]:
    """Yield the cells of each point."""
    unit, _ = UNITS[axis]
    before: dict[str, Any] | None = None
    for each in found:
        size, seconds = each[axis] / unit, each["seconds"]
        counts = {op: each.get(op, 0) for op in ("read", "put", "list", "delete")}
        operations = sum(counts.values())
        further = ["-", "-"]
        if before is not None:
            more = size - before["size"]
            further[0] = f"{(seconds - before['seconds']) / more:.2f} s"
            further[1] = f"{(operations - before['operations']) / more:.1f}"
        yield [
            f"{each[axis]:,}",
            f"{seconds:.1f} s",
            f"{seconds / size:.2f} s" if size >= 1 else "-",
            further[0],
            f"{each['cpu']:.1f} s",
            f"{each['peaks']['jvm']:,} MB",
            f"{each['peaks']['python']:,} MB",
            " ".join(f"{count:.0f} {op[0]}" for op, count in counts.items()),
            further[1],
        ]
        before = {"size": size, "seconds": seconds, "operations": operations}


def report_cluster(found: Mapping[str, dict[str, Any]]) -> None:
    """Print the table of the cluster."""
    print(f"\n{', '.join(f'{name} {size:,}' for name, size in CLUSTER.items())}\n")
    print("| | seconds | CPU | driver's JVM | executors | Python |\n|---|---|---|---|---|---|")
    for name, each in found.items():
        peaks = [f"{each['peaks'][part]:,} MB" for part in ("jvm", "executors", "python")]
        print(f"| {name} | {each['seconds']:.1f} s | {each['cpu']:.1f} s | {' | '.join(peaks)} |")
    for one, two in (("`local[1]`", "`local[2]`"), ("one executor", "two executors")):
        print(f"\n{two} / {one}: {found[two]['seconds'] / found[one]['seconds']:.2f}", flush=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
