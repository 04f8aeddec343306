"""Whose the job directory is, is found by name: whatever a listing remembers or contains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider.runtime.driver.records import put_run_record
from airflow_provider.runtime.errors import CorruptDocumentError, LeaseHeldError, LeaseLostError
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.lease import Lease, LeaseObserver, Liveness
from airflow_provider.runtime.jobdir.lease_records import has_ended, last_token
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.testing.job_directories import a_run
from tests.present import present
from tests.unit.support import ELSEWHERE, take_lease


class RememberedListings(LocalStorage):
    """A client of a network filesystem: files by name are fresh, listings are of the first look."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.asked: list[str] = []
        self._listings: dict[str, list[str]] = {}

    def list(self, path: str) -> list[str]:
        self.asked.append(f"list {path}")
        return self._listings.setdefault(path, super().list(path))

    def read_small(self, path: str, *, at_most_bytes: int) -> bytes:
        self.asked.append(f"read {path}")
        return super().read_small(path, at_most_bytes=at_most_bytes)


@pytest.fixture
def take(clock):
    """Return :func:`take_lease`; every lease is released at the end."""
    taken: list[Lease] = []

    def take_one(storage: LocalStorage, **how) -> Lease:
        taken.append(take_lease(storage, clock, **how))
        return taken[-1]

    yield take_one
    for lease in taken:
        lease.release()


@pytest.fixture
def remembered(storage) -> RememberedListings:
    return RememberedListings(storage.url)


def put_as(storage: LocalStorage, name: str, of: str = "leases/1.json", **changes) -> None:
    """Put the document *of* under another name, with some members changed."""
    document = {**json.loads(storage.read(of)), **changes}
    storage.put(name, json.dumps(document).encode())


def test_a_take_over_is_noticed_where_listings_are_remembered(storage, remembered, take):
    """
    A network filesystem may show for a minute a listing without the next lease: the driver that was
    overtaken is stopped by the lease's name.
    """
    lease = take(remembered, owner=ELSEWHERE)
    remembered.list("leases")
    lease.check()
    take(storage).release()

    with pytest.raises(LeaseLostError, match="another driver has taken lease 2"):
        lease.check()


def test_a_run_is_recorded_by_no_driver_that_was_overtaken(storage, take):
    """
    Its checkpoints may have been replaced before it read where they are: such a run would count as
    one that began with nothing, and be rewound to there.
    """
    lease, run = take(storage, owner=ELSEWHERE), JobDirectory(storage).run("r1")
    take(storage)

    with pytest.raises(LeaseLostError):
        put_run_record(run, a_run("r1"), lease)
    assert run.record() is None


def test_a_driver_proves_its_lease_by_two_reads(remembered, take):
    """
    Before each step a driver reads two names and lists nothing, however many leases there were. Its
    own comes last: where a next one was taken and all is gone again, it is not there either.
    """
    lease = take(remembered)
    remembered.asked.clear()

    lease.check()

    assert ["read leases/2.json", "read leases/1.json"] == remembered.asked


def test_a_lease_of_another_nonce_is_not_this_drivers(storage, take):
    """
    In a job directory that was removed and made anew the same number is another driver's lease.
    """
    lease = take(storage)
    put_as(storage, "leases/1.json", nonce="of another driver")

    with pytest.raises(LeaseLostError, match="lease 1 of this driver is not there any more"):
        lease.check()


def test_an_observer_finds_leases_that_a_listing_does_not_show(storage, remembered, clock, take):
    """From the last lease that is listed the first look goes on by name, and takes none twice."""
    take(storage).release()
    remembered.list("leases")
    take(storage, run_id="r2").release()
    take(storage, run_id="r3", owner=ELSEWHERE)

    assert "r3" == present(LeaseObserver(remembered, clock).look()[0]).run_id


def test_a_listing_that_shows_leases_which_are_gone_decides_nothing(storage, remembered, take):
    """
    Where a lease is listed and not there, nothing is known: the job is not taken for a new one.
    """
    take(storage).release()
    remembered.list("leases")
    storage.delete("leases")

    with pytest.raises(OSError, match=r"leases/1\.json is listed and not there"):
        take(remembered)
    assert [] == storage.list("leases")


@pytest.mark.parametrize(
    "name",
    ["²", "007", "+7", "7~", "7.json~", "७", ".DS_Store", "9" * 30, "7.json.bak"],
)
def test_strange_names_are_no_leases(storage, clock, name, take):
    """What no driver has put, such as an editor's copy, is neither a lease nor an error."""
    take(storage).release()
    put_as(storage, f"leases/{name}")
    put_as(storage, f"leases/{name}.json")
    put_as(storage, f"heartbeats/{name}.json", "heartbeats/1.json")

    assert 1 == last_token(storage)
    assert Liveness.FREE is LeaseObserver(storage, clock).look()[1]
    second = take(storage)
    second.check()
    assert 2 == second.token


def test_a_lease_under_another_number_is_damage(storage, clock, take):
    """
    A copied lease document, as a restored backup may leave it, is named by everyone who looks:
    taking it for what it says would look for its number for ever.
    """
    take(storage).release()
    put_as(storage, "leases/2.json")
    put_as(storage, "heartbeats/2.json", "heartbeats/1.json", released=False)
    observer = LeaseObserver(storage, clock)
    for _ in range(2):
        with pytest.raises(CorruptDocumentError, match=r"leases/2\.json: .* token: expected 2"):
            observer.look()
    with pytest.raises(CorruptDocumentError, match=r"leases/2\.json: .* token: expected 2"):
        take(storage)


def test_a_heartbeat_under_another_number_is_damage(storage, clock, take):
    """A released heartbeat that was copied to another lease's name does not set that lease free."""
    take(storage).release()
    take(storage, owner=ELSEWHERE)
    put_as(storage, "heartbeats/2.json", "heartbeats/1.json")

    with pytest.raises(CorruptDocumentError, match=r"heartbeats/2\.json: .* token: expected 2"):
        LeaseObserver(storage, clock).look()
    with pytest.raises(CorruptDocumentError, match=r"heartbeats/2\.json: .* token: expected 2"):
        has_ended(storage, 2)


def test_racing_for_a_lease_that_is_not_listed_loses(storage, remembered, clock, take):
    """A driver that knows an old listing only does not get the number that another one has."""
    remembered.list("leases")
    held = take(storage, owner=ELSEWHERE)
    clock.during_sleep = held.beat

    with pytest.raises(LeaseHeldError, match="lease 1, run 'r1'"):
        take(remembered, run_id="r2")
    assert ["1.json"] == [path.name for path in Path(storage.url, "leases").iterdir()]
