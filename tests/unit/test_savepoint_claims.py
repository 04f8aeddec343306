"""Claims of a savepoint: takers that were taken for dead, removers, any number of readers."""

from __future__ import annotations

import datetime as dt
import errno
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.base.clock import to_iso
from airflow_provider.runtime.driver.restore_job import restore_job
from airflow_provider.runtime.errors import (
    CheckpointError,
    ConfigError,
    SavepointBusyError,
    SavepointError,
    UnknownJobError,
)
from airflow_provider.runtime.savepoints.catalog import (
    Savepoint,
    find_savepoints,
    open_savepoint,
    verify_savepoint,
)
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.savepoints.record import (
    READ,
    SavepointClaimRecord,
    claim,
    is_held,
    put_reader,
    reader_path,
)
from airflow_provider.runtime.savepoints.retention import (
    Retention,
    collect_garbage,
    dispose,
    pinned_savepoint,
    retain,
)
from airflow_provider.runtime.savepoints.take import take_savepoint
from airflow_provider.runtime.storage.local import LocalStorage
from tests.dying import dies_at
from tests.unit.savepoint_refusals import rights
from tests.unit.support import ELSEWHERE, EpochBench, FakeClock, FakeSink

TWO_DAYS = dt.timedelta(days=2)


@pytest.fixture
def job(tmp_path) -> EpochBench:
    return EpochBench(tmp_path / "job", FakeSink()).begun().published(2)


@pytest.fixture
def root(job):
    return job.storage.at("savepoints")


def take(job: EpochBench, name: str = "s1") -> Savepoint:
    source = job_source(job.storage.url, job.clock)
    url = f"{job.storage.url}/savepoints/{name}"
    return take_savepoint(source, url, origin="periodic", aligned_timeout_s=0, clock=job.clock)


def at_failpoint(monkeypatch, name: str, act) -> None:
    """Let somebody else act while a process stands at a failpoint."""
    real = failpoints.hit

    def hit(point: str) -> None:
        if point == name:
            act()
        real(point)

    monkeypatch.setattr(failpoints, "hit", hit)


def overtake(location) -> None:
    """Claim a folder that is claimed, as somebody who has taken its owner for dead."""
    raw = json.loads(location.read("writer.1.json"))
    location.put("writer.2.json", json.dumps({**raw, "token": 2, "nonce": "another"}).encode())


def from_elsewhere(location, name: str) -> None:
    """Let a document of this process say that another machine has put it."""
    raw = json.loads(location.read(name))
    location.put(name, json.dumps({**raw, "owner": ELSEWHERE.to_dict()}).encode())


# --- takers -------------------------------------------------------------------------------------


def test_no_clock_ends_the_claim_of_a_living_process(job, root, monkeypatch):
    """
    A collector on this machine sees that the taker lives, however old its clock makes the claim.
    """
    later = FakeClock(job.clock.now() + TWO_DAYS)
    at_failpoint(
        monkeypatch, "savepoint.copied", lambda: retain(root.url, Retention(keep=1), clock=later)
    )

    assert [] == verify_savepoint(take(job))


@pytest.mark.parametrize("point", ["savepoint.claimed", "savepoint.copied", "savepoint.put"])
def test_a_process_that_lives_on_is_not_busy_for_ever_with_what_has_failed(
    job, root, monkeypatch, point
):
    """
    The storage goes away while a driver takes a savepoint, so that it cannot even remove its claim;
    when it is there again the same driver takes one of that name, or removes what it has put.
    """

    class Away:
        def __init__(self) -> None:
            self.patch = pytest.MonkeyPatch()

        def __call__(self) -> None:
            for name in ("delete", "remove_folder"):
                if hasattr(LocalStorage, name):
                    self.patch.setattr(LocalStorage, name, self.fail)
            self.fail()

        def fail(self, *_: object) -> None:
            raise OSError(errno.EIO, "does not answer")

    away = Away()
    at_failpoint(monkeypatch, point, away)
    with pytest.raises(OSError, match="does not answer"):
        take(job)
    away.patch.undo()
    monkeypatch.undo()

    if point == "savepoint.put":
        assert [] == verify_savepoint(open_savepoint(f"{root.url}/s1"))
        dispose(f"{root.url}/s1", clock=job.clock)
    assert [] == verify_savepoint(take(job))


