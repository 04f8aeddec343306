"""Measure Nexmark's queries: on this runtime, as plain PySpark, and on Flink, all warm.

Each side runs each query in each mode, in turns within a round; the round before the first one
warms. This runtime and plain PySpark share one JVM, one set of settings and the function of the
query; Flink runs its own SQL on a cluster that stays. Seconds are those of a run to its final
checkpoint, of a query of plain PySpark, which leaves what is open in state, and of Flink's job. CPU
seconds are those of the side's processes. What a side writes is compared with DuckDB's truth.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime as dt
import itertools
import json
import os
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]
from scripts.benchmarks.nexmark import queries
from scripts.benchmarks.nexmark.flink_side import (
    REFUSED,
    FlinkSide,
    flink_side,
    writes,
)
from scripts.benchmarks.nexmark.generator import write_events
from scripts.benchmarks.nexmark.recordings import ALL_KINDS, recording, shares
from scripts.benchmarks.nexmark.truth import Truth

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

WORK: Final = ROOT / ".work" / "nexmark"
PROFILES: Final = WORK / "profiles"
CONF: Final = {"spark.sql.session.timeZone": "UTC"}
ENTRY: Final = f"{queries.__file__}:nexmark"
SIDES: Final = ("runtime", "plain", "flink")
FILES: Final = 2  # one for each of Flink's slots, which reads what is late as lost
HEADER: Final = (
    "| | rows/s | this runtime | CPU | equal | plain | CPU | query / plain | Flink | CPU | equal "
    "| Flink / this runtime |"
)
OVERHEAD: Final = 1.03  # of this runtime over plain PySpark, beyond which a row says so


@dataclasses.dataclass(frozen=True)
class Measure:
    """One run of a query.

    Attributes:
        wall_s: until its end.
        query_s: until all input was read and written, which is where plain PySpark ends.
        cpu_s: of the side's processes.
        rows: that were read.
        difference: from the truth; empty if there is none, None if it was not looked for.
    """

    query: str
    mode: str
    side: str
    wall_s: float
    query_s: float
    cpu_s: float
    rows: int
    difference: str | None


def main() -> int:
    """Run all sides in turns, and print the table; return 1 if rows of this runtime are wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3, help="that count; one before them warms")
    parser.add_argument("--queries", default=",".join(queries.QUERIES))
    parser.add_argument("--modes", default="streaming,batch")
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--driver-memory", default="2g", help="of Spark")
    parser.add_argument("--record", action="store_true", help="record a run more, and print shares")
    parser.add_argument("--keep", action="store_true", help="add to the last command's measures")
    arguments = parser.parse_args()
    os.environ["SPARK_STREAM_CACHE"] = str(WORK / "cache")
    measured = WORK / f"measured-{arguments.events}.jsonl"
    if not arguments.keep:
        measured.unlink(missing_ok=True)
    names = [name for name in arguments.queries.split(",") if name]
    events = make_events(arguments.events)
    with measured.open("a", encoding="utf-8") if names else contextlib.nullcontext() as log:
        for measure in run(events, names, arguments) if names else ():
            print(json.dumps(dataclasses.asdict(measure)), file=log, flush=True)
    if arguments.record:
        print_shares()
    lines = measured.read_text(encoding="utf-8").splitlines()
    return report([Measure(**json.loads(line)) for line in lines])


def make_events(count: int) -> Path:
    """Write the events once; the same number makes the same ones."""
    folder, unfinished = WORK / f"events-{count}", WORK / f".events-{count}"
    if not folder.exists():
        write_events(unfinished, count, files=FILES)
        unfinished.replace(folder)
    return folder


def run(events: Path, names: list[str], arguments: argparse.Namespace) -> Iterator[Measure]:
    """Measure each side in turns, query by query; the round that warms is not given."""
    truth, asked = Truth(events), arguments.sides.split(",")
    conf = {**CONF, "spark.driver.memory": arguments.driver_memory}
    for folder in ("runs", "profiles"):
        shutil.rmtree(WORK / folder, ignore_errors=True)
    with contextlib.ExitStack() as stack:
        sides = Sides(events, truth, stack, asked, conf)
        for name, mode in itertools.product(names, arguments.modes.split(",")):
            for number, side in turns(arguments.rounds, asked):
                measure = sides.measure(side, name, mode)
                if measure is None:
                    continue
                print(f"round {number}: {measure}", flush=True)
                if number:
                    yield measure
            for side in asked if arguments.record else ():
                sides.record(side, name, mode)
    shutil.rmtree(WORK / "runs", ignore_errors=True)


def turns(rounds: int, sides: list[str]) -> Iterator[tuple[int, str]]:
    """Give each round's sides, whose order changes; round 0 warms."""
    for number in range(rounds + 1):
        for side in sides if number % 2 else reversed(sides):
            yield number, side


