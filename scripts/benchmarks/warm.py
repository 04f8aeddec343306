"""Measure runs of 3,000 rows, one after the other, through a pool of one warm driver.

*Back to back* each command starts when the last one has ended; *spaced* there are two seconds
between them, so that the driver is ready. Seconds are from the command to its exit; CPU seconds
are those of the whole machine, until the driver is ready again, so nothing else should run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from airflow_provider.extensions.warm_drivers.warm_drivers_command import ask
from scripts.benchmarks.start import ENTRY, await_ready, make_archive, make_input, pool, timed

WORK = ROOT / ".work" / "warm"
MODES = ("streaming", "batch")
SPACE_S = 2.0
COMMAND = [str(ROOT / ".venv" / "bin" / "spark-stream"), "run", "--warm", "--entry", ENTRY]


def main() -> int:
    """Run them, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10, help="back to back, of each mode")
    parser.add_argument("--spaced", type=int, default=5, help="of each mode")
    parser.add_argument("--more", type=int, default=0, help="runs before memory is read again")
    arguments = parser.parse_args()
    shutil.rmtree(WORK, ignore_errors=True)
    make_input(WORK / "in")
    os.environ |= {"SPARK_STREAM_WARM_DRIVERS": str(WORK / "pool")}
    os.environ.setdefault("SPARK_STREAM_CACHE", str(ROOT / ".work" / "cache"))
    make_archive(os.environ)
    with pool(os.environ):
        for mode in MODES:
            await_ready(os.environ)
            run(mode, "first")
        await_ready(os.environ)
        print(f"after a run of each mode: {held()}", flush=True)
        for mode in MODES:
            report(f"{mode}, back to back", measure(mode, arguments.runs, 0.0))
            report(f"{mode}, spaced", measure(mode, arguments.spaced, SPACE_S))
        for number in range(arguments.more):
            run(MODES[number % len(MODES)], "more")
        await_ready(os.environ)
        print(f"after the last run: {held()}")
    shutil.rmtree(WORK)
    return 0


def measure(mode: str, runs: int, space_s: float) -> list[tuple[float, float]]:
    """Return seconds and CPU seconds of each run."""
    found = []
    await_ready(os.environ)
    for _ in range(runs):
        time.sleep(space_s)
        before = busy_s()
        seconds = run(mode, "measured")
        if space_s:
            await_ready(os.environ)
        found.append((seconds, busy_s() - before))
    return found


def run(mode: str, kind: str) -> float:
    """Run the job of the warm-up, and return the seconds of the command."""
    location = WORK / f"{kind}-{time.time_ns()}"
    params = {"input": WORK / "in", "output": location / "out"}
    given = [part for key, value in params.items() for part in ("--param", f"{key}={value}")]
    seconds = timed([*COMMAND, "--mode", mode, *given, str(location / "job")], os.environ)
    shutil.rmtree(location)
    return seconds


def report(name: str, found: list[tuple[float, float]]) -> None:
    """Print medians, and the range of the seconds."""
    if found:
        walls, cpus = zip(*found, strict=True)
        print(
            f"{name}: {statistics.median(walls):.2f} s ({min(walls):.2f} to {max(walls):.2f}), "
            f"{statistics.mean(cpus):.2f} CPU s each, of {len(found)} runs",
            flush=True,
        )


def held() -> str:
    """Return what the driver holds."""
    (driver,) = ask(Path(os.environ["SPARK_STREAM_WARM_DRIVERS"]), "status")["drivers"]
    children = Path(f"/proc/{driver['pid']}/task/{driver['pid']}/children").read_text().split()
    (jvm,) = (each for each in children if Path(f"/proc/{each}/comm").read_text() == "java\n")
    files = len(list(Path(f"/proc/{jvm}/fd").iterdir()))
    threads = len(list(Path(f"/proc/{jvm}/task").iterdir()))
    return f"{driver['memory_mib']} MiB, {files} open files and {threads} threads of the JVM"


def busy_s() -> float:
    """Return the CPU seconds of the machine since it booted."""
    fields = [int(each) for each in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    raise SystemExit(main())