@pytest.mark.parametrize("put", ["put", "put_if_absent"])
def test_a_claim_whose_answer_is_lost_holds_nothing(job, root, monkeypatch, put):
    """Of a taker, a remover or a reader: the same process does it when the storage answers again."""
    saved = take(job)
    real = getattr(LocalStorage, put)

    def lose(storage: LocalStorage, path: str, data: bytes) -> None:
        real(storage, path, data)
        raise OSError(errno.EIO, "does not answer")

    acts = [lambda: take(job, "s2")] if put == "put_if_absent" else []
    for act in [*acts, lambda: restore_job(f"{job.storage.url}-new", saved.url, clock=job.clock)]:
        with monkeypatch.context() as patch:
            patch.setattr(LocalStorage, put, lose)
            with pytest.raises(OSError, match="does not answer"):
                act()

    take(job, "s2")
    dispose(saved.url, clock=job.clock)
    assert ["s2"] == root.list("")


def test_a_taker_that_was_taken_for_dead_gives_up(job, root, monkeypatch):
    """Before it puts savepoint.json it looks for its claim, and finds it overtaken."""
    later = FakeClock(job.clock.now() + TWO_DAYS)

    def collect() -> None:
        from_elsewhere(root.at("s1"), "writer.1.json")
        assert ["s1"] == collect_garbage(root.url, clock=later)

    at_failpoint(monkeypatch, "savepoint.copied", collect)

    with pytest.raises(
        SavepointError, match="s1: another process has claimed the folder meanwhile"
    ):
        take(job)
    assert [] == root.list("")


def test_a_taker_that_was_overtaken_leaves_the_folder_to_its_new_owner(job, root, monkeypatch):
    """Neither its files nor its claim are touched by who comes late."""
    at_failpoint(monkeypatch, "savepoint.copied", lambda: overtake(root.at("s1")))

    with pytest.raises(SavepointError, match="claimed the folder meanwhile"):
        take(job)
    assert ["queries", "writer.1.json", "writer.2.json"] == root.list("s1")
    assert root.exists("s1/queries/q/metadata")


def test_files_that_go_while_the_record_is_put_make_no_savepoint(job, root, monkeypatch):
    """The sizes are looked at after savepoint.json as well: what lacks a file does not stay."""
    put = type(root).put_if_absent

    def put_late(storage, path: str, data: bytes) -> bool:
        if path == "savepoint.json":
            (Path(root.url) / "s1/queries/q/commits/1").unlink()
        return put(storage, path, data)

    monkeypatch.setattr(type(root), "put_if_absent", put_late)

    with pytest.raises(CheckpointError, match="commits/1: is missing"):
        take(job)
    assert [] == root.list("")


def test_a_taker_that_is_overtaken_at_the_last_moment_takes_its_record_back(job, root, monkeypatch):
    """
    The claim is looked at after savepoint.json as well: who has claimed it may be removing files.
    """
    put = type(root).put_if_absent

    def put_and_lose(storage, path: str, data: bytes) -> bool:
        was_put = put(storage, path, data)
        if path == "savepoint.json":
            overtake(root.at("s1"))
        return was_put

    monkeypatch.setattr(type(root), "put_if_absent", put_and_lose)

    with pytest.raises(SavepointError, match="claimed the folder meanwhile"):
        take(job)
    assert ["queries", "writer.1.json", "writer.2.json"] == root.list("s1")


@pytest.mark.parametrize("arrives", ["savepoint.json", "job.json"])
def test_garbage_that_is_none_any_more_is_left(job, root, monkeypatch, arrives):
    """It was completed, or a job has begun there, between the look and the collector's claim."""
    root.put("s1/queries/q/metadata", b"{}")
    claim(root.at("s1"), "take", job.clock)
    from_elsewhere(root.at("s1"), "writer.1.json")
    at_failpoint(monkeypatch, "savepoint.collecting", lambda: root.put(f"s1/{arrives}", b"{}"))

    assert [] == collect_garbage(root.url, clock=FakeClock(job.clock.now() + TWO_DAYS))
    assert b"{}" == root.read("s1/queries/q/metadata")