# --- the sides ----------------------------------------------------------------------------------


class Sides:
    """Spark in this process, and a cluster of Flink beside it, as far as they are asked for."""

    def __init__(
        self,
        events: Path,
        truth: Truth,
        stack: contextlib.ExitStack,
        asked: list[str],
        conf: dict[str, str],
    ) -> None:
        self._events = events
        self._conf = conf
        self._truth = truth
        self._runs = 0
        self._flink: FlinkSide | None = None
        self._spark: SparkSession | None = None
        if "flink" in asked:
            self._flink = stack.enter_context(flink_side())
        if {"runtime", "plain"} & set(asked):
            from airflow_provider.runtime.spark.session import start_spark

            self._spark = start_spark("nexmark", "local[*]", conf)
            self._spark.sparkContext.setLogLevel("ERROR")
            stack.callback(self._spark.stop)

    def measure(self, side: str, query: str, mode: str) -> Measure | None:
        """Run a query once; None where the side cannot."""
        if side == "flink" and (query, mode) in REFUSED:
            return None
        self._runs += 1
        location = WORK / "runs" / f"{self._runs}"
        running = {"flink": self._run_flink, "runtime": self._run, "plain": self._run_plain}
        before = self._cpu_seconds(side)
        wall_s, query_s = running[side](query, mode, location)
        cpu_s = self._cpu_seconds(side) - before
        difference = None
        if side == "runtime" or (writes(query, mode) if side == "flink" else mode == "batch"):
            difference = self._truth.difference(query, location / "output") or ""
        rows = sum(self._truth.events_of(table) for table in queries.TABLES.get(query, ("bid",)))
        shutil.rmtree(
            location / "output", ignore_errors=True
        )  # the first run's job has Spark's log
        return Measure(query, mode, side, wall_s, query_s, cpu_s, rows, difference)

    def record(self, side: str, query: str, mode: str) -> None:
        """Run a query once while Java Flight Recorder samples the side's JVMs."""
        pids: tuple[int, ...] = ()
        if side == "flink" and self._flink is not None:
            pids = self._flink.worker_pids
        elif self._spark is not None:
            java: Any = self._spark.sparkContext._jvm
            pids = (int(java.java.lang.ProcessHandle.current().pid()),)
        with recording(pids, f"{query}-{mode}-{side}", PROFILES):
            self.measure(side, query, mode)

    def _cpu_seconds(self, side: str) -> float:
        if self._flink is None:
            return cpu_seconds(os.getpid())
        if side == "flink":
            return sum(map(cpu_seconds, self._flink.worker_pids))
        return cpu_seconds(os.getpid()) - sum(map(cpu_seconds, self._flink.pids))

    def _run_flink(self, query: str, mode: str, location: Path) -> tuple[float, float]:
        if self._flink is None:
            raise ValueError(query)
        seconds = self._flink.run(query, mode, self._events, location / "output")
        return seconds, seconds

    def _run(self, query: str, mode: str, location: Path) -> tuple[float, float]:
        from airflow_provider.runtime.driver.run import run_job
        from airflow_provider.runtime.jobdir.end_of_input import drain_intent
        from airflow_provider.runtime.jobdir.layout import JobDirectory
        from airflow_provider.runtime.jobdir.run_spec import RunSpec
        from airflow_provider.runtime.storage.open import open_storage

        job_dir, output = str(location / "job"), str(location / "output")
        params = {"query": query, "input": str(self._events), "output": output}
        spec = RunSpec(
            job_dir=job_dir,
            entry=ENTRY,
            params=params,
            conf=self._conf,
            mode=mode,
            allow_known_bugs=queries.ALLOWED_BUGS.get(query, ()),
        )
        begun = time.time()
        final = run_job(spec, spark=self._spark)
        ended = time.time()
        all_read = ended
        if mode == "streaming":
            (name,) = final.queries
            intent = drain_intent(JobDirectory(open_storage(job_dir)), name)
            if intent is None:
                sys.exit(f"nexmark: {query} did not drain")
            all_read = dt.datetime.fromisoformat(intent.at.replace("Z", "+00:00")).timestamp()
        return ended - begun, all_read - begun

    def _run_plain(self, query: str, mode: str, location: Path) -> tuple[float, float]:
        from airflow_provider.runtime.spark.session import job_session

        if self._spark is None:
            raise ValueError(query)
        is_batch, output = mode == "batch", str(location / "output")
        begun = time.time()
        session = job_session(self._spark, self._conf, is_batch=is_batch, on_disk=True)
        rows = queries.QUERIES[query](self._reader(session, is_batch=is_batch))
        columns = queries.PARTITIONED.get(query, ())
        if is_batch:
            rows.write.format("csv").partitionBy(*columns).save(output)
        else:
            (
                rows.writeStream.format("csv")
                .partitionBy(*columns)
                .option("path", output)
                .option("checkpointLocation", str(location / "checkpoint"))
                .trigger(availableNow=True)
                .start()
                .awaitTermination()
            )
        seconds = time.time() - begun
        return seconds, seconds

    def _reader(self, session: SparkSession, *, is_batch: bool) -> Callable[[str], DataFrame]:
        def read(name: str) -> DataFrame:
            is_static = is_batch or name == "side_input"
            reader = session.read if is_static else session.readStream
            rows = reader.schema(queries.SCHEMAS[name]).csv(f"{self._events}/{name}")
            return rows if is_static else rows.withWatermark(*queries.WATERMARK)

        return read


