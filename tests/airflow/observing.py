"""Watches jobs under disturbance: who is at work, and whether Airflow says what is so."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import psycopg2

from airflow_provider.runtime.api.storages import Storage
from airflow_provider.runtime.base.names import derive_run_id
from airflow_provider.runtime.jobdir.lease_records import HeartbeatRecord, LeaseRecord
from airflow_provider.runtime.jobdir.run_records import AttemptRecord
from airflow_provider.runtime.storage.open import open_storage

TASK = "job"
LAUNCHER = "airflow_provider.runtime.control.launcher"
LOOK_EVERY_S = 0.2


# --- a job of one DAG run -----------------------------------------------------------------------


class Round:
    """One DAG run: its job directory, and what is in it.

    Args:
        location: where the job directories of all DAG runs lie.
        number: its number.
        policy: what its task's ``on_kill`` is.
    """

    def __init__(self, location: Path, number: int, policy: str) -> None:
        self.policy = policy
        self.dag_id = f"chaotic_{policy}"
        self.run_id = f"round_{number:03}"
        self.folder = location / self.run_id
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
        exits = self.count("runs/*/submissions/*.end.json")
        submissions = self.count("runs/*/submissions/*.process.json")
        return submissions > max(exits, self.count("runs/*/attempts/*.json"))

    def is_draining(self) -> bool:
        return self.count("queries/*/drains/*.json") > 0


def processes_of(location: Path) -> dict[str, dict[str, list[int]]]:
    """Return the processes at work for the jobs under *location*: job, driver, what it is, PIDs.

    A driver is a launcher, the JVM of ``spark-submit``, and Python with the job in it.
    """
    found: dict[str, dict[str, list[int]]] = {}
    for pid in psutil.pids():
        try:
            raw = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        words = raw.decode(errors="replace").split("\0")
        if "--driver-id" not in words or str(location) not in raw.decode(errors="replace"):
            continue
        driver_id = words[words.index("--driver-id") + 1]
        job = next(
            word for word in words if word.startswith(str(location)) and word.endswith("/job")
        )
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
        location: where the job directories lie.
        database: Airflow's, as a URL of libpq.
        now: for the time of what it reports.
    """

    def __init__(self, location: Path, database: str, now: Callable[[], float]) -> None:
        super().__init__(name="observer", daemon=True)
        self._location = location
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
        processes = processes_of(self._location)
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
        working = [self._driver_at_work(storage, one, token) for token in reversed(tokens)]
        drivers = {*working} - {None}  # one may take several leases
        self.seen.at_work = max(self.seen.at_work, len(drivers))
        if len(drivers) > 1:
            self._say(f"{one.run_id}: drivers {drivers} are at work at once")

    def _driver_at_work(self, storage: Storage, one: Round, token: int) -> str | None:
        lease = LeaseRecord.read(storage, f"leases/{token}.json")
        beat = HeartbeatRecord.read(storage, f"heartbeats/{token}.json")
        if lease is None or (beat is not None and beat.released and not self._is_open(one, token)):
            return None
        return None if lease.owner.is_gone() else lease.driver_id

    def _is_open(self, one: Round, token: int) -> bool:
        """Tell whether the lease's driver has begun an attempt and not ended it."""
        run = open_storage(str(one.run))
        read = [AttemptRecord.read(run, f"attempts/{name}") for name in run.list("attempts")]
        return any(each is not None and each.token == token and not each.ended for each in read)