def test_a_savepoint_that_was_completed_since_the_look_stays(job, root, monkeypatch):
    """Two takers of one name: the slower one finds the other's savepoint after its own claim."""
    first = take(job)
    saved = Path(first.url) / "savepoint.json"
    hidden = saved.rename(saved.with_name("writer.9.json"))  # as it looked before
    listed = type(root).list

    def list_early(storage, path: str) -> list[str]:
        found = listed(storage, path)
        if hidden.exists():
            hidden.rename(saved)
            return ["queries", "writer.1.json"]
        return found

    monkeypatch.setattr(type(root), "list", list_early)

    with pytest.raises(ConfigError, match="there is a savepoint of this name"):
        take(job)
    assert [] == verify_savepoint(open_savepoint(first.url))
    assert ["queries", "savepoint.json"] == root.list("s1")


def test_a_folder_with_a_claim_and_something_else_is_not_taken(job, root):
    """A claim alone gives no right to what somebody else has put there."""
    claim(root.at("s1"), "remove", FakeClock(job.clock.now() - TWO_DAYS))
    from_elsewhere(root.at("s1"), "writer.1.json")
    root.put("s1/notes.txt", b"mine")

    with pytest.raises(ConfigError, match="s1: the folder is not empty"):
        take(job)
    assert b"mine" == root.read("s1/notes.txt")


@pytest.mark.parametrize("step", ["savepoint.removed", "savepoint.collecting"])
def test_what_a_dead_reader_has_left_keeps_no_taker_away(job, root, step):
    """The savepoint was removed since then, by a process that died, too."""
    saved = take(job)
    from_elsewhere(root.at("s1"), reader_path(put_reader(root.at("s1"), job.clock, None)))
    later = FakeClock(job.clock.now() + TWO_DAYS)
    with dies_at(step):
        dispose(saved.url, clock=later)

    assert [] == verify_savepoint(take(job))


def test_a_reader_that_comes_too_late_and_dies_keeps_no_taker_away(job, root):
    """It has found no savepoint, and has not removed its own document."""
    put_reader(root.at("s1"), job.clock, None)

    assert [] == verify_savepoint(take(job))


# --- readers ------------------------------------------------------------------------------------


def test_many_readers_hold_a_savepoint(job, root):
    """While one of them is left nobody removes it; then anybody may."""
    saved = take(job)
    with pinned_savepoint(saved.url, job.clock) as one:
        with pinned_savepoint(saved.url, job.clock) as two:
            assert saved == one == two
        for _ in range(2):
            with pytest.raises(SavepointBusyError, match="s1: this savepoint is being restored"):
                dispose(saved.url, clock=job.clock)
        assert ["s1"] == [s.folder for s in find_savepoints(root)[0]]
        assert [] == [name for name in root.list("s1") if "writer" in name]

    dispose(saved.url, clock=job.clock)
    assert [] == root.list("")


@pytest.mark.slow
def test_retention_leaves_what_is_being_restored(job, root):
    """It goes on with the others, and says what stays."""
    first, second = take(job, "s1"), take(job, "s2")
    third = take(job, "s3")

    with pinned_savepoint(first.url, job.clock):
        assert ["s2"] == retain(root.url, Retention(keep=1), clock=job.clock)

    assert second.url not in {s.url for s in find_savepoints(root)[0]}
    assert ["s1"] == retain(root.url, Retention(keep=1, just_taken=third), clock=job.clock)


@pytest.mark.slow
def test_nothing_is_removed_while_a_restore_copies(job, root, tmp_path, monkeypatch):
    """A retention that comes in the middle leaves the savepoint, and the restore ends."""
    saved = take(job)
    take(job, "s2")
    seen: list[list[str]] = []
    at_failpoint(
        monkeypatch,
        "restore.copied",
        lambda: seen.append(retain(root.url, Retention(keep=1), clock=job.clock)),
    )

    restore_job(str(tmp_path / "new"), saved.url, clock=job.clock)

    assert [[]] == seen
    assert ["queries", "savepoint.json"] == root.list("s1")


