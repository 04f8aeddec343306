"""The lease: at most one driver of a job, whatever dies, pauses or races."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider.runtime.base.host import identify
from airflow_provider.runtime.errors import (
    EXIT_LEASE,
    CorruptDocumentError,
    LeaseHeldError,
    LeaseLostError,
)
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.lease import (
    Lease,
    LeaseObserver,
    Liveness,
    wait_for_free_lease,
)
from airflow_provider.runtime.jobdir.lease_records import (
    HeartbeatRecord,
    LeaseRecord,
    has_ended,
    last_token,
)
from airflow_provider.runtime.testing.job_directories import a_final
from tests.present import present
from tests.unit.support import ELSEWHERE, FakeClock, take_lease

if TYPE_CHECKING:
    from airflow_provider.runtime.storage.local import LocalStorage

TIMEOUT_S = 20.0


@pytest.fixture
def take(storage, clock):
    """Return :func:`take_lease` on the job directory; every lease is released at the end."""
    taken: list[Lease] = []

    def take_one(**how) -> Lease:
        taken.append(take_lease(storage, how.pop("clock", clock), **how))
        return taken[-1]

    yield take_one
    for lease in taken:
        lease.release()


def beating(lease: Lease, clock: FakeClock) -> None:
    """Let the lease's heartbeat move whenever somebody waits."""
    clock.during_sleep = lease.beat


def test_the_first_lease(storage, clock, take):
    """On a job that nobody drives the lease is had at once, with token 1 and a first heartbeat."""
    lease = take(run_id="r1", driver_id="d1")

    assert 1 == lease.token
    assert 0.0 == clock.time
    assert lease.record.to_bytes() == storage.read("leases/1.json")
    assert ("r1", "d1") == (lease.record.run_id, lease.record.driver_id)
    assert present(HeartbeatRecord.read(storage, "heartbeats/1.json")).beat >= 1


def test_a_released_lease_is_had_at_once(storage, clock, take):
    """After a release the next driver waits for nothing and gets the next token."""
    take().release()
    assert Liveness.FREE is LeaseObserver(storage, clock).look()[1]

    assert 2 == take().token
    assert 0.0 == clock.time


