"""Signs of life of the process that looks after a submitted driver: written, and watched."""

from __future__ import annotations

import dataclasses
import os
import shutil
import threading
import time
from typing import TYPE_CHECKING

import pytest

from airflow_provider.runtime.base.host import identify_this
from airflow_provider.runtime.control.submit import Action, reconcile, revoke_unstarted
from airflow_provider.runtime.control.submitted_process import SubmittedProcess
from airflow_provider.runtime.jobdir.submissions import ProcessRecord
from airflow_provider.runtime.observe.observer import START_TIMEOUT_S, RunWatcher
from airflow_provider.runtime.observe.state import RunState
from airflow_provider.runtime.testing.job_directories import (
    JobDirectoryBuilder,
    a_submission,
    an_attempt,
)
from tests.present import present

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def job(tmp_path) -> JobDirectoryBuilder:
    return JobDirectoryBuilder(tmp_path / "job").begin()


def record_of(job: JobDirectoryBuilder) -> ProcessRecord:
    return present(job.directory.run("r1").process_of("d1"))


def until(found: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_process_beats_until_its_driver_has_begun(job):
    """What it has recorded meanwhile stays in its record; then a driver's heartbeat tells."""
    run = job.directory.run("r1")
    process = SubmittedProcess(run, "d1")
    assert process.enter()
    assert (1, "") == (record_of(job).beat, record_of(job).waits_for)
    with process.beating(every_s=0.01):
        process.wait_for("a slot")
        assert "a slot" == record_of(job).waits_for
        until(lambda: record_of(job).beat > 3)
        process.started(os.getppid())
        at = record_of(job).beat
        until(lambda: record_of(job).beat > at + 2)
        assert [os.getpid(), os.getppid()] == [pid for pid, _ in record_of(job).identity.processes]
        assert "" == record_of(job).waits_for
        run.put_attempt(an_attempt(1, driver_id="d1", token=1))
        until(lambda: [each for each in threading.enumerate() if each.name == "beat"] == [])


def test_a_process_stops_beating_when_its_work_is_over(job):
    """No late beat follows the record of the driver's end."""
    process = SubmittedProcess(job.directory.run("r1"), "d1")
    assert process.enter()
    with process.beating(every_s=0.01):
        until(lambda: record_of(job).beat > 2)

    assert [] == [each for each in threading.enumerate() if each.name == "beat"]


def test_a_beat_makes_no_directory_where_none_is_mounted(job):
    """While the job directory is away nothing is written in its place."""
    process = SubmittedProcess(job.directory.run("r1"), "d1")
    assert process.enter()
    with process.beating(every_s=0.01):
        shutil.move(job.root, job.root.with_name("away"))
        time.sleep(0.1)

        assert not job.root.exists()


def test_a_revoked_process_does_not_enter(job):
    """The next try has found no process, and has submitted another driver."""
    run = job.directory.run("r1")
    run.put_submission(a_submission("d1"))
    assert revoke_unstarted(run)

    assert not SubmittedProcess(run, "d1").enter()
    assert record_of(job).is_revoked


# --- a process on another machine, which only its beats show ------------------------------------


def beating(
    job: JobDirectoryBuilder, beat: int, space: str = "boot/pid/time of another pod"
) -> None:
    """Put the record that the process which looks after the driver writes now and then."""
    identity = dataclasses.replace(identify_this(), space=space)
    record = ProcessRecord(identity=identity, beat=beat)
    record.put(job.directory.run("r1").storage, "submissions/d1.process.json")


@pytest.fixture
def elsewhere(job) -> JobDirectoryBuilder:
    """Return a job whose driver another container starts."""
    job.directory.run("r1").put_submission(a_submission("d1"))
    beating(job, 1)
    return job


def test_a_submitter_elsewhere_that_falls_silent_is_noticed_as_a_silent_driver_is(elsewhere, clock):
    """Within a lease's timeout, and not in the ten minutes that a driver has to come up."""
    watcher = RunWatcher(elsewhere.storage, "r1", clock)
    seen = []
    for second in range(0, 60, 5):
        clock.time = float(second)
        if second <= 20:
            beating(elsewhere, 1 + second)
        seen.append(watcher.assess().run_state)

    assert [*[RunState.STARTING] * 8, *[RunState.FAILED] * 4] == seen


def test_an_outage_is_no_silence_of_a_submitter(elsewhere, clock):
    """Of a gap between two looks half the timeout counts, in which the process can beat."""
    watcher = RunWatcher(elsewhere.storage, "r1", clock)
    watcher.assess()
    clock.time = 500.0
    after_gap = watcher.assess().run_state
    clock.time = 505.0
    beating(elsewhere, 2)
    beaten = watcher.assess().run_state
    clock.time = 524.0

    assert {RunState.STARTING} == {after_gap, beaten, watcher.assess().run_state}


@pytest.mark.parametrize("beat", [0, 7])
def test_only_a_submitter_that_beats_elsewhere_is_judged_by_its_silence(job, clock, beat):
    """Of this machine's processes the kernel tells; an older version's do not beat."""
    job.directory.run("r1").put_submission(a_submission("d1"))
    beating(job, beat, present(identify_this().space) if beat else "another pod's")
    watcher = RunWatcher(job.storage, "r1", clock)
    for second in range(0, int(START_TIMEOUT_S), 5):
        clock.time = float(second)
        assert RunState.STARTING is watcher.assess().run_state


def test_settling_on_a_submission_elsewhere_takes_a_beat_or_the_timeout(elsewhere, clock):
    """So the next try adopts a driver that comes up, or submits another, and is not used up."""

    def beat() -> None:
        if clock.time > 4:
            beating(elsewhere, 2)

    clock.during_sleep = beat
    snapshot, living = RunWatcher(elsewhere.storage, "r1", clock).settle()
    after_beat, clock.during_sleep = clock.time, None
    silent, dead = RunWatcher(elsewhere.storage, "r1", clock).settle()

    assert (RunState.STARTING, Action.ADOPT) == (
        living.run_state,
        reconcile(snapshot, living).action,
    )
    assert 4 < after_beat < 6
    assert (RunState.FAILED, Action.SUBMIT) == (dead.run_state, reconcile(silent, dead).action)
    assert 20 <= clock.time - after_beat < 22
