"""Disturbs a real Airflow and the drivers of its tasks, and watches that nothing goes wrong."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import psutil
import psycopg2
from services import ENDED, Airflow, wait_for

from airflow_provider.runtime.jobdir import AttemptRecord, derive_run_id
from airflow_provider.runtime.lease import HeartbeatRecord, LeaseRecord
from airflow_provider.runtime.process import ProcessIdentity
from airflow_provider.runtime.storage import Storage, open_storage

TASK = "job"
TRIGGERERS = ("triggerer", "triggerer-2")
POLICIES = ("stop", "cancel", "detach")
LAUNCHER = "airflow_provider.runtime.launcher"
LOOK_EVERY_S = 0.2
QUIET_DEADLINE_S = 300.0  # from the last disturbance to green, with retries and a clear


# --- a job of one DAG run -----------------------------------------------------------------------


class Round:
    """One DAG run: its job directory, and what is in it.

    Args:
        place: where the job directories of all DAG runs lie.
        number: its number.
        policy: what its task's ``on_kill`` is.
    """

    def __init__(self, place: Path, number: int, policy: str) -> None:
        self.policy = policy
        self.dag_id = f"chaotic_{policy}"
        self.run_id = f"round_{number:03}"
        self.folder = place / self.run_id
        self.job = self.folder / "job"
        self.output = self.folder / "output"
        self.run = self.job / "runs" / derive_run_id(f"{self.dag_id}-{TASK}-{self.run_id}")
        self.final = self.run / "final.json"
        self.is_over = False

    def documents(self, pattern: str) -> list[dict[str, Any]]:
        """Return the documents of the job directory that match, in order of their names."""
        found = sorted(self.job.glob(pattern), key=lambda path: (len(path.name), path.name))
        return [json.loads(path.read_text()) for path in found]

    def attempts(self) -> list[dict[str, Any]]:
        return self.documents("runs/*/attempts/*.json")

    def count(self, pattern: str) -> int:
        return len(list(self.job.glob(pattern)))

    def is_submitted(self) -> bool:
        """Tell whether a driver was submitted that has not begun an attempt."""
        exits = self.count("runs/*/submissions/*.exit.json")
        submissions = self.count("runs/*/submissions/*.process.json")
        return submissions > max(exits, self.count("runs/*/attempts/*.json"))

    def is_draining(self) -> bool:
        return self.count("queries/*/drains/*.json") > 0


def processes_of(place: Path) -> dict[str, dict[str, list[int]]]:
    """Return the processes at work for the jobs under *place*: job, driver, what it is, PIDs.

    A driver is a launcher, the JVM of ``spark-submit``, and Python with the job in it.
    """
    found: dict[str, dict[str, list[int]]] = {}
    for pid in psutil.pids():
        try:
            raw = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        words = raw.decode(errors="replace").split("\0")
        if "--driver-id" not in words or str(place) not in raw.decode(errors="replace"):
            continue
        driver_id = words[words.index("--driver-id") + 1]
        job = next(word for word in words if word.startswith(str(place)) and word.endswith("/job"))
        if LAUNCHER in words:
            kind = "launcher"
        elif Path(words[0]).name == "java":
            kind = "jvm"
        elif Path(words[0]).name.startswith("python"):
            kind = "driver"
        else:
            kind = "script"  # spark-submit, until it becomes the JVM
        found.setdefault(job, {}).setdefault(f"{driver_id} {kind}", []).append(pid)
    return found


def drivers_in(found: dict[str, list[int]]) -> set[str]:
    """Return the drivers that have come up, or are coming up."""
    return {key.split()[0] for key in found if key.split()[1] in {"driver", "jvm"}}


# --- the observer -------------------------------------------------------------------------------


@dataclasses.dataclass
class Seen:
    """What the observer has seen so far.

    Attributes:
        wrong: what must not be, with the time.
        most_processes: the most drivers of one job that there were at once, starting ones included.
        several_s: for how long there was more than one.
        at_work: the most of them that were at work at once.
        looks: how often it has looked.
    """

    wrong: list[str] = dataclasses.field(default_factory=list)
    most_processes: int = 0
    several_s: float = 0.0
    at_work: int = 0
    looks: int = 0


class Observer(threading.Thread):
    """Looks about five times a second at leases, attempts, processes, and at Airflow's database.

    Args:
        place: where the job directories lie.
        database: Airflow's, as a URL of libpq.
        now: for the time of what it reports.
    """

    def __init__(self, place: Path, database: str, now: Callable[[], float]) -> None:
        super().__init__(name="observer", daemon=True)
        self._place = place
        self._connection = psycopg2.connect(database)
        self._connection.autocommit = True
        self._now = now
        self._done = threading.Event()
        self._said: set[str] = set()
        self.rounds: list[Round] = []
        self.seen = Seen()

    def run(self) -> None:
        """Look until it is told to stop; an error of its own is a finding, too."""
        last = time.monotonic()
        while not self._done.wait(LOOK_EVERY_S):
            try:
                self._look(time.monotonic() - last)
            except Exception as error:
                self._say(f"the observer: {error!r}")
            last = time.monotonic()

    def stop(self) -> None:
        self._done.set()
        self.join()
        self._connection.close()

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def _say(self, what: str) -> None:
        if what not in self._said:
            self._said.add(what)
            self.seen.wrong.append(f"{self._now():7.1f} {what}")

    def _look(self, since_s: float) -> None:
        self.seen.looks += 1
        self._look_at_tasks()
        processes = processes_of(self._place)
        for one in list(self.rounds):
            drivers = drivers_in(processes.get(str(one.job), {}))
            self.seen.most_processes = max(self.seen.most_processes, len(drivers))
            self.seen.several_s += since_s if len(drivers) > 1 else 0.0
            if not one.is_over:
                self._look_at_drivers(one)
        unknown = set(processes) - {str(one.job) for one in self.rounds}
        if unknown:
            self._say(f"drivers of no round: {unknown}")

    def _look_at_tasks(self) -> None:
        statement = "SELECT run_id FROM task_instance WHERE state = 'success'"
        green = {str(row[0]) for row in self.query(statement)}
        for one in list(self.rounds):
            if one.run_id in green and not one.final.exists():
                self._say(f"{one.run_id} is green without a final checkpoint")

    def _look_at_drivers(self, one: Round) -> None:
        """Find two that are at work at once: both have begun, and neither has ended.

        Read from the newest to the oldest, so that what is true of an older one when it is read was
        true when the newer one had begun.
        """
        storage = open_storage(str(one.job))
        tokens = sorted(int(name.removesuffix(".json")) for name in storage.list("leases"))
        if tokens != list(range(1, len(tokens) + 1)):
            self._say(f"{one.run_id}: leases {tokens}")
        working = [token for token in reversed(tokens) if self._is_at_work(storage, one, token)]
        self.seen.at_work = max(self.seen.at_work, len(working))
        if len(working) > 1:
            self._say(f"{one.run_id}: leases {working} are held at once")

    def _is_at_work(self, storage: Storage, one: Round, token: int) -> bool:
        lease = LeaseRecord.read(storage, f"leases/{token}.json")
        beat = HeartbeatRecord.read(storage, f"heartbeats/{token}.json")
        if lease is None or (beat is not None and beat.released and not self._is_open(one, token)):
            return False
        return not ProcessIdentity.from_dict(lease.owner).is_gone()

    def _is_open(self, one: Round, token: int) -> bool:
        """Tell whether the lease's driver has begun an attempt and not ended it."""
        run = open_storage(str(one.run))
        read = [AttemptRecord.read(run, f"attempts/{name}") for name in run.list("attempts")]
        return any(each is not None and each.token == token and not each.ended for each in read)


