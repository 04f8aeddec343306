"""Measure the same job on Flink and on this runtime: warm, and from the command to its exit.

Flink comes from its own wheel, in an environment of its own, and runs as a local cluster: one
JobManager, one TaskManager with two slots, on loopback. The job counts and sums per key and minute,
from CSV to CSV, as a stream and in BATCH. *Warm*: Flink's own duration of the job on the running
cluster, against a run in a JVM that has run the job before. *Command*: ``flink run`` against
``spark-stream run --warm``, as whole processes. Both sides take turns within a round, and every
output is compared with the truth.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import http.client
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".work" / "flink"
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]
VERSION = "2.3.0"
VENV = WORK / "venv"
PYTHON = VENV / "bin" / "python"
JOB = ROOT / "scripts" / "benchmarks" / "flink_job.py"
SMALL = 3_000
SLOTS = 2
READY_S = 180.0
WARM_AIMS = {"streaming": 1.5, "batch": 1.8}  # rows/s of the runtime, as a multiple of Flink's
CLI = [sys.executable, "-m", "airflow_provider.runtime.cli"]
CONF = {"spark.driver.memory": "2g", "spark.sql.session.timeZone": "UTC"}
FLINK_CONF = {
    "jobmanager.rpc.address": "127.0.0.1",
    "jobmanager.bind-host": "127.0.0.1",
    "jobmanager.memory.process.size": "1600m",
    "rest.address": "127.0.0.1",
    "rest.bind-address": "127.0.0.1",
    "taskmanager.host": "127.0.0.1",
    "taskmanager.bind-host": "127.0.0.1",
    "taskmanager.numberOfTaskSlots": str(SLOTS),
    "taskmanager.memory.task.heap.size": "2g",
    "taskmanager.memory.managed.size": "1g",
    "parallelism.default": str(SLOTS),
    "execution.checkpointing.dir": f"file://{WORK}/checkpoints",
    "python.executable": str(PYTHON),
    "python.client.executable": str(PYTHON),
}


@dataclasses.dataclass(frozen=True)
class Input:
    """A folder of CSV, and what is true of it."""

    folder: Path
    rows: int
    groups: int
    total: int


@dataclasses.dataclass
class Pair:
    """Seconds of both sides, round by round."""

    flink: list[float] = dataclasses.field(default_factory=list)
    runtime: list[float] = dataclasses.field(default_factory=list)

    def ratios(self) -> list[float]:
        """Return how many times faster the runtime is, in each round."""
        return [theirs / ours for theirs, ours in zip(self.flink, self.runtime, strict=True)]


Found = dict[tuple[str, int, str], Pair]


def main() -> int:
    """Run both sides in turns, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="that count; one before them warms")
    parser.add_argument("--rows", type=int, default=5_000_000, help="of the large input")
    parser.add_argument("--modes", default="streaming,batch")
    parser.add_argument("--parts", default="warm,command")
    arguments = parser.parse_args()
    modes, parts = arguments.modes.split(","), arguments.parts.split(",")
    home = install()
    large, small = make_input(arguments.rows), make_input(SMALL)
    os.environ["SPARK_STREAM_CACHE"] = str(WORK / "cache")
    os.environ["SPARK_STREAM_WARM_DRIVERS"] = str(WORK / "pool")
    shutil.rmtree(WORK / "runs", ignore_errors=True)
    found: Found = {}
    from scripts.benchmarks.start import make_archive

    make_archive(os.environ)
    with cluster(home) as flink:
        if "warm" in parts:
            measure_warm(flink, large, modes, arguments.rounds, found)
        if "command" in parts:
            measure_commands(flink, (small, large), modes, arguments.rounds, found)
    shutil.rmtree(WORK / "runs", ignore_errors=True)
    return report(found)


# --- Flink --------------------------------------------------------------------------------------


def install() -> Path:
    """Install Flink where it is not yet; return its home."""
    if f"apache-flink {VERSION}" not in installed():
        print(f"flink: installing {VERSION} (some minutes)", flush=True)
        shutil.rmtree(VENV, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
        pip = [str(PYTHON), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, f"apache-flink=={VERSION}"], check=True)
    (home,) = VENV.glob("lib/python*/site-packages/pyflink")
    return home


