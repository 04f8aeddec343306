"""Takeover of a lease: what each side measures, and how it treats an outage."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.base.host import identify_this
from airflow_provider.runtime.base.retry import RetryBudget
from airflow_provider.runtime.driver.lifecycle.events import CancelRequested, JobPhase
from airflow_provider.runtime.driver.stop_requests import StopRequestHandler
from airflow_provider.runtime.errors import LeaseLostError
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.lease import LeaseObserver, Liveness, acquire_lease
from airflow_provider.runtime.jobdir.requests import put_cancel, read_reply
from airflow_provider.runtime.observe.observer import RunWatcher
from airflow_provider.runtime.observe.state import RunState
from airflow_provider.runtime.testing.job_directories import a_submission
from tests.present import present
from tests.unit.small_driver import TIMEOUT_S as SHORT_S
from tests.unit.support import ELSEWHERE, FakeClock, take_lease

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 20.0
AWAY = OSError(5, "not now")


class FailingStorage:
    """A storage that can be away, for all or for writers, and take its time to answer."""

    def __init__(self, inner) -> None:
        self._inner = inner
        self.is_away = False
        self.refuses_writes = False
        self.before_answer = lambda: None
        self.url = inner.url

    def at(self, path):
        return self._inner.at(path)

    def _do(self, what, *arguments, writes=False):
        if self.is_away or (writes and self.refuses_writes):
            raise AWAY
        answer = getattr(self._inner, what)(*arguments)
        self.before_answer()
        return answer

    def list(self, path):
        return self._do("list", path)

    def read(self, path):
        return self._do("read", path)

    def read_small(self, path, *, at_most_bytes):
        del at_most_bytes
        return self._do("read", path)

    def exists(self, path):
        return self._do("exists", path)

    def put(self, path, data):
        return self._do("put", path, data, writes=True)

    def put_if_absent(self, path, data):
        return self._do("put_if_absent", path, data, writes=True)


@pytest.fixture
def failing(storage) -> FailingStorage:
    return FailingStorage(storage)


@pytest.fixture
def held(storage):
    """A lease held on another machine, whose heartbeat moves only when it is told to."""
    lease = take_lease(storage, FakeClock(), owner=ELSEWHERE, timeout_s=TIMEOUT_S)
    yield lease
    lease.release()


# --- what an observer makes of silence ----------------------------------------------------------


@pytest.mark.parametrize("hours", [-24, 24])
def test_a_clock_that_is_a_day_off_takes_nothing_over(storage, hours):
    """
    A holder that beats is alive, and one that does not is dead after its timeout and not before,
    whatever the observer's wall clock says and however it jumps meanwhile.
    """
    theirs = FakeClock()
    lease = take_lease(storage, theirs, owner=ELSEWHERE, timeout_s=TIMEOUT_S)
    ours = FakeClock(theirs.wall + dt.timedelta(hours=hours))
    observer = LeaseObserver(storage, ours)
    seen = []
    for second in range(60):
        ours.time = float(second)
        ours.wall += dt.timedelta(hours=(-1) ** second * 48)
        theirs.wall += dt.timedelta(hours=(-1) ** second * 24)
        if second <= 30:
            lease.beat()
        seen.append(observer.look()[1])
    lease.release()

    assert Liveness.DEAD not in seen[:50]
    assert {Liveness.DEAD} == set(seen[50:])


@pytest.mark.parametrize("away_s", [19.0, 25.0, 3600.0])
def test_an_outage_is_no_silence(failing, clock, held, away_s):
    """
    A storage that was away, perhaps for the holder, too, makes nobody dead: silence is what was looked
    at, before and after.
    """
    observer = LeaseObserver(failing, clock)
    observer.look()
    clock.time = 5.0
    assert Liveness.UNKNOWN is observer.look()[1]
    failing.is_away = True
    with pytest.raises(OSError, match="not now"):
        observer.look()
    clock.time += away_s
    failing.is_away = False

    back = observer.look()[1]
    clock.time += 8.0
    later = observer.look()[1]
    clock.time += 8.0
    dead = observer.look()[1]

    assert [Liveness.UNKNOWN, Liveness.UNKNOWN, Liveness.DEAD] == [back, later, dead]
    held.beat()
    assert Liveness.LIVE is observer.look()[1]


def test_an_observer_that_was_paused_looks_again(storage, clock, held):
    """
    After a long time without a look, as when the machine of both was stopped, a holder has half its
    timeout to show that it lives; one that does not is dead then.
    """
    observer = LeaseObserver(storage, clock)
    observer.look()
    clock.time = 1000.0
    after_pause = observer.look()[1]
    held.beat()
    clock.time = 1001.0
    assert [Liveness.UNKNOWN, Liveness.LIVE] == [after_pause, observer.look()[1]]

    seen = []
    for clock.time in (2000.0, 2009.0, 2010.0, 2011.0):
        seen.append(observer.look()[1])
    assert [*[Liveness.LIVE] * 2, *[Liveness.DEAD] * 2] == seen


def test_rare_looks_end_with_a_verdict_too(storage, clock, held):
    """Whoever looks more rarely than the timeout is long finds a dead holder at the third look."""
    observer = LeaseObserver(storage, clock)
    seen = []
    for clock.time in (0.0, 60.0, 120.0):
        seen.append(observer.look()[1])

    assert [Liveness.UNKNOWN, Liveness.UNKNOWN, Liveness.DEAD] == seen


def test_an_answer_is_as_old_as_its_question(failing, clock, held):
    """An answer that was on its way for long tells of the time when it was asked for."""
    observer = LeaseObserver(failing, clock)
    observer.look()

    def dawdle() -> None:
        clock.time += 10.0

    failing.before_answer = dawdle  # three answers a look

    assert Liveness.UNKNOWN is observer.look()[1]


# --- what a holder makes of it ------------------------------------------------------------------


def test_a_driver_without_its_job_directory_stops(tmp_path, storage, clock):
    """
    Where the job directory was, there is an empty folder, as under a mount that went away: nobody
    can be seen to have taken over there, so nothing may be published.
    """
    lease = take_lease(storage, clock)
    lease.check()
    (tmp_path / "job").rename(tmp_path / "elsewhere")
    (tmp_path / "job").mkdir()

    with pytest.raises(LeaseLostError, match="lease 1 of this driver is not there any more"):
        lease.check()

    lease.beat()  # what its thread goes on to do
    with pytest.raises(LeaseLostError, match="is not mounted"):
        lease.check()


def test_a_holder_that_cannot_renew_publishes_nothing(failing, clock):
    """
    From the timeout on others may take over; a holder that could not beat until then proves that it
    can before it goes on, and a moment's failure does not matter.
    """
    lease = take_lease(failing, clock, timeout_s=TIMEOUT_S)
    failing.refuses_writes = True
    clock.time = TIMEOUT_S - 0.1
    lease.check()

    clock.time = TIMEOUT_S
    with pytest.raises(OSError, match="not now"):
        lease.check()
    failing.refuses_writes = False
    lease.check()

    clock.time += TIMEOUT_S - 0.1  # it has just beaten
    failing.refuses_writes = True
    lease.check()


def test_an_outage_is_borne_as_long_as_the_lease_lasts(failing, clock):
    """What can be left out is left out, until others may take over; then the driver ends."""
    lease = take_lease(failing, clock, timeout_s=TIMEOUT_S)

    def look() -> None:
        with lease.tolerating_outages():
            lease.check()

    failing.is_away = True
    for clock.time in (1.0, 10.0, 19.9):
        look()
    failing.is_away = False
    look()
    lease.beat()
    failing.is_away = True
    for clock.time in (30.0, 39.0):
        look()
    clock.time = 40.0
    with pytest.raises(OSError, match="not now"):
        look()


def test_an_error_that_stays_is_not_borne_while_the_lease_lasts(storage, clock):
    """
    What fails again and again for another reason than the lease's storage ends the driver, too.
    """
    lease = take_lease(storage, clock, timeout_s=TIMEOUT_S)

    def look() -> None:
        lease.beat()
        with lease.tolerating_outages():
            raise AWAY

    for clock.time in (0.0, 19.9):
        look()
    clock.time = 20.0
    with pytest.raises(OSError, match="not now"):
        look()


def test_a_cancel_is_heard_though_it_cannot_be_answered(failing, clock):
    """
    A storage that takes no answer does not make a driver deaf; one that is away is asked again.
    """
    directory = JobDirectory(failing)
    handler = StopRequestHandler(directory, directory.run("r1"), "d1", clock)
    request = put_cancel(failing, "d1", clock)
    failing.is_away = True
    with pytest.raises(OSError, match="not now"):
        handler.poll(JobPhase.READING)
    failing.is_away = False

    failing.refuses_writes = True
    assert [CancelRequested()] == handler.poll(JobPhase.READING)

    failing.refuses_writes = False
    assert [CancelRequested()] == handler.poll(JobPhase.READING)
    assert present(read_reply(failing, request)).ok
    assert [] == handler.poll(JobPhase.READING)


def test_a_release_that_fails_hides_no_error(failing, clock):
    """A driver that ends because the storage is away says so; its lease ends by itself."""
    lease = take_lease(failing, clock)
    failing.is_away = True

    lease.release()

    assert Liveness.LIVE is not LeaseObserver(failing._inner, clock).look()[1]


def test_patience_ends_and_is_restored(clock):
    """Failures are borne for their time from the first one, and each success forgets them."""
    retry_budget = RetryBudget(clock, 60.0)
    borne = []
    for clock.time in (0.0, 59.0, 60.0):
        borne.append(retry_budget.should_retry(AWAY))
    retry_budget.succeeded()
    borne.append(retry_budget.should_retry(AWAY))

    assert [True, True, False, True] == borne


def test_insisting_ends_with_the_last_error(clock):
    """What is insisted on is done as soon as it can be, or fails with its own error."""
    tries = iter([AWAY, AWAY])

    def act() -> str:
        for error in tries:
            raise error
        return "done"

    assert "done" == RetryBudget(clock, 60.0, every_s=5.0).retry(act)
    assert 10.0 == clock.time
    with pytest.raises(OSError, match="not now"):
        RetryBudget(clock, 60.0, every_s=5.0).retry(lambda: (_ for _ in ()).throw(AWAY))
    assert 70.0 == clock.time


def test_a_job_directory_that_vanishes_is_away(tmp_path, storage, clock):
    """
    Whoever waits for a driver of which nothing is there any more waits for the storage, and does not
    take the run for one that has not begun.
    """
    watcher = RunWatcher(storage, "r1", clock, "d1")
    watcher._run.put_submission(a_submission("d1"))
    watcher.poll()
    (tmp_path / "job").rename(tmp_path / "elsewhere")

    with pytest.raises(FileNotFoundError, match="record of driver d1 is gone"):
        watcher.assess()


def test_a_wait_for_a_driver_whose_job_directory_vanishes_ends(tmp_path, storage, clock, caplog):
    """
    Each look from then on fails, also in between those that look at the driver's life, so that the
    failures last. After a minute the wait is over, and it was logged a few times only.
    """
    watcher = RunWatcher(storage, "r1", clock, "d1")
    watcher._run.put_submission(a_submission("d1"))
    take_lease(storage, clock)
    seen = [watcher.assess().run_state for _ in range(3)]
    (tmp_path / "job").rename(tmp_path / "elsewhere")
    budget = RetryBudget(clock, 600.0, every_s=0.5)

    def wait_on() -> None:
        for _ in range(1000):
            budget.retry(watcher.assess)
            clock.sleep(0.5)

    began = clock.time
    with pytest.raises(FileNotFoundError, match="the job directory was emptied, or is not mounted"):
        wait_on()

    assert [RunState.RUNNING] * 3 == seen
    assert 60.0 <= clock.time - began < 70.0
    assert 2 <= len(caplog.records) <= 8


# --- real processes -----------------------------------------------------------------------------


class Machines:
    """Drivers of one job, each in a process of its own, and what they have published."""

    def __init__(self, tmp_path: Path, storage) -> None:
        self._root = tmp_path
        self._storage = storage
        self._started: list[subprocess.Popen[str]] = []
        self.end = tmp_path / "end"
        self.published = tmp_path / "published"

    def start(self, driver_id: str, days: float) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "END": str(self.end),
            "PUBLISHED": str(self.published),
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        arguments = [self._storage.url, "r1", driver_id, str(days)]
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.unit.small_driver", *arguments],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def publications(self) -> list[str]:
        return self.published.read_text().splitlines() if self.published.exists() else []

    def await_token(self, token: int) -> None:
        deadline = time.monotonic() + 30
        while not any(line.startswith(f"{token} ") for line in self.publications()):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def stop(self) -> None:
        self.end.touch()
        for process in self._started:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
            process.communicate(timeout=30)


@pytest.fixture
def machines(tmp_path, storage):
    started = Machines(tmp_path, storage)
    yield started
    started.stop()


@pytest.mark.slow
def test_drivers_whose_clocks_are_days_apart_take_turns(storage, machines):
    """
    With wall clocks two days apart that jump at every look, a second driver is refused while the first
    one works, and takes over at once when it is killed.
    """
    first = machines.start("ahead", 1.0)
    machines.await_token(1)
    assert 5 == machines.start("behind", -1.0).wait(30)

    first.kill()
    first.wait(30)
    began = time.monotonic()
    machines.start("behind again", -1.0)
    machines.await_token(2)

    assert 20.0 > time.monotonic() - began
    assert ["1 ahead", "2 behind again"] == sorted(set(machines.publications()))


@pytest.mark.slow
def test_a_paused_driver_of_another_machine_is_overtaken_after_its_timeout(storage, machines):
    """
    Of a holder whose processes cannot be seen, only silence tells: it is taken over after its timeout
    and not before; when it wakes up it publishes nothing.
    """
    first = machines.start("ahead", 1.0)
    machines.await_token(1)
    first.send_signal(signal.SIGSTOP)  # first: it would miss its own lease
    path = Path(storage.url) / "leases" / "1.json"
    path.write_text(path.read_text().replace('"space": "', '"space": "another machine '))
    began = time.monotonic()
    lease = acquire_lease(
        storage,
        run_id="r1",
        driver_id="successor",
        owner=identify_this(),
        clock=SystemClock(),
        heartbeat_s=0.1,
    )
    took_s = time.monotonic() - began
    before = machines.publications()
    first.send_signal(signal.SIGCONT)
    said = first.communicate(timeout=30)[1]
    lease.release()

    assert SHORT_S <= took_s < SHORT_S + 10
    assert 5 == first.returncode
    assert "another driver has taken lease 2 while this one held 1" in said
    # One look may have been before the pause, and its publication after it (docs/sinks.md).
    assert len(machines.publications()) <= len(before) + 1
