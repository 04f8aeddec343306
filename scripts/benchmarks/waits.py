"""Measure what a thousand waits in one triggerer cost, and how soon their tasks are green.

A real Airflow: API server, scheduler, DAG processor and one triggerer as processes, on PostgreSQL.
One task is mapped over as many jobs; each of its instances is really executed by a worker, adopts
its job's driver, and defers. The drivers are one process that has no Spark: it makes the job
directories, renews the leases, and puts final checkpoints on request. Measured are the CPU time of
the triggerer (with its child) while all wait, and, while most go on waiting, the time from a final
checkpoint to the moment at which the task's success is seen in Airflow's database.

Other poll intervals, and that a trigger ends its task, are put into the same triggers' arguments,
and the triggerer is restarted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import psycopg2

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

from tests.airflow.services import AIRFLOW, Airflow, end_process, postgres_server
from tests.airflow.services import wait_for as wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

MEMORY = Path("/dev/shm")  # noqa: S108 - a thousand drivers' heartbeats are no test of a disk
WORKERS = 8
ONE_END_S = 1.5  # well below what two cores can start in workers
SETTLE_S = 25.0  # after the last trigger has begun: it looks often at first
P95_S = 5.0
CORES = 0.5
SIGINT = 2
BLOCKED = re.compile(r"async thread was blocked for ([0-9.]+) seconds")
STEPS = ("scheduled", "queued", "running", "success")


def main() -> int:
    """Measure each interval, print tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waits", type=int, default=1000, help="deferred tasks")
    parser.add_argument("--ends", type=int, default=150, help="final checkpoints per interval")
    parser.add_argument("--quiet", type=float, default=60.0, help="seconds of waiting only")
    parser.add_argument("--intervals", type=float, nargs="+", default=[1.0, 2.0])
    arguments = parser.parse_args()
    with running(arguments.waits) as bench:
        bench.defer_all()
        found: list[tuple[float, dict[str, float], dict[str, Any]]] = []
        ways = [(interval_s, False) for interval_s in arguments.intervals]
        for interval_s, from_trigger in [*ways, (1.0, True)]:
            if found or interval_s != 1.0:
                bench.restart_triggerer(interval_s, from_trigger=from_trigger)
            quiet = bench.rest(arguments.quiet)
            ends = bench.end_some(arguments.ends)
            found.append((interval_s, quiet, ends))
            report(interval_s, quiet, ends, from_trigger=from_trigger)
    _, quiet, ends = found[0]
    return 0 if quiet["triggerer"] < CORES and ends["p95"] <= P95_S else 1


