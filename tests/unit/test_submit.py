"""Submission that dies on the way, on either side: the next try finds the driver, or revokes it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest

from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.base.host import ProcessIdentity
from airflow_provider.runtime.control.submit import (
    Action,
    reconcile,
    revoke_unstarted,
    submit_driver,
)
from airflow_provider.runtime.control.submitted_process import SubmittedProcess
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.run_spec import RunSpec
from airflow_provider.runtime.jobdir.submissions import SubmissionRecord
from airflow_provider.runtime.observe.observer import RunWatcher
from airflow_provider.runtime.observe.state import RunState
from airflow_provider.runtime.storage.local import LocalStorage

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SUBMITTER = """
import os, sys
from pathlib import Path
from tests.unit.test_submit import submit
submit(Path(sys.argv[1]), sys.argv[2])
"""
CRASHED = 137


def submit(root: Path, driver_id: str, environment: Mapping[str, str] = os.environ) -> None:
    """Do what a task's process does."""
    run = JobDirectory(LocalStorage(str(root))).run("r1")
    record = SubmissionRecord(
        driver_id=driver_id,
        run_id="r1",
        submitted="2026-01-01T00:00:00.000Z",
        log=None,
        number=run.submission_count() + 1,
    )
    command = [sys.executable, "-m", "tests.unit.small_driver", str(root), "r1", driver_id]
    log = root.parent / f"{driver_id}.log"
    spec = RunSpec(job_dir=str(root), entry="jobs:none", run_id="r1", driver_id=driver_id)
    submit_driver(
        run,
        spec.inside(record),
        job_dir=str(root),
        log=log,
        command=command,
        environment=environment,
    )