# --- what disturbs ------------------------------------------------------------------------------


def family(process: psutil.Process) -> list[psutil.Process]:
    """Return a component with the processes that it has started, but for drivers."""
    found = [process]
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in process.children():
            if not any(LAUNCHER in word for word in child.cmdline()):
                found += family(child)
    return found


def send(processes: list[psutil.Process], number: int) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


class Chaos:
    """Does to an Airflow what people and machines do to it.

    Args:
        airflow: with two triggerers.
        observer: what watches meanwhile.
        dice: decides what and when.
        now: for the log's times.
    """

    def __init__(
        self, airflow: Airflow, observer: Observer, dice: Random, now: Callable[[], float]
    ) -> None:
        self.airflow = airflow
        self.observer = observer
        self.dice = dice
        self.now = now
        self.log: list[str] = []
        self.done: Counter[str] = Counter()
        self.killed: set[str] = set()  # drivers
        self.green_after_s: list[float] = []
        self._waking: list[threading.Timer] = []
        self._paused: set[str] = set()
        self.actions: dict[str, Callable[[Round], str | None]] = {
            "clear": self.clear,
            "mark failed": self.mark_failed,
            "pause or unpause": self.toggle_pause,
            "triggerer SIGKILL": self.kill_triggerer,
            "triggerer SIGSTOP": self.stop_triggerer,
            "triggerer restart": self.restart_triggerer,
            "worker SIGKILL": self.kill_worker,
            "scheduler restart": self.restart_scheduler,
            "scheduler SIGKILL": self.kill_scheduler,
            "driver SIGKILL": self.kill_driver,
        }

    def note(self, text: str) -> None:
        self.log.append(f"{self.now():7.1f} {text}")
        print(self.log[-1], flush=True)

    # --- one round ------------------------------------------------------------------------------

    def begin(self, one: Round) -> None:
        """Start the DAG run."""
        self.observer.rounds.append(one)
        self.airflow.trigger(one.dag_id, dag_run_id=one.run_id)
        self.note(f"{one.run_id} of {one.dag_id} begins")

    def disturb(self, one: Round, name: str) -> None:
        """Wait for a moment, drawn by lot, and do one thing."""
        moments: dict[str, Callable[[], Any]] = {
            "at any time": lambda: True,
            "submitted": one.is_submitted,
            "deferred": lambda: self.state(one) == "deferred",
            "running": lambda: self._is_running(one),
            "draining": one.is_draining,
            "in a worker": self._busy_workers,
        }
        moment = self.dice.choice(sorted(moments))
        if name == "worker SIGKILL":
            moment = "in a worker"
        pause = self.dice.uniform(0.0, 3.0) if moment != "in a worker" else 0.0
        with contextlib.suppress(AssertionError):  # then at another moment
            wait_for(moment, moments[moment], within=12, every=0.05)
        time.sleep(pause)
        state = self.state(one)
        try:
            did = self.actions[name](one)
        except AssertionError as error:  # refused, such as a clear of what is being scheduled
            did = None
            self.note(f"{one.run_id} {name}: {str(error)[:200]}")
        if did is not None:
            self.done[name] += 1
            self.note(f"{one.run_id} {name} ({moment}, {state}): {did}")

    def let_be(self, one: Round) -> None:
        """Repair what is broken, and wait until the task is green."""
        self.mend(one)
        began = time.monotonic()
        said: list[str | None] = []

        def is_green() -> bool:
            state = self.state(one)
            if state not in said[-1:]:
                said.append(state)
            if state == "failed":
                self._clear_again(one)
            return state == "success"

        try:
            wait_for(f"{one.run_id} is green", is_green, within=QUIET_DEADLINE_S)
        except AssertionError as error:
            msg = f"{error}; its states were {said}"
            raise AssertionError(msg) from None
        self.green_after_s.append(time.monotonic() - began)
        self.note(f"{one.run_id} is green after {self.green_after_s[-1]:.1f} s by way of {said}")

    def clear_after_success(self, one: Round) -> None:
        """Clear a green task: it is green again, without another driver."""
        before = one.count("runs/*/submissions/*.json")
        self.airflow.wait_for_end(one.dag_id, one.run_id)
        self.airflow.clear(one.dag_id, one.run_id, TASK)
        wait_for("it is not green", lambda: self.state(one) != "success", within=30, every=0.02)
        self.airflow.follow(one.dag_id, one.run_id, TASK, until=("success",), within=90)
        self.done["clear after success"] += 1
        self.note(f"{one.run_id} clear after success: green again")
        assert before == one.count("runs/*/submissions/*.json")

    def mend(self, one: Round) -> None:
        """Make Airflow whole: every component runs, and the DAG is not paused."""
        for timer in self._waking:
            timer.cancel()
            timer.function(*timer.args)
        self._waking.clear()
        for name, process in self.airflow.processes.items():
            assert process.poll() is None, f"{name} has ended with {process.poll()}"
        if one.dag_id in self._paused:
            self.toggle_pause(one)

    def _clear_again(self, one: Round) -> None:
        """Be the person who finds a failed task, and clears it."""
        self.note(f"{one.run_id} failed: cleared")
        self.airflow.clear(one.dag_id, one.run_id, TASK)
        wait_for("it is cleared", lambda: self.state(one) != "failed", within=30)

    def state(self, one: Round) -> str | None:
        return self.airflow.task(one.dag_id, one.run_id, TASK)["state"]

    def _is_running(self, one: Round) -> bool:
        return one.count("queries/*/checkpoint/commits/[0-9]*") > 3

    # --- what people do -------------------------------------------------------------------------

    def clear(self, one: Round) -> str | None:
        """Clear the task, unless it has ended in a DAG that is paused: nothing would be seen."""
        if self.state(one) in ENDED and one.dag_id in self._paused:
            return None
        self.airflow.clear(one.dag_id, one.run_id, TASK)
        return "cleared"

    def mark_failed(self, one: Round) -> str | None:
        if self.state(one) in ENDED:
            return None
        self.airflow.mark(one.dag_id, one.run_id, TASK, "failed")
        return "marked"

    def toggle_pause(self, one: Round) -> str:
        pauses = one.dag_id not in self._paused
        self.airflow.call("PATCH", f"/dags/{one.dag_id}", is_paused=pauses)
        self._paused ^= {one.dag_id}
        return "paused" if pauses else "unpaused"

    # --- what machines do -----------------------------------------------------------------------

    def kill_triggerer(self, one: Round) -> str | None:
        name = self._triggerer()
        if name is None:
            return None
        whole = self.dice.random() < 0.5
        self._kill(name, whole=whole)
        return f"{name}{', with what runs the triggers' if whole else ''}"

    def restart_triggerer(self, one: Round) -> str | None:
        name = self._triggerer()
        if name is None:
            return None
        self._restart(name)
        return name

    def stop_triggerer(self, one: Round) -> str | None:
        """Let a triggerer stand still for up to a minute; the other one takes its triggers over."""
        name = self._triggerer()
        if name is None:
            return None
        frozen = family(psutil.Process(self.airflow.processes[name].pid))
        send(frozen, signal.SIGSTOP)
        seconds = self.dice.choice((15.0, 30.0, 60.0))
        timer = threading.Timer(seconds, self._wake, (name, frozen))
        timer.start()
        self._waking.append(timer)
        return f"{name} for {seconds:.0f} s"

    def _wake(self, name: str, frozen: list[psutil.Process]) -> None:
        send(frozen, signal.SIGCONT)
        self.note(f"{name} goes on")

    def _triggerer(self) -> str | None:
        """Return a triggerer that does not stand still."""
        still = {timer.args[0] for timer in self._waking if timer.is_alive()}
        able = [name for name in TRIGGERERS if name not in still]
        return self.dice.choice(able) if able else None

    def restart_scheduler(self, one: Round) -> str:
        self._restart("scheduler")
        return "restarted"

    def kill_scheduler(self, one: Round) -> str:
        self._kill("scheduler", whole=True)
        return "killed, with its workers"

    def kill_worker(self, one: Round) -> str | None:
        """Kill the process that runs a task, the one that looks after it, or both."""
        workers = self._busy_workers()
        if not workers:
            return None
        supervisor, task = self.dice.choice(workers)
        which = self.dice.choice(("task", "supervisor", "both"))
        killed = {"task": [task], "supervisor": [supervisor], "both": [supervisor, task]}[which]
        send(killed, signal.SIGKILL)
        return which

    def _busy_workers(self) -> list[tuple[psutil.Process, psutil.Process]]:
        """Return supervisors with their tasks. One that is idle holds the queue's lock for all."""
        found = []
        with contextlib.suppress(psutil.NoSuchProcess):
            scheduler = psutil.Process(self.airflow.processes["scheduler"].pid)
            for worker in scheduler.children():
                tasks = [child for child in worker.children() if self._is_task(child)]
                found += [(worker, task) for task in tasks]
        return found

    def _is_task(self, process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            return LAUNCHER not in process.cmdline()
        return False

    def kill_driver(self, one: Round) -> str | None:
        """Kill one of a driver's processes, or all but what looks after it."""
        found = processes_of(one.folder).get(str(one.job), {})
        which = self.dice.choice(("driver", "jvm", "launcher", "driver and jvm"))
        pids = [
            pid for key, pids in found.items() for pid in pids if key.split()[1] in which.split()
        ]
        if not pids:
            return None
        self.killed |= {key.split()[0] for key in found}
        for pid in pids:
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(pid).kill()
        return f"{which}, {len(pids)} process(es)"

    def _kill(self, name: str, *, whole: bool) -> None:
        process = self.airflow.processes[name]
        everybody = family(psutil.Process(process.pid))
        send(everybody if whole else everybody[:1], signal.SIGKILL)
        process.wait(10)
        self._replace(name, everybody[1:])

    def _restart(self, name: str) -> None:
        process = self.airflow.processes[name]
        everybody = family(psutil.Process(process.pid))
        process.terminate()
        with contextlib.suppress(Exception):
            process.wait(30)
        send(everybody[:1], signal.SIGKILL)
        process.wait(10)
        self._replace(name, everybody[1:])

    def _replace(self, name: str, orphans: list[psutil.Process]) -> None:
        """Start a component again, and see to it that nothing of the last one stays for ever."""
        psutil.wait_procs(orphans, timeout=5)
        send(orphans, signal.SIGKILL)
        self.airflow.launch(name)