def cpu_seconds(root: int) -> float:
    """Return the CPU time that a process and its descendants have used."""
    ticks, pids = 0, [root]
    while pids:
        pid = pids.pop()
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(int(field) for field in fields[11:15])  # ended children are in it, too
            for thread in Path(f"/proc/{pid}/task").iterdir():
                pids += map(int, (thread / "children").read_text().split())
    return ticks / os.sysconf("SC_CLK_TCK")


# --- the tables ---------------------------------------------------------------------------------


def report(measures: list[Measure]) -> int:
    """Print a table for each mode; return 1 if rows of this runtime are not those of the truth."""
    found: dict[tuple[str, str], dict[str, list[Measure]]] = {}
    for each in measures:
        found.setdefault((each.mode, each.query), {}).setdefault(each.side, []).append(each)
    for mode in dict.fromkeys(mode for mode, _ in found):
        print(f"\n{mode.upper()}\n\n{HEADER}\n{'|---' * HEADER.count(' | ')}|---|")
        of_mode = {query: sides for (of, query), sides in found.items() if of == mode}
        for query in sorted(of_mode, key=lambda name: int(name[1:])):
            print(line_of(query, mode, of_mode[query]))
    print("\n" + "\n".join(f"{name} is refused: {why}" for name, why in queries.REFUSED.items()))
    wrong = [each for each in measures if each.side == "runtime" and each.difference]
    print("\n".join(f"WRONG: {each}" for each in wrong) or "every row equals the truth")
    return 1 if wrong else 0


def print_shares() -> None:
    """Print the share of each kind of work in each recorded run."""
    runs: dict[str, list[Path]] = {}
    for file in sorted(PROFILES.glob("*.jfr")):
        runs.setdefault(file.stem.rpartition("-")[0], []).append(file)
    print(f"| | {' | '.join(ALL_KINDS)} |\n{'|---' * len(ALL_KINDS)}|---|")
    for name, files in runs.items():
        found = shares(files)
        print(f"| {name} | {' | '.join(f'{found.get(kind, 0):.0%}' for kind in ALL_KINDS)} |")


def line_of(query: str, mode: str, sides: Mapping[str, list[Measure]]) -> str:
    """Return a row of the table: medians, and the medians of the rounds' ratios."""
    ours, plain, theirs = (sides.get(side, []) for side in SIDES)
    slow = median_ratio(ours, plain, "query_s", "query_s")
    cells = [
        f"{statistics.median(each.rows / each.wall_s for each in ours):,.0f}" if ours else "",
        seconds(ours, "wall_s"),
        seconds(ours, "cpu_s"),
        equality(ours),
        seconds(plain, "wall_s"),
        seconds(plain, "cpu_s"),
        (f"**{slow:.2f}**" if slow > OVERHEAD else f"{slow:.2f}") if slow else "",
        seconds(theirs, "wall_s"),
        seconds(theirs, "cpu_s"),
        REFUSED.get((query, mode)) or equality(theirs),
        f"{ratio:.2f}" if (ratio := median_ratio(theirs, ours, "wall_s", "wall_s")) else "",
    ]
    return f"| {query} | {' | '.join(cells)} |"


def seconds(measures: list[Measure], what: str) -> str:
    """Return the median of a figure."""
    return f"{statistics.median(getattr(m, what) for m in measures):.2f} s" if measures else ""


def median_ratio(mine: list[Measure], other: list[Measure], what: str, of: str) -> float | None:
    """Return the median of the ratios of the rounds that both sides have."""
    pairs = list(zip(mine, other, strict=False))
    return statistics.median(getattr(a, what) / getattr(b, of) for a, b in pairs) if pairs else None


def equality(measures: list[Measure]) -> str:
    """Return whether all rows were those of the truth."""
    if not measures or any(each.difference is None for each in measures):
        return "not seen" if measures else ""
    return "no" if any(each.difference for each in measures) else "yes"


if __name__ == "__main__":
    sys.exit(main())
