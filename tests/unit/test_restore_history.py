"""The history of a job against a savepoint, as facts: which rows the outputs have, and which it has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider.runtime.errors import CheckpointError
from airflow_provider.runtime.jobdir.journal import OperationRecord, RestorePlan, SetBack
from airflow_provider.runtime.savepoints.history import (
    JobHistory,
    QueryHistory,
    Written,
    why_not_of_history,
    why_written_twice,
)
from tests.present import present

NOW = "2026-01-01T00:00:00Z"
EPOCH = 5  # the last one that the savepoint has read
OWN, OTHER = ("job",), ("other",)


def written(*standing: tuple[int, int], **facts: Any) -> Written:
    return Written("id", "/committables/id", standing=standing, has_own=True, **facts)


def history(*ids: Written, changes: tuple[SetBack, ...] = (), **facts: Any) -> JobHistory:
    facts = {"lineage": OWN, "open": None, "starts": (), **facts}
    return JobHistory(
        "/job", changes={"q": changes}, queries={"q": QueryHistory("id", ids)}, **facts
    )


def back(batch: int, number: int = 3, *, keeps: bool = False, ended: bool = True) -> SetBack:
    return SetBack(number, batch, keeps_output=keeps, has_ended=ended)


def refusal(then: JobHistory, lineage: tuple[str, ...] = OWN) -> Exception | None:
    """Return why a savepoint, taken after two restores, is not of a history."""
    record = SimpleNamespace(
        lineage=[*lineage], restores=2, queries={"q": SimpleNamespace(epoch=EPOCH)}, taken=NOW
    )
    savepoint: Any = SimpleNamespace(url="/s", record=record)
    return why_not_of_history(then, savepoint, {"q": "q"})


def why(then: JobHistory, lineage: tuple[str, ...] = OWN) -> str:
    error = refusal(then, lineage)
    return str(error) if error is not None else ""


@pytest.mark.parametrize(
    "then",
    [
        history(),
        history(written((0, 9))),
        history(written((0, 9)), changes=(back(2, 1),)),  # before it was taken
        history(written((0, 5), reverted_from=6), changes=(back(5),)),
        history(written((0, 9)), changes=(back(-1, keeps=True, ended=False),)),  # never done
    ],
)
def test_a_savepoint_of_the_jobs_own_history(then):
    """Its rows are in the outputs, each once, and no others up to its epoch."""
    assert not why(then)


@pytest.mark.parametrize(
    ("then", "words"),
    [
        (history(written((0, 2), reverted_from=3), changes=(back(2),)), "from 3 on were reverted"),
        (
            history(written((0, 2), reverted_from=3), changes=(back(9, 4), back(2))),
            "by operation 3, so its epochs from 3 on were reverted",
        ),
        (history(written((3, 4)), changes=(back(2),)), "has written epoch 3 since"),
        (history(written(is_left=True), changes=(back(-1, keeps=True),)), "was reset after it"),
    ],
)
def test_rows_that_were_set_back_since_it_was_taken(then, words):
    """They are gone, others have come, or both cannot be told apart."""
    assert words in why(then)


def test_a_restore_that_is_open_may_have_reverted_rows():
    """It has to end first: nobody knows from which outputs they are gone."""
    plan = RestorePlan("/s0", NOW, {"q": {"batch": 2}}, reverts=True)
    opened = OperationRecord(number=3, token=1, began=NOW, restore=plan)
    then = history(written((0, 9)), changes=(back(2, ended=False),), open=opened)

    assert "a restore of /s0 began" in why(then)
    assert isinstance(refusal(then), CheckpointError)


@pytest.mark.parametrize(
    ("then", "words"),
    [
        (history(), ""),
        (history(written((6, 9))), ""),
        (history(written((4, 9))), "has written epoch 4 here"),
        (history(written((6, 9), copied=5)), "has begun here with another savepoint"),
        (history(written(is_left=True)), "was reset"),
    ],
)
def test_a_savepoint_of_another_job_directory(then, words):
    """It has read other rows up to its epoch, so none of these may be here."""
    found = why(then, OTHER)

    assert words in found
    assert bool(words) == bool(found)


def test_rows_that_would_be_written_again():
    """Those after the plan that nothing reverts."""
    now = {"q": QueryHistory("id", [written((0, 9))])}
    plan = RestorePlan("/s", NOW, {"q": {"batch": 5}})

    assert "has written epochs 6 to 9" in str(present(why_written_twice(now, plan)))
    assert why_written_twice(now, plan, {"q"}) is None
    assert why_written_twice(now, RestorePlan("/s", NOW, {"q": {"batch": 9}})) is None
