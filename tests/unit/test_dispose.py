"""Keeping savepoints: what may go, what never does, and what broken attempts leave."""

from __future__ import annotations

import dataclasses
import datetime as dt
import subprocess
import sys

import pytest

from airflow_provider.runtime.base.clock import to_iso
from airflow_provider.runtime.errors import ConfigError, SavepointBusyError, UnknownJobError
from airflow_provider.runtime.savepoints.catalog import find_savepoints, open_savepoint
from airflow_provider.runtime.savepoints.record import (
    BROKEN_AFTER_S,
    MANIFEST,
    QuerySavepoint,
    SavedFile,
    SavepointClaimRecord,
    SavepointRecord,
    claim,
    last_claim,
    release,
)
from airflow_provider.runtime.savepoints.retention import (
    Retention,
    collect_garbage,
    dispose,
    retain,
)
from airflow_provider.runtime.storage.local import LocalStorage
from tests.unit.support import ELSEWHERE, FakeClock


@pytest.fixture
def root(tmp_path) -> LocalStorage:
    return LocalStorage(str(tmp_path / "savepoints"))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def make(root: LocalStorage, name: str, *, hours: int = 0, origin: str = "periodic") -> None:
    """Make a savepoint of one file, taken so many hours, and batches, after the clock's time."""
    location = root.at(name)
    location.put("queries/q/metadata", b"{}")
    query = QuerySavepoint(
        query_id="id",
        batch=hours,
        planned=False,
        watermark="1970-01-01T00:00:00.000Z",
        drained=False,
        sources=[],
        operators=[],
        addressed=[],
        files=(SavedFile("metadata", 2),),
    )
    taken = FakeClock().now() + dt.timedelta(hours=hours)
    SavepointRecord(
        name=name,
        taken=to_iso(taken),
        origin=origin,
        labels={},
        job="job",
        run_id=None,
        source="there",
        queries={"q": query},
    ).put(location, MANIFEST)


def names(root: LocalStorage) -> list[str]:
    return [savepoint.folder for savepoint in find_savepoints(root)[0]]


# --- retention ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("retention", "left"),
    [
        (Retention(keep=2), ["s3", "s4"]),
        (Retention(keep=9), ["s0", "s1", "s2", "s3", "s4"]),
        (Retention(max_age_s=2.5 * 3600), ["s2", "s3", "s4"]),
        (Retention(max_age_s=0), ["s4"]),
        (Retention(keep=4, max_age_s=2.5 * 3600), ["s2", "s3", "s4"]),
        (Retention(keep=1, origins=("manual",)), ["s0", "s1", "s2", "s3", "s4"]),
    ],
)
def test_what_is_too_much_or_too_old_goes(root, retention, left):
    """The newest ones stay, by number and by age, and the newest of all whatever its age."""
    for hour in range(5):
        make(root, f"s{hour}", hours=hour)
    now = FakeClock(FakeClock().now() + dt.timedelta(hours=4, minutes=30))

    gone = retain(root.url, retention, clock=now)

    assert left == names(root)
    assert sorted({"s0", "s1", "s2", "s3", "s4"} - set(left)) == gone
    assert left == root.list("")


def test_savepoints_of_other_origins_stay(root, clock):
    """Retention of periodic savepoints takes none that a person has taken."""
    make(root, "mine", origin="manual")
    for hour in range(1, 4):
        make(root, f"s{hour}", hours=hour)

    retain(root.url, Retention(keep=1), clock=clock)

    assert ["mine", "s3"] == names(root)


@pytest.mark.slow
def test_the_newest_complete_one_stays_though_a_broken_one_is_newer(root, clock):
    """What was never completed does not count as a savepoint."""
    make(root, "s1", hours=1)
    make(root, "s2", hours=2)
    root.at("s3").put("queries/q/metadata", b"{}")
    claimed_by_a_dead_process(root.at("s3"))

    retain(root.url, Retention(keep=1), clock=clock)

    assert ["s2"] == names(root) == root.list("")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, "a number to keep, a greatest age, or both"),
        ({"keep": 0}, "keep=0: at least the newest"),
        ({"keep": 1, "origins": ("nightly",)}, "origin 'nightly': use one of manual, periodic"),
    ],
)
def test_retention_that_makes_no_sense(asked, said):
    """It is refused before anything is looked at."""
    with pytest.raises(ConfigError, match=said):
        Retention(**asked)


# --- disposing and garbage ----------------------------------------------------------------------


