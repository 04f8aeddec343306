"""Watching a run from outside: one look, one verdict."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider.runtime.base.host import identify, identify_this
from airflow_provider.runtime.errors import CheckpointError
from airflow_provider.runtime.failures.messages import KILLED_REMEDY, MAKE_ROOM
from airflow_provider.runtime.jobdir.layout import RunDirectory
from airflow_provider.runtime.jobdir.lease import Liveness
from airflow_provider.runtime.jobdir.run_records import CANCELLED, FAILED
from airflow_provider.runtime.jobdir.submissions import ProcessRecord
from airflow_provider.runtime.observe.endings import DISK_FULL, KILLED, Remains
from airflow_provider.runtime.observe.observer import LIFE_S, START_TIMEOUT_S, RunWatcher
from airflow_provider.runtime.observe.snapshot import RunSnapshot
from airflow_provider.runtime.observe.state import Assessment, RunState, assess
from airflow_provider.runtime.testing.job_directories import (
    JobDirectoryBuilder,
    a_final,
    a_progress,
    a_run,
    a_submission,
    an_attempt,
    an_exit,
)
from tests.present import present
from tests.unit.support import a_lease, take_lease

NOTHING = RunSnapshot("r1")
BROKEN = {
    "failure_class": "DATA_MISSING",
    "query": "daily",
    "condition": "FAILED_READ_FILE",
    "reason": "no such file",
}
FULL_SCREEN = (
    "spark-stream: error: /jobs/a/x.json: No space left on device",
    "  where: query 'daily', batch 4, on worker-7",
    "  what to do: make room on that disk",
    "  exit code 3: ENVIRONMENT, the same command resumes; what was committed stays",
)
TABLE: dict[str, tuple[dict[str, Any], RunState]] = {
    "nothing": ({}, RunState.ABSENT),
    "a final checkpoint": ({"final": a_final()}, RunState.FINISHED),
    "a final checkpoint, its driver still closing": (
        {"final": a_final(), "lease": a_lease(), "liveness": Liveness.LIVE},
        RunState.FINISHED,
    ),
    "a final checkpoint, and a later run at work": (
        {"final": a_final(), "lease": a_lease("r2"), "liveness": Liveness.LIVE},
        RunState.FINISHED,
    ),
    "a live driver": ({"lease": a_lease(), "liveness": Liveness.LIVE}, RunState.RUNNING),
    "a driver that may live": (
        {"lease": a_lease(), "liveness": Liveness.UNKNOWN},
        RunState.RUNNING,
    ),
    "a live driver, whose submitter has ended": (
        {
            "lease": a_lease(),
            "liveness": Liveness.LIVE,
            "submission": a_submission(),
            "exit": an_exit(0),
        },
        RunState.RUNNING,
    ),
    "another run's live driver": (
        {"lease": a_lease("r2"), "liveness": Liveness.LIVE},
        RunState.FOREIGN,
    ),
    "another run's driver that may live": (
        {"lease": a_lease("r2"), "liveness": Liveness.UNKNOWN, "submission": a_submission()},
        RunState.FOREIGN,
    ),
    "another run's dead driver": (
        {"lease": a_lease("r2"), "liveness": Liveness.DEAD},
        RunState.ABSENT,
    ),
    "a dead driver of a person's command": (
        {"lease": a_lease(), "liveness": Liveness.DEAD},
        RunState.ABSENT,
    ),
    "submitted, nothing seen yet": ({"submission": a_submission()}, RunState.STARTING),
    "submitted after another driver's end": (
        {
            "submission": a_submission("d2"),
            "lease": a_lease(driver_id="d1"),
            "liveness": Liveness.FREE,
        },
        RunState.STARTING,
    ),
    "the submitted driver is dead": (
        {"submission": a_submission(), "lease": a_lease(), "liveness": Liveness.DEAD},
        RunState.FAILED,
    ),
    "the submitted driver let go": (
        {"submission": a_submission(), "lease": a_lease(), "liveness": Liveness.FREE},
        RunState.FAILED,
    ),
    "the submitter's process is gone": (
        {"submission": a_submission(), "submission_gone": True},
        RunState.FAILED,
    ),
    "the driver has ended with 0 and no final checkpoint": (
        {"submission": a_submission(), "exit": an_exit(0)},
        RunState.FAILED,
    ),
    "the driver has ended with 3": (
        {"submission": a_submission(), "exit": an_exit(3)},
        RunState.FAILED,
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_a_view_has_one_verdict(case):
    """What one look shows comes to one verdict."""
    seen, run_state = TABLE[case]

    assert run_state is assess(dataclasses.replace(NOTHING, **seen)).run_state


@pytest.mark.parametrize(
    ("exit_code", "fatal"),
    [
        (0, False),
        (1, False),
        (2, True),
        (3, False),
        (4, True),
        (5, False),
        (137, False),
        (-9, False),
    ],
)
def test_an_exit_code_says_whether_a_retry_can_help(exit_code, fatal):
    """Bad usage and a failure for good are fatal, anything else is worth another attempt."""
    view = dataclasses.replace(NOTHING, submission=a_submission(), exit=an_exit(exit_code))

    assert fatal is assess(view).fatal


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (
            {"exit": an_exit(0)},
            "RECOVERABLE: the driver ended with exit code 0 and left no final checkpoint (before its "
            "first attempt)",
        ),
        (
            {"exit": an_exit(2, "log", "spark-stream: error: no such file", "  ")},
            "NON_RECOVERABLE: no such file (before its first attempt, exit code 2)",
        ),
        (
            {"submission_gone": True, "host": "worker-7"},
            f"ENVIRONMENT: on worker-7: {KILLED}; {KILLED_REMEDY} (before its first attempt on "
            "worker-7)",
        ),
        (
            {
                "exit": an_exit(-9, "Killed"),
                "attempt": an_attempt(2),
                "remains": Remains({"daily": 13}),
            },
            "ENVIRONMENT: query 'daily', batch 13, on worker-7: the driver was killed by SIGKILL "
            f"(exit code -9) (Killed); {KILLED_REMEDY} (attempt 2 on worker-7)",
        ),
        (
            {"submission_gone": True, "attempt": an_attempt(), "remains": Remains({}, "/jobs/a")},
            f"ENVIRONMENT: on worker-7: /jobs/a: {DISK_FULL}; {MAKE_ROOM} (attempt 1 on worker-7)",
        ),
        (
            {"exit": an_exit(3, *FULL_SCREEN), "host": "worker-7"},
            "ENVIRONMENT: query 'daily', batch 4, on worker-7: /jobs/a/x.json: No space left on "
            f"device; {MAKE_ROOM} (before its first attempt on worker-7, exit code 3)",
        ),
        (
            {"exit": an_exit(3), "attempt": an_attempt(2, outcome=FAILED, failure=BROKEN)},
            "DATA_MISSING: query 'daily': FAILED_READ_FILE: no such file (attempt 2 on worker-7)",
        ),
        (
            {
                "exit": an_exit(3),
                "attempt": an_attempt(outcome=FAILED, failure={**BROKEN, "query": None}),
            },
            "DATA_MISSING: FAILED_READ_FILE: no such file (attempt 1 on worker-7)",
        ),
        (
            {"exit": an_exit(3), "attempt": an_attempt(2, outcome=CANCELLED)},
            "attempt 2 was cancelled",
        ),
        (
            {"exit": an_exit(1), "attempt": an_attempt(1, driver_id="earlier", failure=BROKEN)},
            "ENVIRONMENT: the driver ended with exit code 1 (before its first attempt)",
        ),
        (
            {"exit": an_exit(5)},
            "another driver held the lease: RECOVERABLE: the driver ended with exit code 5 (before "
            "its first attempt)",
        ),
        (
            {"submission_gone": True, "attempt": an_attempt(outcome=FAILED, failure=BROKEN)},
            "DATA_MISSING: query 'daily': FAILED_READ_FILE: no such file (attempt 1 on worker-7)",
        ),
    ],
)
def test_a_failure_says_why(seen, reason):
    """The reason is what the driver recorded, else how its process ended, else that it died."""
    view = dataclasses.replace(NOTHING, submission=a_submission(), **seen)

    assert reason == assess(view).reason


def test_another_runs_driver_is_named():
    """A job that is busy says with which run, where, and what can be done."""
    view = dataclasses.replace(NOTHING, lease=a_lease("nightly"), liveness=Liveness.LIVE)
    reason = assess(view).reason

    assert reason.startswith("run 'nightly' is running this job (lease 3, on worker-7); wait")


# --- on a job directory -------------------------------------------------------------------------


@pytest.fixture
def job(tmp_path) -> JobDirectoryBuilder:
    return JobDirectoryBuilder(tmp_path / "job").begin()


def test_a_run_from_submission_to_its_end(job, clock):
    """One watcher sees a run absent, starting, running and done, by its documents alone."""
    watcher = RunWatcher(job.storage, "r1", clock)
    run = job.directory.run("r1")
    run_states = [watcher.assess().run_state]

    run.put_submission(a_submission("d1"))
    run_states.append(watcher.assess().run_state)

    lease = take_lease(job.storage, clock, run_id="r1", driver_id="d1")
    run_states.append(watcher.assess().run_state)

    job.ran(0)
    run.put_attempt(an_attempt())
    run.put_record(a_run())
    run.put_final(a_final())
    run_states.append(watcher.assess().run_state)
    lease.release()
    run_states.append(watcher.assess().run_state)

    assert [
        RunState.ABSENT,
        RunState.STARTING,
        RunState.RUNNING,
        RunState.FINISHED,
        RunState.FINISHED,
    ] == run_states
    assert a_final() == watcher.verified_final()


def test_a_look_gathers_what_there_is(job, clock):
    """A view holds the last attempt, the last submission, its exit and the progress."""
    run = job.directory.run("r1")
    for number in (1, 2):
        run.put_attempt(an_attempt(number, driver_id=f"d{number}"))
        run.put_submission(a_submission(f"d{number}", submitted=f"2026-01-0{number}T00:00:00Z"))
    run.put_end("d2", an_exit(3))
    a_progress().put(run.storage, "progress.json")
    view = RunWatcher(job.storage, "r1", clock).poll()

    assert 2 == present(view.attempt).attempt
    assert "d2" == present(view.submission).driver_id
    assert an_exit(3) == view.exit
    assert a_progress() == view.progress
    assert not view.submission_gone


def test_a_watcher_keeps_to_its_own_submission(job, clock):
    """A watcher of one submission is not misled by a later one."""
    run = job.directory.run("r1")
    run.put_submission(a_submission("d1"))
    run.put_end("d1", an_exit(3))
    run.put_submission(a_submission("d2", submitted="2026-02-01T00:00:00Z"))

    assert RunState.FAILED is RunWatcher(job.storage, "r1", clock, "d1").assess().run_state
    assert RunState.STARTING is RunWatcher(job.storage, "r1", clock, "d2").assess().run_state
    assert RunState.STARTING is RunWatcher(job.storage, "r1", clock).assess().run_state


def test_a_submitter_that_died_is_noticed(job, clock):
    """
    When the process that looked after the driver is gone before the driver came up, it failed.
    """
    run = job.directory.run("r1")
    run.put_submission(a_submission("d1"))
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    record = ProcessRecord(identity=identify([child.pid]))
    record.put(run.storage, "submissions/d1.process.json")
    watcher = RunWatcher(job.storage, "r1", clock)
    before = watcher.assess().run_state
    child.kill()
    child.communicate()

    assert [RunState.STARTING, RunState.FAILED] == [before, watcher.assess().run_state]


def test_a_driver_that_never_comes_up_has_failed(job, clock):
    """A submission that stays silent for the start timeout is a failure worth a retry."""
    run = job.directory.run("r1")
    run.put_submission(a_submission("d1"))
    record = ProcessRecord(identity=identify_this())
    record.put(run.storage, "submissions/d1.process.json")
    watcher = RunWatcher(job.storage, "r1", clock)
    clock.time = START_TIMEOUT_S
    assert RunState.STARTING is watcher.assess().run_state

    clock.time = START_TIMEOUT_S + 1
    assessment = watcher.assess()

    assert RunState.FAILED is assessment.run_state
    assert not assessment.fatal
    assert "has not taken the lease in 601 seconds" in assessment.reason


def test_a_submitter_that_never_comes_up_has_failed_sooner(job, clock):
    """A submission whose own process does not appear is given a minute and not ten."""
    job.directory.run("r1").put_submission(a_submission("d1"))
    watcher = RunWatcher(job.storage, "r1", clock)
    clock.time = 60.0
    assert RunState.STARTING is watcher.assess().run_state

    clock.time = 61.0
    assert RunState.FAILED is watcher.assess().run_state


def test_settling_waits_until_it_is_known(job, clock):
    """A watcher that settles learns from a moving heartbeat that the driver lives."""
    lease = take_lease(job.storage, clock, run_id="r1")
    clock.during_sleep = lease.beat
    _, assessment = RunWatcher(job.storage, "r1", clock).settle()
    lease.release()

    assert Assessment(RunState.RUNNING) == assessment
    assert 0 < clock.time < 1


def test_settling_on_a_silent_driver_takes_its_timeout(job, clock):
    """A driver that fell silent is known to be dead after one timeout."""
    lease = take_lease(job.storage, clock, run_id="r1", timeout_s=20.0)
    view, assessment = RunWatcher(job.storage, "r1", clock).settle()
    lease.release()

    assert Liveness.DEAD is view.liveness
    assert RunState.ABSENT is assessment.run_state
    assert 20 <= clock.time < 21


def test_a_final_checkpoint_is_verified_for_the_watcher(job, clock):
    """A final checkpoint that says what is not so is an error and not a success."""
    watcher = RunWatcher(job.storage, "r1", clock)
    assert watcher.verified_final() is None

    job.ran(0, published=False)
    job.directory.run("r1").put_final(a_final())

    with pytest.raises(CheckpointError):
        watcher.verified_final()


# --- what a look costs ----------------------------------------------------------------------------


class Counted:
    """A storage that counts what is asked of it."""

    def __init__(self, storage, asked=None):
        self._storage = storage
        self.asked = Counter() if asked is None else asked
        self.url = storage.url

    def at(self, path):
        return Counted(self._storage.at(path), self.asked)

    def read(self, path):
        self.asked["read"] += 1
        return self._storage.read(path)

    def read_small(self, path, *, at_most_bytes):
        self.asked["read"] += 1
        return self._storage.read_small(path, at_most_bytes=at_most_bytes)

    def list(self, path):
        self.asked["list"] += 1
        return self._storage.list(path)

    def exists(self, path):
        self.asked["list"] += 1  # in a bucket it is one
        return self._storage.exists(path)


@pytest.fixture
def driven(job, clock):
    """A job with a driver at work, and a watcher that knows it, on a counted storage."""
    run = job.directory.run("r1")
    run.put_submission(a_submission("d1"))
    lease = take_lease(job.storage, clock, run_id="r1", driver_id="d1")
    run.put_attempt(an_attempt())
    storage: Any = Counted(job.storage)
    watcher = RunWatcher(storage, "r1", clock)
    while True:
        watcher.assess_snapshot(view := watcher.poll())
        if view.liveness is Liveness.LIVE:
            break
        lease.beat()
    storage.asked.clear()
    yield SimpleNamespace(lease=lease, watcher=watcher, asked=storage.asked, run=run)
    lease.release()


def test_a_driver_at_work_costs_one_read_a_look(driven, clock):
    """
    In a minute of looks, one a second, each reads one document, and each fifth the lease and its
    beat as well; nothing is listed, which in a bucket would cost a dozen times a read.
    """
    for _ in range(60):
        clock.time += 1.0
        driven.lease.beat()
        assert Assessment(RunState.RUNNING) == driven.watcher.assess()

    assert {"read": 60 + 2 * 12} == driven.asked


def test_the_final_checkpoint_is_seen_at_the_next_look(driven):
    """However recently the driver's life was seen to."""
    assert RunState.RUNNING is driven.watcher.assess().run_state
    driven.run.put_final(a_final())

    assert RunState.FINISHED is driven.watcher.assess().run_state


