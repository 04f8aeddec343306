"""An upgrade without Spark: real leases, records and processes, versions that publish numbered rows.

``python -m tests.crash.small_upgrade`` forks what it is asked for: each process imports nothing. The
old version has published three rows, and either version goes on to the eighth. A row is a file in
``out``, named by its number and its version, so that a row that is doubled has two files.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from airflow_provider.extensions.upgrades.upgrade_steps import UpgradeSteps
from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.base.host import identify_this
from airflow_provider.runtime.errors import ConfigError, SparkStreamError, StopError
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.lease import Lease, acquire_lease
from airflow_provider.runtime.jobdir.preconditions import check_preconditions
from airflow_provider.runtime.jobdir.run_records import JobRecord
from airflow_provider.runtime.jobdir.upgrade_record import rejection_of
from airflow_provider.runtime.savepoints.rewind import put_rewound
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.testing.job_directories import a_run, identified

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.jobdir.run_records import FinalCheckpoint

TIMEOUT_S = 1.0
BEAT_S = 0.1
BEFORE, ALL = 3, 8
OLD, NEW = "old", "new"


class World:
    """Both versions' directories, and what they have published.

    Args:
        storage: where they lie.
    """

    def __init__(self, storage: Storage) -> None:
        self.old = JobDirectory(storage.at(OLD))
        self.new = JobDirectory(storage.at(NEW))
        self.out = storage.at("out")

    def begin(self) -> World:
        """Let the old version publish its first rows, and end."""
        identified(self.old.storage)
        self.old.put_job(JobRecord(name="job", created="now"))
        self.old.run("r1").put_record(a_run("r1"))
        for row in range(BEFORE):
            self.out.put(f"{row}.{OLD}", b"")
        return self

    def rows(self) -> list[int]:
        """Return the numbers of the rows that are published, sorted."""
        return sorted(int(name.partition(".")[0]) for name in self.out.list(""))

    def steps(self) -> list[str]:
        """Return the steps that were put, in their order; one that was taken over comes again."""
        names = [name for name in self.old.storage.list("upgrades") if name.endswith(".json")]
        ordered = sorted(names, key=lambda name: int(name.removesuffix(".json")))
        return [json.loads(self.old.storage.read(f"upgrades/{name}"))["step"] for name in ordered]


class SmallUpgrade(UpgradeSteps):
    """An upgrade of a world.

    Args:
        world: the world.
        is_good: what it thinks of the new version.
        clock: time.
        at_once: makes a block one step, between which and the next one others may act.
    """

    def __init__(
        self,
        world: World,
        *,
        is_good: bool,
        clock: Clock,
        heartbeat_s: float = BEAT_S,
        at_once: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        super().__init__(
            world.old,
            world.new,
            "jobs.py:new",
            driver_id=None,
            clock=clock,
            heartbeat_s=heartbeat_s,
            timeout_s=TIMEOUT_S,
        )
        self._world = world
        self._is_good = is_good
        self._beat_s = heartbeat_s
        self._at_once = at_once

    def run(self) -> None:
        """Upgrade, and drive the old version if the new one is rejected."""
        if self.decide() is None:
            with self._leased(self._world.old) as lease:
                check_preconditions(self._world.old, "after")
                self._publish(OLD, lease, range(BEFORE, ALL))
            raise StopError(rejection_of(self.record))

    def check(self) -> None:
        """Accept what is declared."""

    def stop_old(self) -> str:
        """Save how far the old version is, under its lease."""
        with self._leased(self._world.old):
            self._world.old.storage.put_if_absent("savepoint", b"")
        return f"{self._world.old.url}/savepoint"

    def drive_new(self) -> FinalCheckpoint | str:
        """Publish two rows, decide, and publish the others."""
        with self._leased(self._world.new) as lease:
            try:
                check_preconditions(self._world.new, self._id)
            except ConfigError as error:
                return str(error)
            self._world.new.run(self._id).put_record(a_run(self._id))
            self._publish(NEW, lease, range(BEFORE, BEFORE + 2))
            if not self.has_accepted() and not self._is_good:
                return "it is bad"
            if not self.has_accepted():
                self.accept()
            self._publish(NEW, lease, range(BEFORE + 2, ALL))
        return _FINAL

    def revert_new(self) -> None:
        """Remove the new version's rows; no later driver publishes any."""
        with self._leased(self._world.new) as lease:
            put_rewound(self._world.new, self._id, lease, self._clock, by="an upgrade")
            for name in self._world.out.list(""):
                if name.endswith(NEW):
                    with self._at_once():
                        lease.check()
                        self._world.out.delete(name)

    def _publish(self, version: str, lease: Lease, rows: range) -> None:
        for row in rows:
            with self._at_once():  # as a sink's commit, which a late one does not repeat
                lease.check()
                self._world.out.put(f"{row}.{version}", b"")

    @contextlib.contextmanager
    def _leased(self, directory: JobDirectory) -> Iterator[Lease]:
        lease = acquire_lease(
            directory.storage,
            run_id=self._id,
            driver_id=self._driver_id,
            owner=identify_this(),
            clock=self._clock,
            timeout_s=TIMEOUT_S,
            heartbeat_s=self._beat_s,
        )
        with lease:
            yield lease


_FINAL = cast("FinalCheckpoint", object())  # of which an upgrade says only that there is one


def act(root: str, armed: str, *, is_good: bool) -> int:
    """Be the process of an upgrade: its exit code, and its one line of an error."""
    os.environ["SPARK_STREAM_FAILPOINT"] = armed
    try:
        SmallUpgrade(World(LocalStorage(root)), is_good=is_good, clock=SystemClock()).run()
    except SparkStreamError as error:
        print("error:", error, file=sys.stderr)
        return error.exit_code
    return 0


def serve() -> None:
    """Start processes, and tell how they end or that they have stopped; at the end kill the others.

    A test that fails lets nobody go on whom it has stopped.
    """
    alive: set[int] = set()
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        if "pid" in asked:
            pid, status = os.waitpid(asked["pid"], os.WUNTRACED)
            stopped = os.WIFSTOPPED(status)
            if not stopped:
                alive.discard(pid)
            print(None if stopped else os.waitstatus_to_exitcode(status), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            with Path(asked.pop("log")).open("w") as log:
                os.dup2(log.fileno(), 2)
            os._exit(act(**asked))
        alive.add(pid)
        print(pid, flush=True)
    for pid in alive:  # not reaped, so the number is still theirs
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    serve()
