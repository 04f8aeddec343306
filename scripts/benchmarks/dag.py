"""Measure what a DAG of short tasks takes, with a pool and without, and where the time goes.

A real Airflow: API server, scheduler, DAG processor and triggerer as processes, on PostgreSQL. Each
task runs the warm-up's job on 3,000 rows of CSV, in a job directory of its own. *At once* they are
one DAG run of chains side by side, each of whose tasks follows the last: as many tasks run at a
time as there are chains. *Spaced* each task is a DAG run of its own, one every so many seconds,
as on a quiet day. *Slices* are the hours of a
backfill, each a DAG run with a job directory of its own.

The sides: without a pool, and with one, each as is the default, with workers that wait themselves
for short runs; with a pool and workers that always wait; and without a pool, deferred immediately,
ended by a worker or by the trigger. A worker ends a deferred task ten seconds after it was deferred
at the earliest (:mod:`airflow_provider.triggers.polling` says why).

A trigger of the database notes each state of a task when it is set; the job directories say when
the driver was submitted and up, and when the final checkpoint committed; XComs say when the task's
own code began and returned. Nothing is polled. CPU time is that of the whole machine: Airflow,
PostgreSQL, the pool and everything else.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime as dt
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import psycopg2

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
WORK = ROOT / ".work" / "dag"
sys.path.insert(0, str(ROOT))
# The archive of classes is that of the other benchmarks; a first run would make it meanwhile.
os.environ.setdefault("SPARK_STREAM_CACHE", str(ROOT / ".work" / "cache"))

from scripts.benchmarks.start import await_ready, make_input
from tests.airflow.services import AIRFLOW, Airflow, end_drivers, postgres_server
from tests.airflow.services import wait_for as wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MASTER = "local[2]"  # of Airflow's connection, which the pool must have, too
SETTLE_S = 5.0
PER_TASK_S = 90.0
WARM_S = 180.0
ENDED = ("success", "failed")
COLD = "no warm driver: "
SIDES = {
    "cold": "no pool",
    "pool": "pool",
    "worker": "pool, `deferrable=False`",
    "deferred": "no pool, `defer_after=0`",
    "trigger": "no pool, `defer_after=0`, `end_from_trigger=True`",
}
POOLED = ("pool", "worker")
NOTE = """
CREATE TABLE noted (at double precision, dag_id text, run_id text, task_id text, state text);
CREATE FUNCTION note() RETURNS trigger AS $$ BEGIN
    IF NEW.state IS DISTINCT FROM OLD.state THEN
        INSERT INTO noted VALUES (extract(epoch FROM clock_timestamp()),
                                  NEW.dag_id, NEW.run_id, NEW.task_id, NEW.state);
    END IF;
    RETURN NEW;
END $$ LANGUAGE plpgsql;
CREATE TRIGGER note AFTER UPDATE ON task_instance FOR EACH ROW EXECUTE FUNCTION note();
"""
PHASES = {
    "scheduled": "can run → scheduled",
    "queued": "→ queued",
    "running": "→ running, in a worker",
    "executing": "→ `execute()`: fork, imports, the DAG's file",
    "submitted": "→ driver submitted",
    "up": "→ driver up: Python, Spark, lease, attempt",
    "final": "→ final checkpoint",
    "fired": "→ trigger has fired, task is scheduled again",
    "returned": "→ the task returns",
    "success": "→ green",
}


@dataclasses.dataclass
class Task:
    """One task, with the moments at which it has got further, in seconds of the epoch."""

    moments: dict[str, float]
    reason: str | None  # why its driver started cold; None for a warm one, or without a pool
    deferred: float | None  # None for a task that has waited in its worker

    @property
    def seconds(self) -> float:
        """Return the time from when it could run until it is green."""
        return self.moments["success"] - self.moments["ready"]

    def phases(self) -> dict[str, float]:
        """Return the seconds of each phase."""
        pairs = zip(self.moments, list(self.moments)[1:], strict=False)
        return {step: self.moments[step] - self.moments[before] for before, step in pairs}


@dataclasses.dataclass
class Side:
    """What was measured of one side."""

    name: str
    seconds: float
    cpu_s: float
    tasks: list[Task]


def main() -> int:
    """Measure each side at once, spaced and as slices; print tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=20, help="of the DAG; 0 for none at once")
    parser.add_argument("--chains", type=int, default=2, help="tasks that run at a time")
    parser.add_argument("--warm", type=int, default=2, help="warm drivers")
    parser.add_argument("--spaced", type=int, default=6, help="tasks that come one by one")
    parser.add_argument("--spacing", type=float, default=25.0, help="seconds between those")
    parser.add_argument("--slices", type=int, default=0, help="of a backfill")
    parser.add_argument("--mode", default="streaming", choices=("streaming", "batch"))
    parser.add_argument("--sides", default="cold,pool,worker", help=f"of {', '.join(SIDES)}")
    arguments = parser.parse_args()
    shutil.rmtree(WORK, ignore_errors=True)
    make_input(WORK / "in")
    found: dict[str, list[Side]] = {"at once": [], "spaced": [], "slices": []}
    with running(arguments) as bench:
        for side in arguments.sides.split(","):
            with bench.pool() if side in POOLED else contextlib.nullcontext():
                if arguments.tasks:
                    found["at once"].append(bench.at_once(side))
                if arguments.spaced:
                    found["spaced"].append(bench.spaced(side))
                if arguments.slices:
                    found["slices"].append(bench.slices(side))
    for how, sides in found.items():
        if sides:
            report(how, sides, arguments)
    return 0


