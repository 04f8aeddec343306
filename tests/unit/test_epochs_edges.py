"""Records of epochs that contradict themselves, or vanish while they are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider.runtime.errors import CorruptDocumentError, SinkError
from airflow_provider.runtime.jobdir.epoch_documents import EpochRecord, HistoryRecord, PackRecord
from airflow_provider.runtime.jobdir.epochs import EpochRecords
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.testing.job_directories import QUERY_ID

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def records(tmp_path: Path) -> EpochRecords:
    return EpochRecords(LocalStorage(str(tmp_path)), QUERY_ID)


def a_record(epoch: int, *, run_id: str = "r1") -> EpochRecord:
    return EpochRecord(
        epoch=epoch,
        query_id=QUERY_ID,
        run_id=run_id,
        token=1,
        rows_read=None,
        sinks=[],
        committed="then",
    )


@pytest.mark.parametrize(
    ("ranges", "wrong"),
    [
        ([(0, 9, 1, "r1"), (5, 12, 2, "r1")], 1),
        ([(0, 9, 1, "r1"), (9, 12, 2, "r1")], 1),
        ([(7, 3, 1, "r1")], 0),
    ],
)
def test_stretches_that_overlap_or_run_backwards_are_damage(ranges, wrong):
    """
    Of one epoch two drivers cannot both have been published, so such a history is not believed.
    """
    raw = HistoryRecord(query_id=QUERY_ID, ranges=ranges).to_dict()

    with pytest.raises(CorruptDocumentError, match=rf"ranges\[{wrong}\]: expected epochs after"):
        HistoryRecord.from_dict(raw, where="history.json")


def test_a_gap_between_stretches_is_none():
    """Epochs that wrote nothing have no stretch; those around them do."""
    history = HistoryRecord(query_id=QUERY_ID, ranges=[(0, 3, 1, "r1"), (6, 6, 2, "r1")])

    assert history == HistoryRecord.from_dict(history.to_dict(), where="history.json")


@pytest.mark.parametrize(
    ("packed", "said"),
    [
        ([], "records: expected one or more"),
        ([a_record(4), a_record(6)], r"records\[1\]: expected the next epoch of the same run"),
        ([a_record(4), a_record(4)], r"records\[1\]: expected the next epoch of the same run"),
        ([a_record(4), a_record(5, run_id="r2")], r"records\[1\]: expected the next epoch"),
    ],
)
def test_a_pack_that_is_not_one_run_without_a_gap_is_damage(packed, said):
    """
    An epoch is found in a pack by its location, so a pack with a gap would give another one's record.
    """
    raw = PackRecord(query_id=QUERY_ID, records=packed).to_dict()

    with pytest.raises(CorruptDocumentError, match=said):
        PackRecord.from_dict(raw, where="pack.json")


def test_a_precommit_that_another_driver_has_published_is_said_to_be_gone(records):
    """It is an error of this moment, by the record's address, and not a missing file."""
    pending = a_record(3)
    assert records.put_precommit(pending)
    assert pending.sinks == records.precommitted(3, 1).sinks

    with pytest.raises(SinkError, match=rf"{QUERY_ID}/3\.2\.json: was removed while it was read"):
        records.precommitted(3, 2)
