"""Records of old epochs: few documents, however many epochs, and nothing of them is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider.runtime.errors import SinkError
from airflow_provider.runtime.jobdir.epoch_documents import EpochRecord, HistoryRecord, PackRecord
from airflow_provider.runtime.jobdir.epochs import (
    KEEP_EPOCHS,
    PACK_EPOCHS,
    EpochListing,
    EpochRecords,
    fold,
)
from airflow_provider.runtime.sinks.committer import EpochCommitter
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.testing.job_directories import QUERY_ID
from tests.unit.counting import CountingStorage
from tests.unit.support import EpochBench, FakeFrame, FakeSink, counted

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


def a_record(epoch: int, *, run_id: str = "r1", token: int = 1) -> EpochRecord:
    part = {"name": "fake", "rows": 1, "run_rows": epoch + 1, "data": {"key": f"{epoch}-{token}"}}
    return EpochRecord(
        epoch=epoch,
        query_id=QUERY_ID,
        run_id=run_id,
        token=token,
        rows_read=epoch,
        sinks=[part],
        committed="then",
    )


@pytest.fixture
def records(tmp_path: Path) -> EpochRecords:
    return EpochRecords(LocalStorage(str(tmp_path)), QUERY_ID)


def put(records: EpochRecords, first: int, last: int, **values) -> None:
    for epoch in range(first, last + 1):
        records.put_published(a_record(epoch, **values))


def fold_all(records: EpochRecords, *keep_runs: str) -> None:
    fold(records, keep_runs=keep_runs, known={})


def test_few_records_stay_as_they_are(records):
    """The newest epochs keep a record of their own, whatever run they are of."""
    put(records, 0, KEEP_EPOCHS - 1)
    fold_all(records)

    assert KEEP_EPOCHS == len(records.find().published)
    assert ((), ()) == (records.find().folded, records.find().packed)


def test_what_is_not_kept_becomes_one_document(records):
    """Of streams a line per driver and run is left, which grows with each fold."""
    put(records, 0, 149)
    fold_all(records)
    put(records, 150, 299, token=2)
    fold_all(records)
    found = records.find()

    assert ((0, 199),) == found.folded
    assert (200, 299) == (found.published[0], found.published[-1])
    assert [(0, 149, 1, "r1"), (150, 199, 2, "r1")] == records.history().ranges
    assert [] == found.unpublished(0, 299)
    assert [1, 2, None] == [records.token_of(epoch, found) for epoch in (0, 299, 300)]


@pytest.mark.long
def test_what_may_be_reverted_keeps_its_records_in_few_documents(records):
    """
    Each record of a kept run is still there, many in one document, which is full at a thousand.
    """
    for first in range(0, 2300, 100):
        put(records, first, first + 99)
        fold_all(records, "r1")
    found = records.find()

    assert (((0, PACK_EPOCHS - 1), (1000, 1999), (2000, 2199)), ()) == (found.packed, found.folded)
    assert [] == found.unpublished(0, 2299)
    assert [a_record(epoch) for epoch in (0, 1500, 2250)] == [
        records.published(epoch) for epoch in (0, 1500, 2250)
    ]
    assert 2300 == len(list(records.all()))
    assert records.published(2300) is None


def test_a_run_that_is_no_longer_kept_is_unpacked(records):
    """When a later run takes its place, its records give way to a line; those of kept runs stay."""
    put(records, 0, 199)
    fold_all(records, "r1")
    put(records, 200, 399, run_id="r2")
    fold_all(records, "r1", "r2")
    fold_all(records, "r2")
    found = records.find()

    assert (((0, 199),), ((200, 299),)) == (found.folded, found.packed)
    assert [(0, 199, 1, "r1")] == records.history().ranges
    assert [] == found.unpublished(0, 399)


@pytest.mark.parametrize("keep_runs", [(), ("r1",)], ids=["folded", "packed"])
def test_a_fold_that_was_cut_short_is_folded_again(records, monkeypatch, keep_runs):
    """The same facts lie there twice, once, and the next fold removes what is too much."""
    put(records, 0, 149)
    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "delete_all", lambda *_: None)
        fold_all(records, *keep_runs)
        put(records, 150, 199)
        fold_all(records, *keep_runs)
    fold_all(records, *keep_runs)
    found = records.find()

    assert ((0, 99),) == (found.packed if keep_runs else found.folded)
    assert KEEP_EPOCHS == len(found.published)
    assert [] == found.unpublished(0, 199)
    assert 200 == len(list(records.all())) + (0 if keep_runs else 100)


def test_an_overtaken_driver_folds_nothing_away(records):
    """
    What a driver puts that was paused in a fold is true, and shorter than what is there by then.
    """
    put(records, 0, 399)
    fold_all(records)
    records.put_folded(HistoryRecord(ranges=[(0, 99, 1, "r1")]))
    records.put_pack(PackRecord(query_id=QUERY_ID, records=[a_record(7), a_record(8)]))

    assert [(0, 299, 1, "r1")] == records.history().ranges
    assert [] == records.find().unpublished(0, 399)
    fold_all(records)
    assert (((0, 299),), ()) == (records.find().folded, records.find().packed)


def test_a_record_that_vanishes_while_all_are_read(records, monkeypatch):
    """
    Whoever takes epochs back must see each of them, so a driver that folds meanwhile is an error.
    """
    put(records, 0, 3)
    found = records.find()
    records.forget(EpochListing(published=(2,)))
    monkeypatch.setattr(records, "find", lambda: found)

    with pytest.raises(SinkError, match="2.json: was removed while it was read"):
        list(records.all())


@pytest.mark.parametrize("keep_runs", [[], ["r1"]], ids=["a stream", "a run that may be undone"])
def test_a_driver_folds_while_it_runs(tmp_path, keep_runs):
    """However many batches a driver runs, a few hundred names are left, and a start reads a few."""
    sink = FakeSink()
    job = EpochBench(tmp_path / "job", sink)
    job.spark.begin()
    storage = CountingStorage(job.committables)

    def committer(run_id: str) -> EpochCommitter:
        return EpochCommitter(
            "q",
            storage=storage,
            logs=job.spark.logs,
            sinks=[sink],
            lease=job.lease(run_id),
            run_id=run_id,
            clock=job.clock,
            keep_runs=keep_runs,
        )

    driver = committer("r1")
    driver.recover()
    for epoch in range(450):
        job.spark.plan(epoch)
        driver.pre_commit(FakeFrame(), epoch, counted(1))
        job.spark.commit(epoch)
        driver.commit_ready()
    names = len(storage.at(QUERY_ID).list(""))
    storage.taken()
    committer("r2").recover()
    job.close()

    assert names <= 2 * KEEP_EPOCHS + 2
    assert [] == job.records.find().unpublished(0, 449)
    assert storage.taken()["read"] <= 2 * KEEP_EPOCHS
    assert list(range(450)) == sink.asked("commit")