def test_a_dead_drivers_lease_is_had_at_once(storage, clock, take):
    """A driver killed on this machine is known to be gone without waiting for its heartbeat."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    take(owner=identify([child.pid]))
    child.kill()
    child.communicate()

    assert Liveness.DEAD is LeaseObserver(storage, clock).look()[1]
    assert 2 == take().token
    assert 0.0 == clock.time


def test_a_live_drivers_lease_is_refused(storage, clock, take):
    """
    While the holder's heartbeat moves, another driver is told who holds the lease and what to do,
    and writes nothing.
    """
    beating(take(run_id="nightly"), clock)

    with pytest.raises(LeaseHeldError) as raised:
        take(run_id="other")

    assert EXIT_LEASE == raised.value.exit_code
    assert "lease 1, run 'nightly'" in str(raised.value)
    assert f"spark-stream cancel {storage.url}" in str(raised.value)
    assert ["1.json"] == storage.list("leases")
    assert clock.time < 1


def test_a_live_driver_is_noticed_before_anything_is_started(storage, clock, take):
    """Whoever only looks whether the job is free is told as well, before the seconds of a JVM."""
    beating(take(run_id="nightly"), clock)

    with pytest.raises(LeaseHeldError, match="lease 1, run 'nightly'"):
        wait_for_free_lease(storage, clock)


@pytest.mark.parametrize("hours", [-5, 0, 5])
def test_silence_is_measured_on_the_observers_clock(storage, take, hours):
    """
    A silent driver of another machine is taken over after its timeout and not before, however the
    two machines' wall clocks differ.
    """
    theirs = FakeClock(dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc))
    ours = FakeClock(theirs.wall + dt.timedelta(hours=hours))
    ours.time = 1_000_000.0
    take(owner=ELSEWHERE, clock=theirs, timeout_s=TIMEOUT_S)

    assert 2 == take(clock=ours).token
    assert TIMEOUT_S <= ours.time - 1_000_000.0 < TIMEOUT_S + 1


def test_one_look_is_not_enough(storage, clock, take):
    """
    A holder that cannot be asked is unknown at first, dead after the timeout, and not earlier.
    """
    take(owner=ELSEWHERE, timeout_s=TIMEOUT_S)
    observer = LeaseObserver(storage, clock)

    seen = []
    for time in (0.0, 10.0, 19.9, 20.0):
        clock.time = time
        seen.append(observer.look()[1])

    assert [Liveness.UNKNOWN] * 3 + [Liveness.DEAD] == seen


def test_a_heartbeat_that_moves_proves_life_and_starts_the_timeout_anew(storage, clock, take):
    """Each new beat is life; the timeout counts from the last one that was seen."""
    lease = take(owner=ELSEWHERE, timeout_s=TIMEOUT_S)
    observer = LeaseObserver(storage, clock)

    seen = []
    for time, beats in ((0, False), (15, True), (25, False), (34, False), (36, False)):
        clock.time = time
        if beats:
            lease.beat()
        seen.append(observer.look()[1])

    assert [Liveness.UNKNOWN, *[Liveness.LIVE] * 3, Liveness.DEAD] == seen


def test_a_new_lease_is_not_taken_for_a_moved_heartbeat(storage, clock, take):
    """The beat of one lease says nothing about the holder of the next."""
    first = take(owner=ELSEWHERE)
    observer = LeaseObserver(storage, clock)
    observer.look()
    first.release()
    take(owner=ELSEWHERE)

    assert Liveness.UNKNOWN is observer.look()[1]


def test_a_lease_without_a_heartbeat_dies_too(storage, clock, take):
    """
    A driver that died between its lease and its first heartbeat is taken over after the timeout.
    """
    take(owner=ELSEWHERE, timeout_s=TIMEOUT_S)
    storage.delete("heartbeats/1.json")

    assert 2 == take().token
    assert TIMEOUT_S <= clock.time


@pytest.mark.parametrize("held_before", [False, True])
def test_one_of_racing_drivers_gets_the_lease(storage, take, held_before):
    """Of drivers that ask at the same moment one gets the lease, the others are refused."""
    if held_before:
        take().release()
    start = threading.Barrier(8)

    def race(racer: int) -> Lease | None:
        start.wait()
        try:
            return take(driver_id=f"d{racer}", clock=ImpatientClock())
        except LeaseHeldError:
            return None

    with ThreadPoolExecutor(8) as pool:
        won = [lease for lease in pool.map(race, range(8)) if lease is not None]

    assert 1 == len(won)
    assert won[0].token == last_token(storage) == (2 if held_before else 1)
    assert (
        won[0].record.driver_id == present(LeaseObserver(storage, FakeClock()).current()).driver_id
    )


def test_a_driver_that_was_overtaken_may_not_commit(storage, clock, take):
    """The moment another driver has the next token, the old one's check fails, for good."""
    old = take(owner=ELSEWHERE)
    old.check()
    new = take()

    with pytest.raises(LeaseLostError, match="another driver has taken lease 2") as raised:
        old.check()
    assert EXIT_LEASE == raised.value.exit_code
    assert old.is_lost()
    new.check()

    new.release()
    with pytest.raises(LeaseLostError):
        old.check()


def test_a_beat_of_an_overtaken_driver_revives_nothing(storage, clock, take):
    """A driver that wakes up after its lease was taken beats for its own token only."""
    old = take(owner=ELSEWHERE)
    new = take()
    old.beat()
    new.release()

    assert Liveness.FREE is LeaseObserver(storage, clock).look()[1]


def test_release_twice_is_release(storage, take):
    """A second release writes nothing."""
    lease = take()
    lease.release()
    first = storage.read("heartbeats/1.json")
    lease.release()

    assert first == storage.read("heartbeats/1.json")
    assert present(HeartbeatRecord.read(storage, "heartbeats/1.json")).released