@pytest.mark.slow
def test_a_reader_gives_way_to_a_remover(job, root, monkeypatch):
    """It looks for one after it has put its own document, so that one of the two sees the other."""
    saved = take(job)

    def read() -> None:
        with (
            pytest.raises(SavepointBusyError, match="being removed"),
            pinned_savepoint(saved.url, job.clock),
        ):
            pass

    at_failpoint(monkeypatch, "savepoint.removing", read)

    dispose(saved.url, clock=job.clock)
    assert [] == root.list("")


@pytest.mark.slow
def test_a_dead_reader_holds_nothing(job, root):
    """A process that was killed in a restore does not keep the savepoint for ever."""
    saved = take(job)
    program = (
        "import os, sys; from airflow_provider.runtime.base.clock import SystemClock\n"
        "from airflow_provider.runtime.savepoints.retention import pinned_savepoint\n"
        "with pinned_savepoint(sys.argv[1], SystemClock()): os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", program, saved.url], check=True)
    assert 1 == len([name for name in root.list("s1") if name.startswith("reader.")])

    dispose(saved.url, clock=job.clock)
    assert [] == root.list("")


@pytest.mark.slow
def test_a_reader_on_another_machine_is_believed_for_a_day(job, root):
    """Nobody here can know whether it lives; age counts there, and only there."""
    saved = take(job)
    began = to_iso(job.clock.now())
    reader = SavepointClaimRecord(nonce="0", owner=ELSEWHERE, began=began, purpose=READ)
    reader.put(root.at("s1"), "reader.0.json")
    with pytest.raises(SavepointBusyError, match="by another process on elsewhere"):
        dispose(saved.url, clock=job.clock)

    dispose(saved.url, clock=FakeClock(job.clock.now() + TWO_DAYS))
    assert [] == root.list("")


@pytest.mark.slow
def test_a_savepoint_that_may_only_be_read_is_restored():
    """On a mount or an account without the right to write nothing is put, and nothing is missed."""
    location = Path(tempfile.mkdtemp(prefix="read-only-"))  # pytest's own is root's alone
    job = EpochBench(location / "job", FakeSink()).begun().published(2)
    saved = take(job)
    with rights(location, ("job/savepoints/s1", 0o555)):
        restore_job(str(location / "new"), saved.url, clock=job.clock)

        with pytest.raises(ConfigError, match="cannot be removed: Permission denied"):
            dispose(saved.url, clock=job.clock)
    assert [] == verify_savepoint(open_savepoint(saved.url))
    shutil.rmtree(location)


def test_where_there_is_no_savepoint_nothing_is_put(job, root):
    """A wrong address leaves no folder behind."""
    with (
        pytest.raises(UnknownJobError, match="check the path"),
        pinned_savepoint(f"{root.url}/nowhere", job.clock),
    ):
        pass
    assert [] == root.list("")


# --- removers -----------------------------------------------------------------------------------


def test_a_savepoint_that_was_taken_anew_is_not_removed_for_the_old_one(job, root, monkeypatch):
    """Whoever decided on the old one looks again before it removes."""
    take(job)
    other = json.dumps({**json.loads(root.read("s1/savepoint.json")), "run_id": "another"})
    at_failpoint(
        monkeypatch,
        "savepoint.removing",
        lambda: root.put("s1/savepoint.json", other.encode()),
    )

    with pytest.raises(SavepointBusyError):
        dispose(f"{root.url}/s1", clock=job.clock)
    assert ["queries", "savepoint.json"] == root.list("s1")


def test_a_claim_is_looked_for_by_its_name(job, root):
    """Neither one of the same number by somebody else, nor one that was overtaken, is held."""
    location = root.at("s1")
    mine = claim(location, "take", job.clock)
    assert is_held(location, mine)

    overtake(location)
    assert not is_held(location, mine)
    location.delete("writer.2.json")
    location.put("writer.1.json", location.read("writer.1.json").replace(mine.nonce.encode(), b"0"))
    assert not is_held(location, mine)