class Tries:
    """The tries of one task, each a process of its own, and what they have started."""

    def __init__(self, tmp_path: Path) -> None:
        self.root = tmp_path / "job"
        self.end = tmp_path / "end"
        self.published = tmp_path / "published"
        self.directory = JobDirectory(LocalStorage(str(self.root)))
        self.run = self.directory.run("r1")
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self.environment = {
            **os.environ,
            "PYTHONPATH": path,
            "END": str(self.end),
            "PUBLISHED": str(self.published),
        }
        self._identities: list[ProcessIdentity] = []

    def submit(self, failpoint: str) -> tuple[str, subprocess.Popen[bytes]]:
        """Let a process submit a driver; *failpoint* is where it, or the launcher, dies."""
        driver_id = uuid.uuid4().hex
        armed = {"SPARK_STREAM_FAILPOINT": failpoint}
        process = subprocess.Popen(
            [sys.executable, "-c", SUBMITTER, str(self.root), driver_id],
            env={**self.environment, **armed},
        )
        return driver_id, process

    def next_try(self) -> tuple[Action, str]:
        """Do what ``execute()`` does, and return it with the driver that is waited for."""
        while True:
            watcher = RunWatcher(self.directory.storage, "r1", SystemClock())
            view, assessment = watcher.settle()
            decision = reconcile(view, assessment)
            if decision.action is not Action.SUBMIT:
                return decision.action, str(decision.driver_id)
            if revoke_unstarted(self.run):
                driver_id = uuid.uuid4().hex
                submit(self.root, driver_id, self.environment)
                return decision.action, driver_id

    def await_driver(self) -> str:
        """Return the driver that has come to work."""
        self.await_that(lambda: self.published.exists() and "\n" in self.published.read_text())
        return self.published.read_text().split("\n")[0].split()[1]

    def await_that(self, what, seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def identity(self, driver_id: str) -> ProcessIdentity | None:
        record = self.run.process_of(driver_id)
        return record.identity if record else None

    def workers(self) -> set[str]:
        """Return the drivers that have ever done anything."""
        return {line.split()[1] for line in self.published.read_text().splitlines()}

    def stop(self) -> None:
        self.end.touch()
        for record in self.run.submissions():
            identity = self.identity(record.driver_id)
            if identity is not None and identity.processes:
                with contextlib.suppress(AssertionError):
                    self.await_that(identity.is_gone, seconds=10)
                if not identity.is_gone():
                    for pid, _ in identity.processes:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def tries(tmp_path):
    started = Tries(tmp_path)
    yield started
    started.stop()


def test_a_submitter_that_dies_after_its_intent_is_revoked(tries):
    """
    Killed between the intent and the process, the submitter has started nobody: the next try submits.
    """
    lost, process = tries.submit("submission.intended")
    assert CRASHED == process.wait(30)

    action, driver_id = tries.next_try()

    assert Action.SUBMIT is action
    assert lost != driver_id == tries.await_driver()
    assert tries.run.process_of(lost).is_revoked
    assert [lost, driver_id] == [r.driver_id for r in tries.run.submissions()]
    assert {driver_id} == tries.workers()


def test_a_submitter_that_dies_before_it_is_told_is_found_again(tries):
    """
    Killed right after the process was started, the submitter knows nothing of its driver; the next try
    adopts it, or revokes it before it begins, and one driver works.
    """
    lost, process = tries.submit("submission.launched")
    assert CRASHED == process.wait(30)

    action, driver_id = tries.next_try()

    assert (Action.ADOPT if driver_id == lost else Action.SUBMIT) is action
    assert driver_id == tries.await_driver()
    assert {driver_id} == tries.workers()
    assert tries.run.process_of(lost).is_revoked == (driver_id != lost)


def test_a_driver_that_came_up_without_its_submitter_is_adopted(tries):
    """
    A submitter that died after the launcher had come up is followed by a try that submits nobody.
    """
    first, process = tries.submit("submission.launched")
    process.wait(30)
    tries.await_that(lambda: tries.run.process_of(first) is not None)

    assert (Action.ADOPT, first) == tries.next_try()
    assert first == tries.await_driver()
    assert [first] == [r.driver_id for r in tries.run.submissions()]


@pytest.mark.parametrize("point", ["submission.entered", "submission.started"])
def test_a_launcher_that_dies_has_started_a_driver_or_not(tries, point):
    """
    A launcher killed before it has started the driver is followed by another submission; one killed
    after that leaves a driver, which is adopted though nobody looks after it.
    """
    first, process = tries.submit(point)
    assert 0 == process.wait(30)
    tries.await_that(lambda: tries.identity(first) is not None)
    identity = tries.identity(first)
    launcher = dataclasses.replace(identity, processes=identity.processes[:1])
    tries.await_that(launcher.is_gone)

    action, driver_id = tries.next_try()

    has_started = point == "submission.started"
    assert (Action.ADOPT if has_started else Action.SUBMIT) is action
    assert has_started == (first == driver_id)
    assert driver_id == tries.await_driver()
    assert {driver_id} == tries.workers()


def test_a_submitter_that_was_stopped_for_long_starts_nobody(tries):
    """
    A worker paused after its intent, and given up meanwhile, wakes up too late to start a driver.
    """
    paused, process = tries.submit("submission.intended!stop")
    tries.await_that(lambda: tries.run.submission_count() == 1)

    def is_stopped() -> bool:
        return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    tries.await_that(is_stopped)
    action, driver_id = tries.next_try()
    assert Action.SUBMIT is action
    assert driver_id == tries.await_driver()
    process.send_signal(signal.SIGCONT)
    assert 0 == process.wait(30)
    tries.await_that(lambda: not _launchers_of(paused))

    watcher = RunWatcher(tries.directory.storage, "r1", SystemClock(), paused)
    assert RunState.RUNNING is watcher.assess().run_state  # of the driver that is there
    assert {driver_id} == tries.workers()
    assert tries.run.exit_of(paused) is None


def _launchers_of(driver_id: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if driver_id.encode() in path.read_bytes() and b"launcher" in path.read_bytes():
                found.append(path.parent.name)
    return found


def test_one_of_an_intents_two_ends_wins(tries):
    """An intent is acted on or revoked, never both, and a second revocation is the first one."""
    for driver_id in ("d1", "d2"):
        tries.run.put_submission(
            SubmissionRecord(driver_id=driver_id, run_id="r1", submitted="", log=None)
        )
    assert SubmittedProcess(tries.run, "d1", beats=False).enter()
    assert revoke_unstarted(tries.run)

    assert not SubmittedProcess(tries.run, "d2", beats=False).enter()
    assert not tries.run.process_of("d1").is_revoked
    assert [] == tries.run.unstarted()
    tries.run.storage.delete("submissions")  # this process is no driver


def test_submissions_are_in_their_own_order(tries):
    """A worker whose clock is a day ahead has not submitted the last driver for ever."""
    for number, submitted in enumerate(("2026-01-03", "2026-01-01", "2026-01-02"), start=1):
        record = SubmissionRecord(
            driver_id=f"d{4 - number}", run_id="r1", submitted=submitted, log=None, number=number
        )
        tries.run.put_submission(record)

    assert ["d3", "d2", "d1"] == [r.driver_id for r in tries.run.submissions()]
