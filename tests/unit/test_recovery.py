"""Recovery of a query's epochs at a start, from the records and Spark's log alone."""

from __future__ import annotations

import pytest

from airflow_provider.runtime.errors import CheckpointError
from airflow_provider.runtime.jobdir.epoch_documents import EpochRecord, HistoryRecord
from airflow_provider.runtime.jobdir.epochs import EpochListing
from airflow_provider.runtime.sinks.recovery import Recovery, check_complete, plan_recovery


@pytest.mark.parametrize(
    ("found", "tokens", "expected"),
    [
        pytest.param(EpochListing(), {}, Recovery(), id="nothing"),
        pytest.param(
            EpochListing((), {0: (1,)}), {}, Recovery(waiting=((0, 1),)), id="not published"
        ),
        pytest.param(
            EpochListing((), {0: (1, 3), 1: (1,)}),
            {},
            Recovery(waiting=((0, 1), (0, 3), (1, 1))),
            id="staged by two drivers: both wait until one is published",
        ),
        pytest.param(
            EpochListing((0,), {0: (1,)}),
            {0: 1},
            Recovery(recorded=((0, 1),)),
            id="died at the end",
        ),
        pytest.param(
            EpochListing((0,), {0: (1, 2)}),
            {0: 1},
            Recovery(recorded=((0, 1),), obsolete=((0, 2),)),
            id="published, then staged by a driver that had been taken for dead",
        ),
        pytest.param(
            EpochListing((7,), {0: (2,)}),
            {0: 1},
            Recovery(obsolete=((0, 2),)),
            id="published and folded",
        ),
    ],
)
def test_what_becomes_of_each_pre_commit(found, tokens, expected):
    """What is published is never published anew, and what is not yet published loses no staging."""
    assert expected == plan_recovery(found, tokens)


@pytest.mark.parametrize(
    ("found", "last_commit", "settled"),
    [
        pytest.param(EpochListing(), -1, -1, id="nothing"),
        pytest.param(EpochListing((0, 1)), 1, 1, id="all published"),
        pytest.param(EpochListing((0,), {1: (1,)}), 1, 0, id="the last one waits"),
        pytest.param(EpochListing((0,), {1: (1,)}), 0, 0, id="one more is open"),
        pytest.param(EpochListing((0, 2), {1: (1,)}), 2, 0, id="one in between waits"),
        pytest.param(EpochListing((2,), folded=((0, 1),)), 2, 2, id="older ones folded"),
        pytest.param(EpochListing(folded=((0, 7),)), 7, 7, id="a restored checkpoint"),
        pytest.param(
            EpochListing((), {4: (1,)}), 4, 3, id="begun on a checkpoint of another origin"
        ),
    ],
)
def test_records_that_agree_with_sparks_log(found, last_commit, settled):
    """
    Every batch that Spark committed is published or waits, and nothing more is published; the
    first that waits is known.
    """
    assert settled == check_complete(found, last_commit, where="there", log="the log")


@pytest.mark.parametrize(
    ("found", "last_commit", "said"),
    [
        pytest.param(
            EpochListing((0, 1)), 0, r"the log: epoch 1 is published, .* batch 0", id="rolled back"
        ),
        pytest.param(
            EpochListing(packed=((0, 5),)), 3, r"epoch 5 is published, .* batch 3", id="folded, too"
        ),
        pytest.param(
            EpochListing(), 0, r"batch 0 is committed, .* in there;", id="nobody recorded"
        ),
        pytest.param(EpochListing((0,)), 1, "batch 1 is committed", id="the last one is missing"),
        pytest.param(
            EpochListing((0,), {2: (1,)}), 2, "batch 1 is committed", id="one in between is missing"
        ),
        pytest.param(
            EpochListing((4,), folded=((0, 1),), packed=((3, 3),)),
            4,
            "batch 2 is committed",
            id="one before the newest published is missing",
        ),
    ],
)
def test_records_that_contradict_sparks_log(found, last_commit, said):
    """
    A checkpoint that was rolled back, or that another program has used, is refused with its location.
    """
    with pytest.raises(CheckpointError, match=said):
        check_complete(found, last_commit, where="there", log="the log")


# --- the history --------------------------------------------------------------------------------


def record(epoch: int, token: int = 1, run_id: str = "r") -> EpochRecord:
    return EpochRecord(epoch=epoch, query_id="q", run_id=run_id, token=token, rows_read=0, sinks=[])


def test_epochs_fold_into_stretches():
    """Epochs of one driver and run are one stretch; another driver or run begins the next."""
    history = HistoryRecord().with_epochs([record(0), record(1), record(2, token=2)])
    history = history.with_epochs([record(3, token=2), record(4, token=2, run_id="s")])

    assert [(0, 1, 1, "r"), (2, 3, 2, "r"), (4, 4, 2, "s")] == history.ranges
    assert 4 == history.last
    assert [1, 1, 2, 2, 2, None] == [history.token_of(epoch) for epoch in range(6)]


def test_folding_again_is_folding():
    """
    A start that died between the history and the removal of records folds the same ones again.
    """
    once = HistoryRecord().with_epochs([record(0), record(1)])

    assert once == once.with_epochs([record(0), record(1)])


def test_a_history_without_epochs():
    """An empty history ends before the first epoch."""
    assert (-1, None) == (HistoryRecord().last, HistoryRecord().token_of(0))