@contextlib.contextmanager
def running(waits: int) -> Iterator[Bench]:
    """Give an Airflow, and drivers at work."""
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(postgres_server())
        parent = MEMORY if MEMORY.is_dir() else None
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="w", dir=parent)))
        (folder / "dags").mkdir()
        shutil.copy(HERE / "waiting.py", folder / "dags")
        jobs = folder / "jobs"
        drivers = subprocess.Popen(
            [sys.executable, str(HERE / "drivers.py"), str(jobs), str(waits)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(drivers.wait)
        stack.callback(drivers.kill)
        if drivers.stdout is None or drivers.stdout.readline() != "at work\n":
            sys.exit("waits: the drivers did not come up")
        airflow = Components(folder / "home", folder / "dags", url)
        airflow.environment |= {
            "WAITS_LOCATION": str(jobs),
            "WAITS_COUNT": str(waits),
            "PYTHONPATH": str(ROOT),
            "AIRFLOW__CORE__PARALLELISM": str(WORKERS),
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "300",
        }
        stack.callback(airflow.stop)
        airflow.start()
        database = psycopg2.connect(url.replace("+psycopg2", ""))
        database.autocommit = True
        stack.callback(database.close)
        yield Bench(airflow, drivers, database, waits)


class Components(Airflow):
    """Airflow's processes, one of which can be restarted."""

    def process(self, name: str) -> psutil.Process:
        """Return a component's first process."""
        return psutil.Process(self.processes[name].pid)

    def log(self, name: str) -> str:
        """Return what a component has said."""
        return (self.home / f"{name}.log").read_text(errors="replace")

    def restart(self, name: str) -> None:
        """End a component, and start it again."""
        end_process(self.processes[name], SIGINT, within=30)
        with (self.home / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(AIRFLOW), name, "--skip-serve-logs"],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


class Bench:
    """The waits and what can be done with them."""

    def __init__(
        self, airflow: Components, drivers: subprocess.Popen[str], database: Any, waits: int
    ) -> None:
        self._airflow = airflow
        self._drivers = drivers
        self._database = database
        self._waits = waits
        self._next = 0  # the job that ends next
        self._run_id = ""

    def ask(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows that the database answers with."""
        with self._database.cursor() as cursor:
            cursor.execute(query, values)
            return list(cursor.fetchall()) if cursor.description else []

    def states(self) -> dict[str, int]:
        """Return how many task instances are in which state."""
        return dict(
            self.ask(
                "SELECT coalesce(state, 'none'), count(*) FROM task_instance "
                "WHERE dag_id = 'waiting' GROUP BY 1"
            )
        )

    def defer_all(self) -> None:
        """Run the DAG, and wait until every task is deferred and its trigger has begun."""
        began = time.monotonic()
        self._run_id = self._airflow.trigger("waiting")

        def is_deferred() -> bool:
            states = self.states()
            if "failed" in states:
                sys.exit(f"waits: {states['failed']} task(s) failed; see the log of one")
            return states == {"deferred": self._waits}

        wait_until("all are deferred", is_deferred, within=60 + 3 * self._waits, every=2)
        took = time.monotonic() - began
        print(f"{self._waits} tasks executed and deferred in {took:.0f} s", flush=True)
        self._await_triggers()

    def restart_triggerer(self, interval_s: float, *, from_trigger: bool) -> None:
        """Let the same waits continue in a restarted triggerer, with other arguments."""
        changed = {"poll_interval": interval_s, "end_from_trigger": from_trigger}
        self.ask("UPDATE trigger SET kwargs = kwargs::jsonb || %s::jsonb", json.dumps(changed))
        before = self._triggerer()
        self._airflow.restart("triggerer")
        wait_until("another triggerer", lambda: self._triggerer() > before, within=120)
        self._await_triggers()

    def _triggerer(self) -> int:
        """Return the number of the newest triggerer."""
        ((newest,),) = self.ask("SELECT max(id) FROM job WHERE job_type = 'TriggererJob'")
        return int(newest)

    def _await_triggers(self) -> None:
        def have_begun() -> bool:
            query = "SELECT count(*) FROM trigger WHERE triggerer_id = %s"
            ((assigned,),) = self.ask(query, self._triggerer())
            return bool(assigned == self._waits - self._next)

        wait_until("the triggerer has taken all waits", have_begun, within=240, every=0.5)
        time.sleep(SETTLE_S)

    def rest(self, seconds: float) -> dict[str, float]:
        """Only wait; return the cores that each process uses, and what the database had to do."""
        said = len(self._airflow.log("triggerer"))
        before, commits = self._cpu(), self._commits()
        began = time.monotonic()
        time.sleep(seconds)
        after, took = self._cpu(), time.monotonic() - began
        found = {name: (after[name] - before[name]) / took for name in before}
        found["commits"] = (self._commits() - commits) / took
        found |= blocked(self._airflow.log("triggerer")[said:])
        return {**found, "waits": float(self._waits - self._next), "seconds": took}

    def end_some(self, count: int) -> dict[str, Any]:
        """Let jobs end one after the other; return how long their tasks took to be green."""
        ended: dict[int, float] = {}
        seen: dict[int, dict[str, float]] = {}
        said = len(self._airflow.log("triggerer"))
        before = self._cpu()["triggerer"]
        began, first = time.time(), self._next
        deadline = began + count * ONE_END_S + 120
        while time.time() < deadline:
            due = int((time.time() - began) / ONE_END_S) + 1
            if len(ended) < min(due, count):
                ended[first + len(ended)] = self._end(first + len(ended))
            for index, state in self._states_of(first, count):
                seen.setdefault(index, {}).setdefault(state, time.time())
            if sum("success" in each for each in seen.values()) == count:
                break
            time.sleep(0.1)
        else:
            sys.exit(f"waits: not all of {count} tasks are green: {self.states()}")
        took = time.time() - began
        self._next += count
        times = sorted(seen[n]["success"] - ended[n] for n in ended)
        return {
            "p50": statistics.median(times),
            "p95": times[math.ceil(len(times) * 0.95) - 1],
            "max": times[-1],
            "count": count,
            "cpu": (self._cpu()["triggerer"] - before) / took,
            "steps": steps(ended, seen),
            **blocked(self._airflow.log("triggerer")[said:]),
        }

    def _end(self, number: int) -> float:
        if self._drivers.stdin is None or self._drivers.stdout is None:
            sys.exit("waits: the drivers are not listening")
        self._drivers.stdin.write(f"end {number}\n")
        self._drivers.stdin.flush()
        answered, at = self._drivers.stdout.readline().split()
        if int(answered) != number:
            sys.exit(f"waits: the drivers ended {answered} instead of {number}")
        return float(at)

    def _states_of(self, first: int, count: int) -> list[tuple[Any, ...]]:
        return self.ask(
            "SELECT map_index, state FROM task_instance WHERE dag_id = 'waiting' "
            "AND map_index >= %s AND map_index < %s AND state <> 'deferred'",
            first,
            first + count,
        )

    def _commits(self) -> int:
        ((commits,),) = self.ask(
            "SELECT xact_commit FROM pg_stat_database WHERE datname = 'airflow'"
        )
        return int(commits)

    def _cpu(self) -> dict[str, float]:
        """Return the CPU seconds that each component has used."""
        ((server,),) = self.ask("SELECT pg_backend_pid()")
        postmaster = psutil.Process(server).parent() or psutil.Process(server)
        names = ("triggerer", "scheduler", "api-server", "dag-processor")
        found = {name: cpu_of(self._airflow.process(name)) for name in names}
        found["postgres"] = cpu_of(postmaster)
        found["drivers"] = cpu_of(psutil.Process(self._drivers.pid))
        return found


def cpu_of(process: psutil.Process) -> float:
    """Return the CPU seconds of a process and its children, those included that have ended."""
    total = 0.0
    for each in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = each.cpu_times()
            total += times.user + times.system
            if each == process:
                total += times.children_user + times.children_system
    return total


def blocked(log: str) -> dict[str, float]:
    """Return how often the triggerer said that its event loop was blocked, and for how long."""
    times = [float(each) for each in BLOCKED.findall(log)]
    return {"blocked": float(len(times)), "blocked_max_s": max(times, default=0.0)}


def steps(ended: dict[int, float], seen: dict[int, dict[str, float]]) -> dict[str, float]:
    """Return the median time from the final checkpoint to each state."""
    found = {}
    for step in STEPS:
        times = [seen[n][step] - at for n, at in ended.items() if step in seen[n]]
        if times:
            found[step] = statistics.median(times)
    return found


def report(
    interval_s: float, quiet: dict[str, float], ends: dict[str, Any], *, from_trigger: bool
) -> None:
    """Print what was measured with one interval between looks."""
    by = "the trigger" if from_trigger else "a worker"
    print(f"\n{quiet['waits']:.0f} waits, a look every {interval_s:g} s, ended by {by}")
    print(
        f"waiting, {quiet['seconds']:.0f} s: triggerer {quiet['triggerer']:.3f} cores "
        f"({quiet['triggerer'] / quiet['waits'] * 1e3:.3f} ms/s per wait), "
        f"postgres {quiet['postgres']:.3f}, {quiet['commits']:.1f} commits/s, "
        f"scheduler {quiet['scheduler']:.3f}, api-server {quiet['api-server']:.3f}, "
        f"drivers {quiet['drivers']:.3f}; "
        f"loop blocked {quiet['blocked']:.0f} times, at most {quiet['blocked_max_s']:.2f} s"
    )
    print(
        f"{ends['count']} final checkpoints, one every {ONE_END_S:g} s: "
        f"p50 {ends['p50']:.2f} s, p95 {ends['p95']:.2f} s, max {ends['max']:.2f} s; "
        f"triggerer {ends['cpu']:.3f} cores; loop blocked {ends['blocked']:.0f} times, "
        f"at most {ends['blocked_max_s']:.2f} s"
    )
    steps = ", ".join(f"{step} {took:.2f} s" for step, took in ends["steps"].items())
    print(f"median until first seen: {steps}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
