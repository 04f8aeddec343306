"""Batches whose size follows a target time."""

from __future__ import annotations

import statistics
import threading
from collections import Counter
from typing import Any

import pytest
from streams import START, Location, read_with_pandas, write_events

from airflow_provider.runtime.driver.run import run_job
from airflow_provider.runtime.errors import RunCancelledError
from airflow_provider.runtime.jobdir.epochs import EpochRecords
from airflow_provider.runtime.jobdir.query_reports import BatchSizing
from airflow_provider.runtime.storage.open import open_storage
from tests.present import present

pytestmark = pytest.mark.spark

TARGET_S = 2.0
ROWS_PER_FILE = 100
WARM_UP = 3  # batches that still start what the others use, and learn


def write_files(location: Location, files: int, *, width: int) -> list[tuple[int, int]]:
    """Write files of rows that are *width* characters wide; return what the job makes of them."""
    rows = [(n % 60, "k" * width, n) for n in range(files * ROWS_PER_FILE)]
    parts = [rows[at : at + ROWS_PER_FILE] for at in range(0, len(rows), ROWS_PER_FILE)]
    write_events(location.input, *parts)
    return sorted((START + t, v) for t, _, v in rows)


def run(spark: Any, location: Location, **asked: Any) -> tuple[list[int], list[BatchSizing]]:
    """Run the slow job; return the rows of each batch, and what progress said of its pace."""
    said: dict[int, BatchSizing] = {}

    def note(progress: Any) -> None:
        query = progress.queries["out"]
        if query.batch_sizing.last_batch_s is not None:
            said[query.rows_read] = query.batch_sizing

    ask = location.ask("slow_rows", target_batch_s=TARGET_S, **asked)
    run_job(ask, spark=spark, on_progress=note)
    return batches_of(location), list(said.values())


def batches_of(location: Location) -> list[int]:
    """Return the rows of each batch that has read any."""
    folder = location.job_dir / "queries" / "out" / "committables"
    (query_id,) = (child.name for child in folder.iterdir())
    records = EpochRecords(open_storage(str(folder)), query_id)
    epochs = [present(records.published(epoch)) for epoch in records.find().published]
    read = [present(epoch.rows_read) for epoch in epochs]
    return [now - before for before, now in zip([0, *read], read, strict=False) if now > before]


@pytest.mark.parametrize(
    ("files", "width", "params"),
    [
        # tests/property/test_batch_sizing.py has the model of many loads.
        pytest.param(
            *(190, 10, {"files_per_batch": "70"}),
            id="first batch too large",
            marks=pytest.mark.whole,
        ),
        pytest.param(120, 1000, {}, id="first batch too small", marks=pytest.mark.soak),
    ],
)
def test_batches_come_to_take_the_target_time(spark, location, files, width, params):
    """
    At a millisecond a row a backlog is cut from 70 files a batch down to what takes two seconds, and
    a careful first batch of a few files is followed by larger ones; every row is written once.
    """
    expected = write_files(location, files, width=width)

    batches, said = run(spark, location, params=params)

    print(batches, *said, sep="\n")  # for whoever looks into a failure
    assert expected == read_with_pandas(location.output)
    steady_s = statistics.median(present(each.last_batch_s) for each in said[WARM_UP:])
    steady_rows = statistics.median(batches[WARM_UP:-1])
    assert TARGET_S == pytest.approx(steady_s, rel=0.4)
    if params:
        assert 7000 == max(batches)
        assert steady_rows < 7000 / 1.5
        assert "files" == said[-1].sources["events"].unit
    else:
        assert batches[0] < 600
        assert batches[0] * 2 < steady_rows
        assert "bytes" == said[-1].sources["events"].unit


@pytest.mark.soak
def test_rows_of_a_run_without_end_are_paced_by_a_source_in_python(spark, location):
    """
    The job's limit of 3,000 rows is a maximum: a second's worth is read in its place, to the last.
    """
    stop, seen = threading.Event(), []

    def note(progress: Any) -> None:
        seen.append(progress.queries["out"])
        if progress.rows_read == 7000 and sum(batches_of(location)) == 7000:
            stop.set()  # all is published, too

    params = {"rows": "3000", "total": "7000"}
    ask = location.ask("counting", until="stopped", target_batch_s=1.0, params=params)
    with pytest.raises(RunCancelledError):
        run_job(ask, spark=spark, stop=stop, on_progress=note)

    assert [(n,) for n in range(7000)] == read_with_pandas(location.output)
    batches = batches_of(location)
    assert 3000 == batches[0]
    assert max(batches[2:]) <= 2000
    (source,) = seen[-1].batch_sizing.sources.values()
    assert ("rows", 3000) == (source.unit, source.ceiling)


def test_what_cannot_be_paced_is_left_alone_and_said(spark, location):
    """
    A source that is not to be sized keeps its limit, whatever the batches take, and progress says so.
    Beside the rows that are read it says how many of them are published.
    """
    expected = write_files(location, 2, width=10)
    seen: list[Any] = []
    ask = location.ask("unpaced", target_batch_s=0.001, params={"files_per_batch": "1"})

    run_job(ask, spark=spark, on_progress=seen.append)

    assert Counter(v for _, v in expected) == Counter(
        v for _, v in read_with_pandas(location.output)
    )
    assert [100, 100] == batches_of(location)
    queries = [progress.queries["out"] for progress in seen]
    assert [q.rows_read for q in queries] == [q.sinks[0].rows for q in queries]
    assert (200, False) == (queries[-1].sinks[0].rows, seen[-1].rows_minimum)
    batch_sizing = seen[-1].queries["out"].batch_sizing
    assert ("left alone", {"events": "switched off for this source"}) == (
        batch_sizing.decision,
        batch_sizing.left,
    )