def test_disposing_removes_one_savepoint(root, clock):
    """The named one goes with its folder, and the others stay."""
    make(root, "s1")
    make(root, "s2")

    dispose(f"{root.url}/s1", clock=clock)

    assert ["s2"] == names(root) == root.list("")
    with pytest.raises(UnknownJobError, match="s1: no savepoint there"):
        dispose(f"{root.url}/s1", clock=clock)


def test_a_savepoint_that_somebody_removes_is_left_to_them(root, clock):
    """Two that remove one savepoint are told apart."""
    make(root, "s1")
    claim(root.at("s1"), "remove", clock)

    with pytest.raises(SavepointBusyError, match="being removed since .* wait for it"):
        dispose(f"{root.url}/s1", clock=clock)
    assert ["s1"] == names(root)


def test_a_savepoint_that_is_half_removed_is_left_to_who_removes_it(root, clock):
    """
    Its record is gone, and somebody is at the rest: that is said, and nothing is removed twice.
    """
    make(root, "s1")
    claim(root.at("s1"), "remove", clock)
    root.delete("s1/savepoint.json")
    left = root.list("s1")

    with pytest.raises(SavepointBusyError, match="being removed since .* wait for it"):
        dispose(f"{root.url}/s1", clock=clock)
    assert left == root.list("s1")


@pytest.mark.slow
def test_garbage_is_what_nobody_is_at(root, clock):
    """
    What a dead taker has left goes; what a living one is at stays, and what nobody has claimed.
    """
    make(root, "whole")
    root.at("dead").put("queries/q/metadata", b"{}")
    claimed_by_a_dead_process(root.at("dead"))
    root.at("living").put("queries/q/metadata", b"{}")
    claim(root.at("living"), "take", clock)
    root.at("somebody").put("queries/q/metadata", b"{}")

    assert ["dead"] == collect_garbage(root.url, clock=clock)

    assert ["living", "somebody", "whole"] == root.list("")
    assert b"{}" == root.read("somebody/queries/q/metadata")
    assert ["whole"] == names(root)


def claimed_by_a_dead_process(location: LocalStorage) -> None:
    program = (
        "import sys; from airflow_provider.runtime.base.clock import SystemClock\n"
        "from airflow_provider.runtime.savepoints.record import claim\n"
        "from airflow_provider.runtime.storage.local import LocalStorage\n"
        "claim(LocalStorage(sys.argv[1]), 'take', SystemClock())"
    )
    subprocess.run([sys.executable, "-c", program, location.url], check=True)


# --- claims -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_claim_ends_with_its_process(root, clock):
    """A folder that a dead process has claimed can be claimed, with the next number."""
    claimed_by_a_dead_process(root)

    assert 2 == claim(root, "take", clock).token
    with pytest.raises(SavepointBusyError, match="being taken since"):
        claim(root, "take", clock)
    release(root)
    assert (None, 1) == (last_claim(root), claim(root, "take", clock).token)


def test_a_claim_from_another_machine_is_believed_for_a_day(root, clock):
    """Nobody here can know whether a process there lives."""
    theirs = SavepointClaimRecord(
        token=1, purpose="take", nonce="n", owner=ELSEWHERE, began=to_iso(clock.now())
    )
    theirs.put(root, "writer.1.json")
    with pytest.raises(SavepointBusyError, match="on elsewhere; wait for it"):
        claim(root, "take", clock)

    clock.wall += dt.timedelta(seconds=BROKEN_AFTER_S + 1)
    assert 2 == claim(root, "take", clock).token


def test_of_two_claims_one_wins(root, clock):
    """Whoever is slower by a moment is told, and changes nothing."""
    first = claim(root, "take", clock)
    late = dataclasses.replace(first, nonce="late")

    assert not late.put_if_absent(root, "writer.1.json")
    assert first == last_claim(root)


# --- looking ------------------------------------------------------------------------------------


def test_what_is_no_savepoint_is_said_to_be_none(root, clock):
    """Nothing there, something else there, and one that is being taken: each is named."""
    root.at("other").put("notes.txt", b"")
    claim(root.at("half"), "take", clock)

    for name, said in {
        "nowhere": "check the path",
        "other": r"no savepoint.json\); was it disposed of",
        "half": "not complete: it is being taken or removed since",
    }.items():
        with pytest.raises(UnknownJobError, match=said):
            open_savepoint(f"{root.url}/{name}")


def test_a_savepoint_of_a_newer_version_is_refused(root):
    """It is not half read."""
    make(root, "s1")
    newer = root.at("s1").read(MANIFEST).replace(b'"version": 1', b'"version": 2')
    root.at("s1").put(MANIFEST, newer)

    with pytest.raises(ConfigError, match="format version 2 is newer than 1"):
        open_savepoint(f"{root.url}/s1")
