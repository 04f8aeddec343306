"""Folding of the journal: fewer documents, the same answers, and numbers that stay taken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.runtime.api.sinks import OpenFence
from airflow_provider.runtime.errors import LeaseLostError
from airflow_provider.runtime.jobdir import folding
from airflow_provider.runtime.jobdir.checkpoint_locations import left_locations, next_number
from airflow_provider.runtime.jobdir.folding import fold_operations, meaningful
from airflow_provider.runtime.jobdir.journal import Journal, RestorePlan, SetBack
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.savepoints.restores import Restores
from airflow_provider.runtime.storage.local import LocalStorage
from tests.dying import dies_at
from tests.present import present

NOW = "2026-01-01T00:00:00Z"
KEEP = 3


@pytest.fixture(autouse=True)
def keeping(monkeypatch):
    """Let fewer operations keep their documents than fifty."""
    assert 50 == folding.KEEP_OPERATIONS
    monkeypatch.setattr(folding, "KEEP_OPERATIONS", KEEP)


@pytest.fixture
def directory(tmp_path) -> JobDirectory:
    return JobDirectory(LocalStorage(str(tmp_path / "job")))


def restore(
    directory: JobDirectory, savepoint: str | None, batch: int, *, keep: bool = False, ends=True
) -> int:
    """Record a restore of a query, and return its number."""
    plan = RestorePlan(
        savepoint=savepoint,
        taken=NOW if savepoint else None,
        queries={"q": {"query_id": None, "from": "q", "batch": batch, "replaces": None}},
        keep_outputs=keep,
    )
    record = Restores(directory).begin(OpenFence(7), NOW, plan)
    directory.storage.put(f"queries/q/checkpoint-{record.number}/metadata", b"{}")
    return (Restores(directory).end(record) if ends else record).number


def fold(directory: JobDirectory) -> None:
    fold_operations(directory.storage, Restores(directory).is_start)


def there(directory: JobDirectory) -> list[str]:
    return sorted(directory.storage.list("operations"))


def test_what_still_counts_is_the_same(directory):
    """Changes, starts, the last restore, the locations and who has made them."""
    rewind = f"{directory.url}/savepoints/rewind-r1"
    for savepoint, batch in (("/s1", 4), ("/s2", 2), (rewind, 9), ("/s1", 8), (None, -1)):
        restore(directory, savepoint, batch)
    for _ in range(4):
        Restores(directory).begin(OpenFence(8), NOW, rewinds=["r2"], by="rewind")
    before = Journal(directory.storage)
    changes, starts = before.changes()["q"], [*Restores(directory).starts()]
    newest, last, left = (
        before.newest(),
        before.last_restore(),
        left_locations(directory.storage, present(before.newest())),
    )

    fold(directory)

    after = Journal(directory.storage)
    assert ["1-6.json", "7.1.json", "8.1.json", "9.1.json"] == there(directory)
    assert (newest, last) == (after.newest(), after.last_restore())
    assert left == left_locations(directory.storage, present(after.newest()))
    assert 7 == present(after.made(5)).token
    assert [SetBack(5, -1, keeps_output=False, has_ended=True)] == after.changes()["q"]
    assert changes[0] == after.changes()["q"][0]
    assert [4, 2] == [start.number for start in Restores(directory).starts()]
    assert starts[0] == next(Restores(directory).starts())
    assert 10 == next_number(directory.storage)


def test_it_is_folded_again_and_again(directory):
    """What was folded before is in the next document, and its own is removed."""
    for number in range(30):
        restore(directory, f"/s{number % 2}", number)
        fold(directory)
        assert 2 * (2 * KEEP - 1) + 1 >= len(there(directory))

    assert [*range(30, 0, -1)] == [
        change.number for change in Journal(directory.storage).changes()["q"]
    ]
    assert {"/s0", "/s1"} == {start.plan.savepoint for start in Restores(directory).starts()}


def test_nothing_is_folded_while_a_restore_is_open(directory):
    """Who continues it, and what must not run meanwhile, is read from its document."""
    restore(directory, "/s1", 1, ends=False)
    for _ in range(9):
        Restores(directory).begin(OpenFence(8), NOW, rewinds=["r2"], by="rewind")

    fold(directory)

    assert 10 == len(there(directory))


def test_a_number_that_was_folded_stays_taken(directory):
    """A process that chose it before, and was paused, does nothing and rewinds no run."""
    for number in range(9):
        restore(directory, "/s1", number)

    class Late(OpenFence):
        def check(self) -> None:  # the last look before the record is put
            fold(directory)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("airflow_provider.runtime.savepoints.restores.next_number", lambda _: 2)
        with pytest.raises(LeaseLostError):
            Restores(directory).begin(Late(3), NOW, rewinds=["r1"], by="rewind")

    assert directory.run("r1").rewound() is None
    assert 9 == present(Journal(directory.storage).newest()).number
    assert [*range(9, 0, -1)] == [c.number for c in Journal(directory.storage).changes()["q"]]


def test_a_death_between_the_fold_and_the_removal(directory):
    """The documents that were folded do not count, and go with the next fold."""
    for number in range(9):
        restore(directory, "/s1", number)
    before = Journal(directory.storage).changes()
    with dies_at("operations.folded"):
        fold(directory)
    assert 19 == len(there(directory))
    assert before == Journal(directory.storage).changes()

    for number in range(9, 12):
        restore(directory, "/s1", number)
    fold(directory)
    assert 2 * KEEP + 1 == len(there(directory))


def test_what_is_no_operation_stays(directory, caplog):
    """Files of other names, and of other contents."""
    for number in range(9):
        restore(directory, "/s1", number)
    strange = {"notes.txt": "mine", "1-2.json": "{}", "0.1.json": "mine"}
    for name, text in strange.items():
        directory.storage.put(f"operations/{name}", text.encode())

    fold(directory)

    assert {*strange} <= {*there(directory)}
    assert "operations/1-2.json" in caplog.text


def test_a_reader_that_has_listed_what_is_removed_does_not_guess(directory):
    """A restore that is listed and not there says so: another history would follow from the rest."""
    for number in range(9):
        restore(directory, "/s1", number)
    listed = Journal(directory.storage)
    fold(directory)

    with pytest.raises(OSError, match=r"operations/\d.2.json is listed and not there"):
        listed.changes()


CHANGES = st.lists(
    st.builds(SetBack, st.just(0), st.integers(-1, 9), st.booleans(), st.booleans()), max_size=9
)


@given(CHANGES, st.integers(0, 10), st.integers(0, 9))
def test_a_change_that_is_left_out_decides_nothing(drawn, since, epoch):
    """For any savepoint: how far it was set back before its epoch since, and whether output stayed."""
    changes = [change._replace(number=len(drawn) - n) for n, change in enumerate(drawn)]

    def verdict(changes):
        later = [change for change in changes if change.number > since]
        behind = [change for change in later if change.batch < epoch]
        ended = min((change.batch for change in behind if change.has_ended), default=None)
        return bool(behind), ended, any(change.keeps_output for change in later)

    assert verdict(changes) == verdict(meaningful(changes))
