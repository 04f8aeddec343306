"""Real processes die at every step of the two-phase protocol, and again while they recover."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest

from airflow_provider.runtime.base import failpoints
from tests.crash.forking import run_forked
from tests.crash.protocol import SINKS, open_job, rows_of, taken_of
from tests.unit.support import HandStagedFiles

pytestmark = pytest.mark.slow

PUBLISHING = ("files.published_one", "sink.published", "sink.committed", "sink.forgotten")
STEPS = ("lease.acquired", "sink.staged", "sink.quarantined", "sink.precommitted", *PUBLISHING)
RECOVERY = ("recover.planned", "recover.aborted", "recover.published", "recover.cleaned")
REVERTING = (
    "files.reverted_one",
    "revert.removed_one",
    "revert.done",
)
EPOCHS = 5


def run(root: Path, *arguments: str, dies_at: str = "") -> int:
    code, errors = run_forked("tests.crash.protocol", str(root), *arguments, dies_at=dies_at)
    assert code in {0, failpoints.CRASH_EXIT}, errors[-3000:]
    return code


def visible(root: Path) -> list[Counter[str]]:
    return [Counter(HandStagedFiles(root / name).visible()) for name in SINKS]


def rows(first: int, upto: int) -> list[Counter[str]]:
    """Return the rows of some epochs in each sink."""
    written = Counter(row for epoch in range(first, upto) for row in rows_of(epoch))
    taken = Counter(row for epoch in range(first, upto) for row in taken_of(epoch))
    return [written, written, taken]


def are_within(seen: list[Counter[str]], truth: list[Counter[str]]) -> bool:
    return all(one <= other for one, other in zip(seen, truth, strict=True))


def check_at_rest(root: Path, upto: int, *, first: int = 0) -> None:
    """
    All is published once, nothing is staged, and no pre-commit is left; the last run, which began
    with the epoch *first*, has counted what it has kept.
    """
    assert rows(0, upto) == visible(root)
    last = open_job(root).record(upto - 1)
    assert last is not None
    assert sum(len(taken_of(epoch)) for epoch in range(first, upto)) == last.quarantined_rows
    assert [] == list(root.glob(".*"))
    assert {} == open_job(root).records.find().precommitted


@pytest.mark.parametrize("point", [*STEPS, *(f"{p}:3" for p in STEPS if p != "lease.acquired")])
def test_a_driver_dies_at_every_step(tmp_path, point):
    """After a death at any step of the first or a later epoch, one more start makes all exact."""
    assert failpoints.CRASH_EXIT == run(tmp_path, "drive", "r1", str(EPOCHS), dies_at=point)
    assert are_within(visible(tmp_path), rows(0, EPOCHS))

    assert 0 == run(tmp_path, "drive", "r1", str(EPOCHS))
    check_at_rest(tmp_path, EPOCHS)


@pytest.mark.parametrize("again", RECOVERY)
def test_a_driver_dies_again_while_it_recovers(tmp_path, again):
    """
    Whatever the first death left, a second one at any step of the recovery from it loses nothing.
    """
    for upto, point in enumerate(itertools.chain(STEPS, PUBLISHING), start=2):
        assert failpoints.CRASH_EXIT == run(tmp_path, "drive", "r1", str(upto * 2), dies_at=point)
        died = run(tmp_path, "drive", "r1", str(upto * 2), dies_at=again)
        # A first death before anything was planned leaves nothing to recover from.
        assert failpoints.CRASH_EXIT == died or upto == 2
        dying_there = PUBLISHING[upto % len(PUBLISHING)]
        run(tmp_path, "drive", "r1", str(upto * 2), dies_at=dying_there)
        assert 0 == run(tmp_path, "drive", "r1", str(upto * 2))
        check_at_rest(tmp_path, upto * 2)


def test_a_driver_dies_while_it_folds_old_records(tmp_path):
    """Records of earlier runs are folded into ranges; a death in there folds nothing twice."""
    assert 0 == run(tmp_path, "drive", "r1", str(EPOCHS))
    upto = str(EPOCHS + 3)
    assert failpoints.CRASH_EXIT == run(tmp_path, "drive", "r2", upto, dies_at="recover.folded")
    assert 0 == run(tmp_path, "drive", "r2", upto)

    check_at_rest(tmp_path, EPOCHS + 3, first=EPOCHS)
    records = open_job(tmp_path).records
    assert [[0, EPOCHS - 1, 1, "r1"]] == [list(s) for s in records.history().ranges]
    found = records.find()
    assert ((EPOCHS, EPOCHS),) == found.packed
    assert (EPOCHS + 1, EPOCHS + 2) == found.published


@pytest.mark.parametrize("point", [*REVERTING, "files.reverted_one:3", "revert.removed_one:2"])
def test_a_revert_dies_at_every_step(tmp_path, point):
    """
    A revert that died anywhere is completed by the next, and takes exactly what was written after
    the epoch.
    """
    assert 0 == run(tmp_path, "drive", "r1", "3")
    assert failpoints.CRASH_EXIT == run(
        tmp_path, "drive", "r2", "7", dies_at="files.published_one:9"
    )
    assert failpoints.CRASH_EXIT == run(tmp_path, "revert", "r2", "2", dies_at=point)
    assert are_within(rows(0, 3), visible(tmp_path))
    assert are_within(visible(tmp_path), rows(0, 7))

    assert 0 == run(tmp_path, "revert", "r2", "2")
    assert rows(0, 3) == visible(tmp_path)
    assert [] == list(tmp_path.glob(".*"))
