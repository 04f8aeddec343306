"""Savepoints in a store without links, where newer ones share the files of older ones."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from airflow_provider.runtime.base.clock import to_iso
from airflow_provider.runtime.base.host import ProcessIdentity
from airflow_provider.runtime.checkpoint.inventory import NeededFile
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.savepoints.catalog import find_savepoints
from airflow_provider.runtime.savepoints.record import (
    MANIFEST,
    REMOVE,
    TAKE,
    QuerySavepoint,
    SavedFile,
    SavepointClaimRecord,
    SavepointRecord,
    check_claimable,
    claim,
    end,
    last_claim,
    withdraw,
)
from airflow_provider.runtime.savepoints.retention import (
    collect_garbage,
    dispose,
    shared_files_beside,
)
from airflow_provider.runtime.storage.file_tree import FileFacts
from airflow_provider.runtime.storage.open import open_storage
from tests.present import present
from tests.unit.support import FakeClock

if TYPE_CHECKING:
    from airflow_provider.runtime.api.storages import Storage

SHARED = "s1/queries/q/shared"
OWN = "s1/queries/q/own"


@pytest.fixture
def root() -> Storage:
    """Return a folder of savepoints in a store; it knows no links."""
    return open_storage(f"memory://{uuid.uuid4().hex}/savepoints")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def make(root: Storage, name: str, clock: FakeClock, *files: SavedFile) -> None:
    """Put the record of a savepoint, and of its files those that lie in its own folder."""
    for file in files:
        if file.holder is None:
            root.put(f"{name}/queries/q/{file.path}", b"x" * file.size)
    query = QuerySavepoint(
        query_id="id",
        batch=0,
        planned=False,
        watermark="1970-01-01T00:00:00.000Z",
        drained=False,
        sources=[],
        operators=[],
        addressed=[],
        files=files,
    )
    SavepointRecord(
        name=name,
        taken=to_iso(clock.now()),
        origin="periodic",
        labels={},
        job="job",
        run_id=None,
        source="there",
        queries={"q": query},
    ).put(root, f"{name}/{MANIFEST}")


def make_two(root: Storage, clock: FakeClock) -> None:
    """Make s1, and s2 beside it, which names a file of s1 and does not have it."""
    make(root, "s1", clock, SavedFile("shared", 3), SavedFile("own", 2))
    make(root, "s2", clock, SavedFile("shared", 3, None, "s1"))


def leave_garbage(root: Storage, clock: FakeClock, name: str) -> None:
    """Leave what a taker leaves that was killed when its claim had ended."""
    root.put(f"{name}/queries/q/shared", b"xxx")
    end(root.at(name), claim(root.at(name), TAKE, clock))


def test_what_a_newer_savepoint_shares_stays_when_the_older_one_goes(root, clock):
    """Of a savepoint that is disposed of only those files go that no other one names."""
    make_two(root, clock)

    dispose(f"{root.url}/s1", clock=clock)

    assert ["s2"] == [each.folder for each in find_savepoints(root)[0]]
    assert b"xxx" == root.read(SHARED)
    assert not root.exists(OWN)


def test_what_was_shared_goes_with_the_last_savepoint_that_shares_it(root, clock):
    """The leftovers of an older savepoint are garbage as soon as no newer one names them."""
    make_two(root, clock)
    dispose(f"{root.url}/s1", clock=clock)
    assert [] == collect_garbage(root.url, clock=clock), "s2 still needs it"

    dispose(f"{root.url}/s2", clock=clock)

    assert ["s1"] == collect_garbage(root.url, clock=clock)
    assert [] == root.list("s1") == root.list("s2")


def test_garbage_stays_while_somebody_takes_a_savepoint_beside_it(root, clock):
    """A taker may be about to name these files: they go when it has ended, and not before."""
    leave_garbage(root, clock, "s1")
    taking = claim(root.at("s2"), TAKE, clock)

    assert [] == collect_garbage(root.url, clock=clock)
    assert root.exists(SHARED)
    assert present(last_claim(root.at("s1"))).ended, "it is still the mark of garbage"

    withdraw(root.at("s2"), taking)
    assert ["s1"] == collect_garbage(root.url, clock=clock)
    assert [] == root.list("s1")


def test_garbage_stays_while_a_savepoint_beside_it_cannot_be_read(root, clock):
    """What a damaged savepoint shares is not known, so nothing that it might share is removed."""
    leave_garbage(root, clock, "s1")
    root.put(f"s2/{MANIFEST}", b"{")

    assert [] == collect_garbage(root.url, clock=clock)
    assert root.exists(SHARED)


def test_garbage_that_another_process_removes_is_left_to_it(root, clock):
    """Two that collect one folder are kept apart by its claim."""
    leave_garbage(root, clock, "s1")
    elsewhere = ProcessIdentity(host="elsewhere", space="other/pid:[1]", processes=((7, 7),))
    began = to_iso(clock.now())
    SavepointClaimRecord(token=2, purpose=REMOVE, nonce="n", owner=elsewhere, began=began).put(
        root, "s1/writer.2.json"
    )

    assert [] == collect_garbage(root.url, clock=clock)
    assert root.exists(SHARED)


def test_the_name_of_a_savepoint_is_not_given_again_while_its_files_are_shared(root, clock):
    """A new savepoint of that name would put its files where those of the newer one lie."""
    make_two(root, clock)
    dispose(f"{root.url}/s1", clock=clock)

    with pytest.raises(ConfigError, match="s1: a savepoint of this name was disposed of"):
        check_claimable(root.at("s1"), root.list("s1"))
    assert b"xxx" == root.read(SHARED)


# --- what a new savepoint need not copy ---------------------------------------------------------


def named_by_the_next(root: Storage, clock: FakeClock, *, tag: str | None = "t1") -> SavedFile:
    """Return how a savepoint that is taken now, s9, would name the shared file."""
    claim(root.at("s9"), TAKE, clock)
    shared = shared_files_beside(root.at("s9"), clock)
    (named,) = shared.where("id", [NeededFile("shared", 3)], {"shared": FileFacts(3, tag)})
    return named


def make_two_tagged(root: Storage, clock: FakeClock) -> None:
    """Make two as make_two does; the one that names the file is the first of a listing."""
    make(root, "s1", clock, SavedFile("shared", 3, "t1"))
    make(root, "s0", clock, SavedFile("shared", 3, "t1", "s1"))


def test_a_shared_file_is_named_where_its_bytes_lie(root, clock):
    """The holder is the folder that has the file, and not a savepoint that only names it."""
    make_two_tagged(root, clock)

    assert SavedFile("shared", 3, "t1", "s1") == named_by_the_next(root, clock)


@pytest.mark.parametrize("tag", ["t2", None])
def test_a_file_that_was_replaced_since_is_copied(root, clock, tag):
    """
    A file of the same name and size is another one when the store's tag differs, or says nothing.
    """
    make_two_tagged(root, clock)

    assert SavedFile("shared", 3, tag) == named_by_the_next(root, clock, tag=tag)


def test_nothing_is_shared_while_garbage_beside_it_is_removed(root, clock):
    """What is being removed may be what a new savepoint would name, so the new one copies all."""
    make_two_tagged(root, clock)
    claim(root.at("s2"), REMOVE, clock)

    assert SavedFile("shared", 3, "t1") == named_by_the_next(root, clock)
