"""Any processes at the journal of one job, in any order: one of them at a time decides what counts."""

from __future__ import annotations

import pytest

from tests.property.journal_model import RULES, make, search


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("made")
    make(folder)
    return folder


@pytest.fixture(autouse=True)
def folding(monkeypatch):
    """Fold whatever is older than the newest operation."""
    monkeypatch.setattr("airflow_provider.runtime.jobdir.folding.KEEP_OPERATIONS", 1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("steps", "first"),
    [(4_000, 0), pytest.param(200_000, 1_000, marks=[pytest.mark.soak, pytest.mark.timeout(0)])],
)
def test_whatever_processes_do_at_once_one_history_counts(made, tmp_path, steps, first):
    """
    Paused, taken for dead, dead, or with a lost answer, between any two reads and writes: no two that
    may be alive write into one checkpoint, what counts was decided in the order of leases, what was
    rewound stays so, and no driver finds rows after the savepoint, or too few before it.
    """
    found = search(made, tmp_path / "work", steps, first=first)
    print(found)
    assert {} == found.wrong
    assert {"drivers", "operations", "folds", "overtaken", "deaths", "outages"} <= {*found.seen}


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_needed(made, tmp_path, monkeypatch, rule):
    """The model finds what goes wrong without it."""
    RULES[rule](monkeypatch)
    found = search(made, tmp_path / "work", 40_000)
    print(rule, found)
    assert found.wrong
