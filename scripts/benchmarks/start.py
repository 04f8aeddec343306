"""Measure what a short run takes from the command to its exit: cold, with the archive, warm.

Each side runs ``spark-stream run`` as a whole process on 3,000 rows of CSV, in turns, so that a
slow moment of the machine meets all. ``default-200`` is Spark's own number of state partitions and
no archive, which is what a job gets when nobody chooses; ``plain`` is the same query as a script
of plain PySpark, which leaves the last windows in state.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider.extensions.warm_drivers.warm_drivers_command import ask
from airflow_provider.runtime.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".work" / "start"
ENTRY = "airflow_provider.runtime.warm_up:windows"
ROWS = 3_000
KEYS = 100
READY_S = 180.0
HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
DEFAULT_200 = {
    "spark.sql.shuffle.partitions": "200",
    "spark.sql.streaming.stateStore.providerClass": HDFS,
    "spark.driver.memory": "1g",
}
SIDES = ("default-200", "cold", "archive", "pool")
PLAIN = """
import sys
from pyspark.sql import SparkSession, functions as F
spark = (SparkSession.builder.master("local[*]").config("spark.ui.enabled", "false")
         .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
         .config("spark.sql.shuffle.partitions", "2").getOrCreate())
rows = spark.readStream.csv(sys.argv[1], schema="time timestamp, k string, v int")
sums = (rows.withWatermark("time", "5 seconds").groupBy(F.window("time", "10 seconds"), "k")
        .agg(F.sum("v").alias("v")))
(sums.writeStream.format("parquet").option("checkpointLocation", sys.argv[2] + "/checkpoint")
 .option("path", sys.argv[2] + "/out").trigger(availableNow=True).start().awaitTermination())
"""


def main() -> int:
    """Run all sides in turns, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--modes", default="streaming,batch")
    arguments = parser.parse_args()
    shutil.rmtree(WORK, ignore_errors=True)
    make_input(WORK / "in")
    modes = arguments.modes.split(",")
    sides = [(side, mode) for side in arguments.sides.split(",") for mode in modes]
    environ = {
        **os.environ,
        "SPARK_STREAM_CACHE": str(WORK / "cache"),
        "SPARK_STREAM_WARM_DRIVERS": str(WORK / "pool"),
    }
    make_archive(environ)
    found: dict[tuple[str, str], list[float]] = {side: [] for side in [*sides, ("plain", "")]}
    has_pool = any(side == "pool" for side, _ in sides)
    with pool(environ) if has_pool else contextlib.nullcontext():
        for number in range(arguments.rounds):
            for side, mode in sides:
                if side == "pool":
                    await_ready(environ)
                found[side, mode].append(run(side, mode, number, environ))
            found["plain", ""].append(run_plain(number))
    report(found)
    return 0


def make_input(folder: Path) -> None:
    """Write 3,000 rows in two files."""
    folder.mkdir(parents=True)
    for part in range(2):
        lines = [
            f"2026-01-01 00:{(row // 60) % 60:02d}:{row % 60:02d},k{row % KEYS},{row % 7}"
            for row in range(part, ROWS, 2)
        ]
        (folder / f"{part}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def make_archive(environ: Mapping[str, str]) -> None:
    """Make the archive of classes, as the background process after a first run does."""
    subprocess.run(
        [sys.executable, "-m", "airflow_provider.runtime.spark.class_archive"],
        check=True,
        env=environ,
    )


@contextlib.contextmanager
def pool(environ: Mapping[str, str]) -> Iterator[None]:
    """Keep one warm driver for the block."""
    command = [sys.executable, "-m", "airflow_provider.runtime.cli", "warm-drivers"]
    with Path(environ["SPARK_STREAM_WARM_DRIVERS"]).with_suffix(".log").open("wb") as log:
        process = subprocess.Popen([*command, "start"], env=environ, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def await_ready(environ: Mapping[str, str], size: int = 1) -> None:
    """Wait until the pool's drivers are ready, and alone on the machine."""
    deadline = time.monotonic() + READY_S
    while states(environ) != ["ready"] * size:
        if time.monotonic() > deadline:
            sys.exit(f"no warm driver within {READY_S:.0f} s: {states(environ)}")
        time.sleep(0.2)
    time.sleep(1.0)


def states(environ: Mapping[str, str]) -> list[str]:
    """Return the states of the pool's drivers; none of a pool that is not up yet."""
    try:
        answer = ask(Path(environ["SPARK_STREAM_WARM_DRIVERS"]), "status")
    except ConfigError:
        return []
    return [driver["state"] for driver in answer["drivers"]]


def run(side: str, mode: str, number: int, environ: Mapping[str, str]) -> float:
    """Return the seconds of one run."""
    location = WORK / f"{side}-{mode}-{number}"
    command = [sys.executable, "-m", "airflow_provider.runtime.cli", "run", str(location / "job")]
    command += ["--entry", ENTRY, "--mode", mode]
    command += ["--param", f"input={WORK / 'in'}", "--param", f"output={location / 'out'}"]
    if side == "default-200":
        command += [
            part for key, value in DEFAULT_200.items() for part in ("--conf", f"{key}={value}")
        ]
    if side == "pool":
        command.append("--warm")
    own = {} if side in {"archive", "pool"} else {"SPARK_STREAM_CACHE": "off"}
    return timed(command, {**environ, **own})


def run_plain(number: int) -> float:
    """Return the seconds of the same query in plain PySpark."""
    script = WORK / "plain.py"
    script.write_text(PLAIN, encoding="utf-8")
    location = WORK / f"plain-{number}"
    return timed([sys.executable, str(script), str(WORK / "in"), str(location)], os.environ)


def timed(command: list[str], environ: Mapping[str, str]) -> float:
    """Return the seconds from the command to its exit."""
    begun = time.monotonic()
    done = subprocess.run(command, env=dict(environ), capture_output=True, text=True, check=False)
    seconds = time.monotonic() - begun
    if done.returncode != 0 or "no warm driver" in done.stderr:
        sys.exit(f"{' '.join(command)}\n{done.stderr[-3000:]}")
    return seconds


def report(found: Mapping[tuple[str, str], list[float]]) -> None:
    """Print medians, and ratios to the default within each round."""
    print(f"{'side':<14}{'mode':<11}{'median':>8}{'min':>8}{'max':>8}   ratio to default-200")
    for (side, mode), seconds in found.items():
        base = found.get(("default-200", mode or "streaming"), [])
        ratios = [mine / other for mine, other in zip(seconds, base, strict=False)]
        ratio = f"{statistics.median(ratios):.2f}" if ratios else "-"
        figures = (statistics.median(seconds), min(seconds), max(seconds))
        print(f"{side:<14}{mode:<11}{''.join(f'{figure:>8.2f}' for figure in figures)}   {ratio}")


if __name__ == "__main__":
    sys.exit(main())