def test_a_release_that_cannot_be_put_ends_with_the_process(storage, clock, take):
    """
    On a full disk, say, a driver ends all the same; its lease is free when its process is gone.
    """
    lease = take()
    beats = Path(storage.url, "heartbeats")
    beats.rename(beats.with_name("away"))
    beats.write_bytes(b"no folder")

    lease.release()

    beats.unlink()
    beats.with_name("away").rename(beats)
    assert Liveness.UNKNOWN is LeaseObserver(storage, clock).look()[1]


def test_a_lease_beats_by_itself(storage, take):
    """A thread beats until the release, and the last beat is the release."""
    before = set(threading.enumerate())
    counting = CountingStorage(storage)
    lease = take_lease(counting, FakeClock(), heartbeat_s=0.001)
    assert counting.enough.wait(30)
    lease.release()
    last = present(HeartbeatRecord.read(storage, "heartbeats/1.json"))

    assert last.released
    assert set() == {t.name for t in set(threading.enumerate()) - before} & {"heartbeat"}
    assert counting.beats == last.beat


@pytest.mark.slow
def test_a_heartbeat_that_is_on_its_way_does_not_come_behind_the_release(storage):
    """Else the next driver would wait for one that has ended, until the lease times out."""
    before = set(threading.enumerate())
    slow = SlowStorage(storage)
    lease = take_lease(slow, FakeClock(), heartbeat_s=0.001)
    assert slow.is_putting.wait(30)
    releasing = threading.Thread(target=lease.release)
    releasing.start()
    releasing.join(0.2)
    slow.goes_on.set()
    releasing.join(30)
    for thread in set(threading.enumerate()) - before:
        thread.join(30)

    assert present(HeartbeatRecord.read(storage, "heartbeats/1.json")).released


def test_a_heartbeat_outlives_a_storage_that_fails_for_a_while():
    """A beat that cannot be written is tried again, since the storage may come back."""
    failing = CountingStorage(None)
    lease = Lease(failing, a_record(), FakeClock())
    lease.start_heartbeat()
    failing.broken = True
    assert failing.refused.wait(30)
    failing.broken = False
    failing.beats = 0
    failing.enough.clear()
    assert failing.enough.wait(30)
    lease.release()


class ImpatientClock(FakeClock):
    """A clock of drivers that do not wait to see whether the one before them lives."""

    def sleep(self, seconds: float) -> None:
        raise LeaseHeldError(
            f"another driver was faster, and it would take {seconds} seconds to know more"
        )


class SlowStorage:
    """A storage that takes its time for what a thread of heartbeats puts."""

    def __init__(self, inner: LocalStorage) -> None:
        self.inner = inner
        self.is_putting = threading.Event()
        self.goes_on = threading.Event()

    def put(self, path: str, data: bytes) -> None:
        if threading.current_thread().name == "heartbeat":
            self.is_putting.set()
            assert self.goes_on.wait(30)
        self.inner.put(path, data)

    def __getattr__(self, name: str):
        return getattr(self.inner, name)


class CountingStorage:
    """A storage that counts heartbeats, and refuses them while it is broken."""

    def __init__(self, inner: LocalStorage | None) -> None:
        self.inner = inner
        self.beats = 0
        self.broken = False
        self.enough = threading.Event()
        self.refused = threading.Event()

    def put(self, path: str, data: bytes) -> None:
        if self.broken:
            self.refused.set()
            raise OSError(5, "not now")
        self.beats += 1
        if self.inner is not None:
            self.inner.put(path, data)
        if self.beats >= 5:
            self.enough.set()

    def __getattr__(self, name: str):
        return getattr(self.inner, name)