@contextlib.contextmanager
def running(arguments: argparse.Namespace) -> Iterator[Bench]:
    """Give an Airflow whose database notes the states of tasks."""
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(postgres_server())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dag-")))
        (folder / "dags").mkdir()
        shutil.copy(HERE / "short_tasks.py", folder / "dags")
        airflow = Airflow(folder / "home", folder / "dags", url)
        del airflow.environment["JDK_JAVA_OPTIONS"]  # those of tests make a driver slower
        # Without compiled modules each worker would compile ours again.
        airflow.environment.pop("PYTHONDONTWRITEBYTECODE", None)
        airflow.environment |= {
            "SHORT_LOCATION": str(WORK),
            "SHORT_TASKS": str(arguments.tasks),
            "SHORT_CHAINS": str(arguments.chains),
            "SHORT_MODE": arguments.mode,
            "PYTHONPATH": str(ROOT),
            "SPARK_STREAM_WARM_DRIVERS": str(folder / "pool"),
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "300",
        }
        stack.callback(end_drivers, WORK)
        stack.callback(airflow.stop)
        airflow.start()
        database = psycopg2.connect(url.replace("+psycopg2", ""))
        database.autocommit = True
        stack.callback(database.close)
        bench = Bench(airflow, database, folder, arguments)
        bench.ask(NOTE)
        yield bench