@pytest.mark.parametrize("end", ["released", "silent", "taken over"])
def test_the_end_of_a_driver_without_a_final_checkpoint_is_noticed(driven, job, clock, end):
    """
    One that gave its lease up, or lost it, is noticed when its life is seen to next; one that fell
    silent a lease's timeout after its last beat.
    """
    if end != "silent":
        driven.lease.release()
    other = None
    if end == "taken over":
        other = take_lease(job.storage, clock, run_id="r2", driver_id="d2")
    began = clock.time
    while driven.watcher.assess().run_state is RunState.RUNNING:
        clock.time += 1.0
    took = clock.time - began
    after = driven.watcher.assess().run_state
    if other is not None:
        other.release()

    expected = RunState.FOREIGN if end == "taken over" else RunState.KILLED
    assert expected is after
    assert took <= (20 + LIFE_S if end == "silent" else LIFE_S)


def test_a_driver_that_was_replaced_by_one_of_the_same_run_is_waited_for(driven, job, clock):
    """The next attempt's driver is found by the number of its lease."""
    driven.lease.release()
    clock.time += LIFE_S
    second = take_lease(job.storage, clock, run_id="r1", driver_id="d2")
    judged = []
    for _ in range(3):
        clock.time += LIFE_S
        second.beat()
        judged.append(driven.watcher.assess().run_state)
    second.release()

    assert [RunState.RUNNING] * 3 == judged


def test_a_job_directory_that_was_removed_has_nobody_at_work(driven, job, clock):
    """What was seen before it was removed is not taken for what is there."""
    shutil.rmtree(job.root)
    clock.time += LIFE_S

    assert RunState.ABSENT is driven.watcher.assess().run_state


def test_the_last_attempt_is_the_one_with_the_highest_number(job):
    """The tenth comes after the ninth, and no other is read."""
    run = job.directory.run("r1")
    assert run.last_attempt() is None
    for number in range(1, 11):
        run.put_attempt(an_attempt(number))
    storage: Any = Counted(run.storage)

    assert 10 == present(RunDirectory(storage, "r1").last_attempt()).attempt
    assert {"list": 1, "read": 1} == storage.asked
