"""Chaos: does to a real Airflow, and to the drivers of its tasks, what people and machines do."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import psutil
from observing import LAUNCHER, TASK, Observer, Round, processes_of
from services import ENDED, Airflow, wait_for

TRIGGERERS = ("triggerer", "triggerer-2")
POLICIES = ("stop", "cancel", "detach")
QUIET_DEADLINE_S = 300.0  # from the last disturbance to green, with retries and a clear


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


def kill_triggerer(airflow: Airflow, *, whole: bool) -> None:
    """Kill the triggerer, with what runs its triggers or before that ends by itself; start it."""
    process = airflow.processes["triggerer"]
    everybody = family(psutil.Process(process.pid))
    send(everybody if whole else everybody[:1], signal.SIGKILL)
    process.wait(10)
    psutil.wait_procs(everybody[1:], timeout=10)
    send(everybody, signal.SIGKILL)
    airflow.launch("triggerer")


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
        self.asked: Counter[str] = Counter()  # by round: how often its driver may be asked to end
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
        pause = self.dice.uniform(0.0, 3.0) if moment != "in a worker" else 0.0
        with contextlib.suppress(AssertionError):  # then at another moment
            wait_for(moment, moments[moment], within=6, every=0.05)
        time.sleep(pause)
        state = self.state(one)
        if state == "failed" and one.dag_id not in self._paused:
            self._clear_again(one)  # or nothing more would happen in this round
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
            raise AssertionError(f"{error}; its states were {said}") from None
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
            if timer.is_alive():
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
        return one.count("queries/*/checkpoint*/commits/[0-9]*") > 3

    # --- what people do -------------------------------------------------------------------------

    def clear(self, one: Round) -> str | None:
        """Clear the task, unless it has ended in a DAG that is paused: nothing would be seen."""
        if self.state(one) in ENDED and one.dag_id in self._paused:
            return None
        self.airflow.clear(one.dag_id, one.run_id, TASK)
        self.asked[one.run_id] += 1
        return "cleared"

    def mark_failed(self, one: Round) -> str | None:
        if self.state(one) in ENDED:
            return None
        self.airflow.mark(one.dag_id, one.run_id, TASK, "failed")
        self.asked[one.run_id] += 1
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
        still = {next(iter(timer.args)) for timer in self._waking if timer.is_alive()}
        able = [name for name in TRIGGERERS if name not in still]
        return self.dice.choice(able) if able else None

    def restart_scheduler(self, one: Round) -> str:
        self._restart("scheduler")
        return "restarted"

    def kill_scheduler(self, one: Round) -> str:
        self._kill("scheduler", whole=True)
        return "killed, with its workers"

    def kill_worker(self, one: Round) -> str | None:
        """Kill the process that runs a task, the one that looks after it, or both.

        A worker is busy for two seconds of a run, so there may have to be a clear to make it so.
        """
        if not self._busy_workers() and self.clear(one) is None:
            return None
        with contextlib.suppress(AssertionError):
            wait_for("a worker", self._busy_workers, within=15, every=0.05)
        time.sleep(self.dice.uniform(0.0, 2.0))
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