class Bench:
    """Airflow, and what it is asked to run."""

    def __init__(
        self, airflow: Airflow, database: Any, folder: Path, arguments: argparse.Namespace
    ) -> None:
        self._airflow = airflow
        self._database = database
        self._folder = folder
        self._arguments = arguments

    def ask(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows that the database answers with."""
        with self._database.cursor() as cursor:
            cursor.execute(query, values or None)
            return list(cursor.fetchall()) if cursor.description else []

    @contextlib.contextmanager
    def pool(self) -> Iterator[None]:
        """Keep warm drivers for the block."""
        command = [
            str(AIRFLOW.with_name("spark-stream")),
            "warm-drivers",
            "start",
            "--master",
            MASTER,
        ]
        with (self._folder / "pool.log").open("wb") as log:
            process = subprocess.Popen(
                [*command, "--size", str(self._arguments.pool)],
                env=self._airflow.environment,
                cwd=self._folder,
                stdout=log,
                stderr=log,
            )
        try:
            yield
        finally:
            process.terminate()
            process.wait()

    def at_once(self, side: str) -> Side:
        """Run the DAG of all tasks."""
        self._settle(side)
        dag_id, cpu = f"{side}_at_once", machine_cpu_s()
        self._airflow.trigger(dag_id, dag_run_id="r00")
        self._await_runs(dag_id, 1, self._arguments.tasks * PER_TASK_S)
        cpu = machine_cpu_s() - cpu
        begun, ended = self._runs(dag_id)["r00"]
        tasks: list[Task] = []
        for number in range(self._arguments.tasks):
            before = number - self._arguments.chains
            ready = tasks[before].moments["success"] if before >= 0 else begun
            tasks.append(self._task(dag_id, "r00", number, ready))
        return Side(side, ended - begun, cpu, tasks)

    def spaced(self, side: str) -> Side:
        """Run tasks one by one, each as a DAG run of its own."""
        self._settle(side)
        dag_id, cpu = f"{side}_spaced", machine_cpu_s()
        first = time.monotonic()
        for number in range(self._arguments.spaced):
            time.sleep(max(0.0, first + number * self._arguments.spacing - time.monotonic()))
            self._airflow.trigger(dag_id, dag_run_id=f"r{number:02d}")
        return self._each_run(side, dag_id, self._arguments.spaced, cpu)

    def slices(self, side: str) -> Side:
        """Backfill hours, each a DAG run, as many at a time as there are chains."""
        self._settle(side)
        dag_id, count, cpu = f"{side}_slices", self._arguments.slices, machine_cpu_s()
        first = dt.datetime(2025, 1, 1, tzinfo=dt.timezone.utc)
        last = first + dt.timedelta(hours=count - 1)
        many = {"max_active_runs": self._arguments.chains}
        self._airflow.backfill(dag_id, first.isoformat(), last.isoformat(), **many)
        return self._each_run(side, dag_id, count, cpu)

    def _each_run(self, side: str, dag_id: str, count: int, cpu: float) -> Side:
        self._await_runs(dag_id, count, count * PER_TASK_S)
        cpu = machine_cpu_s() - cpu
        runs = self._runs(dag_id)
        tasks = [self._task(dag_id, name, 0, begun) for name, (begun, _) in sorted(runs.items())]
        begun, ended = (list(moments) for moments in zip(*runs.values(), strict=True))
        return Side(side, max(ended) - min(begun), cpu, tasks)

    def _settle(self, side: str) -> None:
        """Wait until the drivers are ready."""
        if side in POOLED:
            await_ready(self._airflow.environment, self._arguments.pool)
        time.sleep(SETTLE_S)

    def _await_runs(self, dag_id: str, count: int, within: float) -> None:
        query = "SELECT state FROM dag_run WHERE dag_id = %s"

        def have_ended() -> bool:
            states = [state for (state,) in self.ask(query, dag_id)]
            return len(states) == count and all(state in ENDED for state in states)

        wait_until(f"the runs of {dag_id} have ended", have_ended, within=within, every=0.5)
        if bad := [state for (state,) in self.ask(query, dag_id) if state != "success"]:
            sys.exit(f"dag: {len(bad)} runs of {dag_id} have failed; see {WORK / dag_id}")

    def _runs(self, dag_id: str) -> dict[str, tuple[float, float]]:
        """Return when each DAG run was asked for or a slice's turn came, and when it had ended."""
        found = self.ask(
            "SELECT run_id, extract(epoch FROM CASE run_type WHEN 'backfill' THEN start_date "
            "ELSE queued_at END), extract(epoch FROM end_date) FROM dag_run WHERE dag_id = %s",
            dag_id,
        )
        return {name: (float(begun), float(ended)) for name, begun, ended in found}

    def _task(self, dag_id: str, run_id: str, number: int, ready: float) -> Task:
        """Return a task, from what the database and its job directory have noted."""
        noted = self.ask(
            "SELECT state, at FROM noted WHERE dag_id = %s AND run_id = %s AND task_id = %s "
            "ORDER BY at",
            dag_id,
            run_id,
            f"t{number:02d}",
        )
        first: dict[str, float] = {}
        last: dict[str, float] = {}
        for state, at in noted:
            first.setdefault(state, at)
            last[state] = at
        pushed = self.ask(
            "SELECT key, extract(epoch FROM timestamp) FROM xcom "
            "WHERE dag_id = %s AND run_id = %s AND task_id = %s",
            dag_id,
            run_id,
            f"t{number:02d}",
        )
        at = {key: float(moment) for key, moment in pushed}
        folder = WORK / dag_id / run_id.replace(":", "-") / f"{number:02d}"
        (run,) = (folder / "job" / "runs").iterdir()
        (submission,) = (json.loads(path.read_text()) for path in submissions(run))
        attempt = json.loads((run / "attempts" / "1.json").read_text())
        final = json.loads((run / "final.json").read_text())
        moments = {
            "ready": ready,
            **{state: first[state] for state in ("scheduled", "queued", "running")},
            "executing": at["spark_stream"],
            "submitted": parsed(submission["submitted"]),
            "up": parsed(attempt["started"]),
            "final": parsed(final["committed"]),
            **({"fired": last["scheduled"]} if last["scheduled"] > first["running"] else {}),
            **({"returned": at["return_value"]} if "return_value" in at else {}),
            "success": last["success"],
        }
        return Task(moments, cold_reason(Path(submission["log"])), first.get("deferred"))


def machine_cpu_s() -> float:
    """Return the CPU seconds that all processes of this machine have used."""
    used = psutil.cpu_times()
    return float(used.user + used.nice + used.system + used.irq + used.softirq)


def submissions(run: Path) -> list[Path]:
    """Return the intents of a run's drivers."""
    return [path for path in (run / "submissions").glob("*.json") if path.name.count(".") == 1]


def cold_reason(log: Path) -> str | None:
    """Return why a driver did not start warm, by its log."""
    lines = log.read_text(errors="replace").splitlines()
    found = next((line for line in lines if line.startswith(COLD)), None)
    return found.removeprefix(COLD).removesuffix("; starting one") if found else None


def parsed(moment: str) -> float:
    """Return a record's time in seconds of the epoch."""
    return dt.datetime.fromisoformat(moment.replace("Z", "+00:00")).timestamp()


def report(how: str, sides: Sequence[Side], arguments: argparse.Namespace) -> None:
    """Print what was measured of the same tasks, on each side."""
    detail = (
        f"one every {arguments.spacing:g} s" if how == "spaced" else f"{arguments.chains} at a time"
    )
    print(f"\n{how}: {len(sides[0].tasks)} tasks, {detail}, {arguments.mode}\n")
    heads = ["in all", "a task: median", "min", "max", "CPU, a task", "warm drivers"]
    print(f"| | {' | '.join(heads)} |\n|---{'|---' * len(heads)}|")
    for side in sides:
        times = [task.seconds for task in side.tasks]
        warm = sum(task.reason is None for task in side.tasks) if side.name in POOLED else 0
        figures = [side.seconds, statistics.median(times), min(times), max(times)]
        figures.append(side.cpu_s / len(times))
        shown = " | ".join(f"{figure:.1f} s" for figure in figures)
        print(f"| {SIDES[side.name]} | {shown} | {warm} of {len(times)} |")
    groups = grouped(sides)
    print(f"\n| seconds, medians | {' | '.join(groups)} |\n|---{'|---' * len(groups)}|")
    for step, text in PHASES.items():
        cells = (median([t.phases().get(step) for t in tasks]) for tasks in groups.values())
        print(f"| {text} | {' | '.join(cells)} |")
    cells = (median([waited(task) for task in tasks]) for tasks in groups.values())
    print(f"| meanwhile: submitted → deferred | {' | '.join(cells)} |")
    for side in sides:
        reasons = Counter(task.reason for task in side.tasks if task.reason is not None)
        for reason, count in reasons.most_common():
            print(f"\n{SIDES[side.name]}: {count} started cold: {reason}", flush=True)


def waited(task: Task) -> float | None:
    """Return how long after the submission the task was deferred."""
    return task.deferred - task.moments["submitted"] if task.deferred is not None else None


def median(seconds: Sequence[float | None]) -> str:
    """Return the median as text; a dash for a phase that a task does not have."""
    known = [each for each in seconds if each is not None]
    return f"{statistics.median(known):.2f}" if known else "-"


def grouped(sides: Sequence[Side]) -> dict[str, list[Task]]:
    """Return the tasks by how their drivers started."""
    groups: dict[str, list[Task]] = {}
    for side in sides:
        for task in side.tasks:
            how = "cold" if task.reason is not None else "warm"
            name = f"{SIDES[side.name]}: {how}" if side.name in POOLED else SIDES[side.name]
            groups.setdefault(name, []).append(task)
    return {f"{name} ({len(tasks)})": tasks for name, tasks in groups.items()}


if __name__ == "__main__":
    sys.exit(main())