def installed() -> str:
    """Return what is installed in Flink's environment, with its version."""
    said = "from importlib.metadata import version as v; print('apache-flink', v('apache-flink'))"
    if not PYTHON.exists():
        return ""
    return subprocess.run(
        [str(PYTHON), "-c", said], capture_output=True, text=True, check=False
    ).stdout


class Flink:
    """A running cluster, and its command.

    Args:
        home: folder of the distribution.
        port: of the REST interface.
        environ: in which its scripts run.

    Attributes:
        pids: the processes of the cluster.
    """

    def __init__(self, home: Path, port: int, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.port = port
        self.pids: tuple[int, ...] = ()
        self._home = home

    def command(self, *arguments: str) -> list[str]:
        """Return the command line of one of its scripts."""
        return ["bash", str(self._home / "bin" / arguments[0]), *arguments[1:]]

    def get(self, path: str) -> Any:
        """Return what the REST interface says."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        with contextlib.closing(connection):
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())

    def run(self, data: Input, mode: str, out: Path) -> tuple[float, float]:
        """Run the job; return the seconds of the command, and those of the job on the cluster."""
        from scripts.benchmarks.start import timed

        options = ["run", "-py", str(JOB), str(data.folder), str(out), mode]
        wall = timed(self.command("flink", *options), self.environ)
        job = max(self.get("/jobs/overview")["jobs"], key=lambda job: job["start-time"])
        if job["state"] != "FINISHED":
            sys.exit(f"flink: the job is {job['state']}")
        return wall, self.get(f"/jobs/{job['jid']}")["duration"] / 1000

    def await_slots(self) -> None:
        """Wait until the TaskManager has registered."""
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                if self.get("/overview").get("slots-total") == SLOTS:
                    return
            time.sleep(0.2)
        sys.exit(f"flink: no cluster within {READY_S:.0f} s; see {WORK / 'log'}")


@contextlib.contextmanager
def cluster(home: Path) -> Iterator[Flink]:
    """Keep a cluster for the block."""
    rpc, rest = free_ports(2)
    configure(home, rpc, rest)
    (WORK / "log").mkdir(exist_ok=True)
    folders = {f"FLINK_{name.upper()}_DIR": str(WORK / name) for name in ("conf", "log", "pid")}
    flink = Flink(home, rest, {**os.environ, **folders})
    processes = []
    try:
        for name in ("jobmanager", "taskmanager"):
            command = flink.command(f"{name}.sh", "start-foreground")
            with (WORK / "log" / f"{name}.out").open("wb") as log:
                # The scripts end in an `exec`, so this process becomes the JVM.
                processes.append(
                    subprocess.Popen(command, env=flink.environ, stdout=log, stderr=log)
                )
        flink.pids = tuple(process.pid for process in processes)
        flink.await_slots()
        yield flink
    finally:
        for process in reversed(processes):
            end(process)


def configure(home: Path, rpc: int, rest: int) -> None:
    """Write the cluster's configuration: the distribution's options of Java, and ours."""
    conf = WORK / "conf"
    shutil.rmtree(conf, ignore_errors=True)
    shutil.copytree(home / "conf", conf)
    given = re.search(r"^ +all: (.+)$", (conf / "config.yaml").read_text(), re.MULTILINE)
    if given is None:
        sys.exit("flink: its configuration has no options of Java")
    ports = {"jobmanager.rpc.port": str(rpc), "rest.port": str(rest), "rest.bind-port": str(rest)}
    lines = {**FLINK_CONF, **ports, "env.java.opts.all": given[1]}
    text = "".join(f"{key}: {value}\n" for key, value in lines.items())
    (conf / "config.yaml").write_text(text, encoding="utf-8")


def free_ports(count: int) -> list[int]:
    """Return ports of loopback that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process that was started here."""
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


# --- input and output ---------------------------------------------------------------------------


def make_input(rows: int) -> Input:
    """Write the input once: the rows of ``scripts/bench.py``, in turns in a file for each slot.

    Flink opens files in no order, one after the other, and what is behind the watermark is dropped.
    So each slot gets one file, and both files go through the same hours. Flink's CSV has a blank
    between date and time.
    """
    from scripts.bench import make_input as make_rows

    folder, unfinished = WORK / f"input-{rows}", WORK / f".input-{rows}"
    truth = folder.with_suffix(".json")
    if not truth.exists():
        raw = WORK / f"rows-{rows}"
        make_rows(raw, rows)
        for location in (folder, unfinished):
            shutil.rmtree(location, ignore_errors=True)
        unfinished.mkdir(parents=True)
        truth.write_text(json.dumps(deal(raw, unfinished)), encoding="utf-8")
        unfinished.replace(folder)
        shutil.rmtree(raw)
    return Input(folder, **json.loads(truth.read_text(encoding="utf-8")))


def deal(raw: Path, folder: Path) -> dict[str, int]:
    """Deal the rows out to the slots; return what is true of them."""
    groups, total, number = set(), 0, 0
    with contextlib.ExitStack() as stack:
        dealt = [stack.enter_context((folder / f"{n}.csv").open("w")) for n in range(SLOTS)]
        for part in sorted(raw.glob("*.csv")):
            for line in part.read_text(encoding="utf-8").splitlines():
                moment, key, value = line.split(",")
                dealt[number % SLOTS].write(f"{moment.replace('T', ' ')},{key},{value}\n")
                groups.add((moment[:16], key))
                total += int(value)
                number += 1
    return {"rows": number, "groups": len(groups), "total": total}


def check(out: Path, data: Input, side: str) -> None:
    """See that the output is complete, and remove it."""
    import pandas as pd

    names = ["minute", "key", "events", "total"]
    parts = [
        path
        for path in out.rglob("*")
        if path.is_file() and not any(p[0] in "._" for p in path.relative_to(out).parts)
    ]
    frames = [pd.read_csv(path, names=names) for path in parts if path.stat().st_size]
    rows = pd.concat(frames) if frames else pd.DataFrame(columns=names)
    groups = len(rows.drop_duplicates(["minute", "key"]))
    read = (len(rows), groups, int(rows["events"].sum()), int(rows["total"].sum()))
    if read != (data.groups, data.groups, data.rows, data.total):
        sys.exit(f"{side}: rows, groups, events, total are {read}, and not those of {data}: {out}")
    shutil.rmtree(out)


# --- warm against warm --------------------------------------------------------------------------


def measure_warm(flink: Flink, data: Input, modes: list[str], rounds: int, found: Found) -> None:
    """Run the job on the cluster, and in one JVM, in turns."""
    from airflow_provider.runtime.spark.session import start_spark

    spark = start_spark("flink", "local[*]", CONF)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        for number in range(rounds + 1):
            for mode in modes:
                location = WORK / "runs" / f"warm-{mode}-{number}"
                sides = {
                    "flink": lambda m=mode, p=location: flink.run(data, m, p / "flink")[1],
                    "runtime": lambda m=mode, p=location: run_warm(spark, data, m, p),
                }
                take_turns(sides, ("warm", data, mode), location, number, found)
    finally:
        spark.stop()


def run_warm(spark: SparkSession, data: Input, mode: str, location: Path) -> float:
    """Run the job in this JVM; return the seconds to its final checkpoint."""
    from airflow_provider.runtime.driver.run import run_job
    from airflow_provider.runtime.jobdir.run_spec import RunSpec

    params = {"input": str(data.folder), "output": str(location / "runtime")}
    entry = f"{JOB}:minutes"
    spec = RunSpec(job_dir=str(location / "job"), entry=entry, params=params, conf=CONF, mode=mode)
    begun = time.monotonic()
    run_job(spec, spark=spark)
    return time.monotonic() - begun


def take_turns(
    sides: Mapping[str, Callable[[], float]],
    case: tuple[str, Input, str],
    location: Path,
    number: int,
    found: Found,
) -> None:
    """Measure each side once, back and forth; the first round does not count."""
    part, data, mode = case
    seconds = {}
    for side in sides if number % 2 else reversed(list(sides)):
        seconds[side] = sides[side]()
        check(location / side, data, side)
    text = ", ".join(f"{side} {seconds[side]:.2f} s" for side in sides)
    print(f"round {number}: {part}, {data.rows:,} rows, {mode}: {text}", flush=True)
    if number:
        pair = found.setdefault((part, data.rows, mode), Pair())
        pair.flink.append(seconds["flink"])
        pair.runtime.append(seconds["runtime"])


# --- from the command to its exit ---------------------------------------------------------------


def measure_commands(
    flink: Flink, inputs: tuple[Input, ...], modes: list[str], rounds: int, found: Found
) -> None:
    """Run both commands as whole processes, in turns, each while nothing else warms up.

    Both sides have run each job before.
    """
    from scripts.benchmarks.start import await_ready

    def run_flink(data: Input, mode: str, location: Path) -> float:
        await_ready(os.environ)
        return flink.run(data, mode, location / "flink")[0]

    for data in inputs:
        for mode in modes:
            flink.run(data, mode, WORK / "runs" / f"before-{data.rows}-{mode}")
    with pool():
        for number in range(1, rounds + 1):
            for data in inputs:
                for mode in modes:
                    location = WORK / "runs" / f"command-{data.rows}-{mode}-{number}"
                    case = (data, mode, location)
                    sides = {
                        "flink": lambda c=case: run_flink(*c),
                        "runtime": lambda c=case: run_pooled(*c),
                    }
                    take_turns(sides, ("command", data, mode), location, number, found)


def run_pooled(data: Input, mode: str, location: Path) -> float:
    """Give the run to a warm driver; return the seconds of the command."""
    from scripts.benchmarks.start import await_ready, timed

    await_ready(os.environ)
    params = {"input": data.folder, "output": location / "runtime"}
    given = [part for key, value in params.items() for part in ("--param", f"{key}={value}")]
    command = [*CLI, "run", "--warm", str(location / "job"), "--entry", f"{JOB}:minutes"]
    return timed([*command, "--mode", mode, *given, *conf_options()], os.environ)


def conf_options() -> list[str]:
    """Return the options that give Spark its settings."""
    return [part for key, value in CONF.items() for part in ("--conf", f"{key}={value}")]


@contextlib.contextmanager
def pool() -> Iterator[None]:
    """Keep one warm driver for the block."""
    with (WORK / "pool.log").open("wb") as log:
        command = [*CLI, "warm-drivers", "start", *conf_options()]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield
    finally:
        end(process)


# --- the table ----------------------------------------------------------------------------------


def report(found: Found) -> int:
    """Print the table; return 1 if an aim is missed."""
    print("\n| | rows | | Flink | this runtime | Flink / this runtime | rows/s of both |")
    print("|---|---|---|---|---|---|---|")
    missed = []
    for (part, rows, mode), pair in found.items():
        ratio = statistics.median(pair.ratios())
        speeds = [f"{rows / statistics.median(each):,.0f}" for each in (pair.flink, pair.runtime)]
        print(
            f"| {part} | {rows:,} | {mode.upper()} | {spread(pair.flink)} s "
            f"| {spread(pair.runtime)} s | {spread(pair.ratios())} | {', '.join(speeds)} |"
        )
        if part == "warm" and ratio < WARM_AIMS.get(mode, 0):
            missed.append(f"{mode}: {ratio:.2f} times Flink's rows/s, not {WARM_AIMS[mode]:g}")
    print("\n" + ("\n".join(missed) or "every aim is met"))
    return 1 if missed else 0


def spread(figures: list[float]) -> str:
    """Return the median, and between what it lies."""
    return f"{statistics.median(figures):.2f} ({min(figures):.2f} to {max(figures):.2f})"


if __name__ == "__main__":
    sys.exit(main())