def a_record() -> LeaseRecord:
    return LeaseRecord(
        token=1,
        run_id="r1",
        driver_id="d1",
        nonce="n",
        owner=ELSEWHERE,
        heartbeat_s=0.001,
        timeout_s=TIMEOUT_S,
        acquired="2026-01-01T00:00:00.000Z",
    )


# --- one lease after the other --------------------------------------------------------------------


def finals(storage) -> list[str]:
    return [name for run in storage.list("runs") for name in storage.list(f"runs/{run}")]


def test_a_driver_goes_on_under_the_lease_that_it_has_renewed(storage, clock, take):
    """
    A renewed lease has the next token and is the same driver's: it may commit, beats, and is seen
    to live without a gap.
    """
    lease = take()
    observer = LeaseObserver(storage, clock)
    observer.look()
    lease.renew()
    lease.check()

    assert (2, 1) == (lease.token, lease.record.since)
    assert Liveness.LIVE is observer.look()[1]

    lease.release()
    assert Liveness.FREE is LeaseObserver(storage, clock).look()[1]
    assert all(has_ended(storage, token) for token in (1, 2))


def test_a_driver_has_not_ended_while_it_holds_a_later_lease(storage, clock, take):
    """What a driver staged under an earlier one of its leases is not taken for a dead driver's."""
    lease = take()
    lease.renew()

    assert not has_ended(storage, 1)


def test_a_lease_that_was_taken_is_neither_renewed_nor_sealed(storage, clock, take):
    """The next token is one document, so either the driver goes on or another one takes over."""
    old = take(owner=ELSEWHERE)
    take()

    with pytest.raises(LeaseLostError):
        old.renew()
    with pytest.raises(LeaseLostError):
        old.seal(a_final())
    assert [] == finals(storage)
    assert old.is_lost()


@pytest.mark.parametrize("step", ["renew", "seal"])
def test_a_driver_paused_after_its_check_does_not_pass_its_successor(
    storage, clock, take, monkeypatch, step
):
    """When another driver takes over between the look at the lease and the put, the put loses."""
    old = take(owner=ELSEWHERE)
    monkeypatch.setattr(old, "check", take)

    with pytest.raises(LeaseLostError, match="another driver has taken lease 2"):
        old.renew() if step == "renew" else old.seal(a_final())
    assert 2 == present(LeaseObserver(storage, clock).current()).token
    assert present(LeaseObserver(storage, clock).current()).final is None


@pytest.mark.slow
def test_whoever_comes_after_a_sealed_lease_puts_the_final_checkpoint_first(storage, clock, take):
    """
    A driver that was paused after it had sealed its run finds the end that it has decided put, and
    putting it again changes nothing.
    """
    old = take(run_id="r1", owner=ELSEWHERE)
    old.seal(a_final("r1"))
    assert [] == finals(storage)
    take(run_id="r2")
    run = JobDirectory(storage).run("r1")

    assert a_final("r1") == run.final()
    assert a_final("r1") == run.put_final(a_final("r1"))


def test_a_lease_that_is_sealed_with_the_end_of_another_run(storage, clock, take):
    """Such a document was changed by hand, and no run ends by it."""
    lease = take(run_id="r1", owner=ELSEWHERE)
    lease.seal(a_final("r2"))

    with pytest.raises(CorruptDocumentError, match=r"final.run_id: expected r1, found r2"):
        take(run_id="r3")
    assert [] == finals(storage)


@pytest.mark.parametrize("is_done", [True, False])
def test_an_answer_to_a_seal_that_got_lost(storage, clock, take, monkeypatch, is_done):
    """When the put was done the run is sealed all the same; when it was not, its error is told."""
    lease = take()
    put = type(storage).put_if_absent

    def lost(location, path, data):
        if is_done:
            put(location, path, data)
        raise OSError(5, "the answer got lost")

    monkeypatch.setattr(type(storage), "put_if_absent", lost)
    if is_done:
        lease.seal(a_final())
    else:
        with pytest.raises(OSError, match="the answer got lost"):
            lease.seal(a_final())
    assert (2 if is_done else 1) == lease.token
