"""Joins whose rows stay in the state of a drain."""

from __future__ import annotations

from pathlib import Path

import pytest
from streams import FORMATS, read_with_pandas, run_in, write_events

from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.queries import skipped_eviction, stream_batch
from airflow_provider.runtime.storage.open import open_storage
from tests.present import present

pytestmark = [pytest.mark.spark, pytest.mark.long]

JOBS = Path(__file__).with_name("counted_jobs.py")
LEFT = (
    [(1, "a", 1), (2, "b", 2), (3, "a", 3)],
    [(14, "a", 4), (15, "b", 5), (15, "b", 5)],
    [(33, "c", 6), (35, "a", 7), (36, "a", 7)],
    [(41, "a", 1), (42, "a", 1), (60, "e", 1)],
)
RIGHT = tuple([(t + 1, k, v) for t, k, v in batch] for batch in LEFT)
FIRST, DRAIN = 0, len(LEFT)


@pytest.fixture
def kept(monkeypatch):
    """Return for each batch how many joins have kept their rows."""
    found: list[int] = []
    skip = skipped_eviction.skip_eviction

    def noted(*args):
        found.append(skip(*args))
        return found[-1]

    monkeypatch.setattr(stream_batch, "skip_eviction", noted)
    return found


def run(spark, location, query, *, store="rocksdb", mode="streaming"):
    """Run a query in *mode* over all input; return what it has written."""
    write_events(location.input, *LEFT)
    write_events(location.root / "right", *RIGHT)
    params = {
        "query": query,
        "right": str(location.root / "right"),
        "files_per_batch": "1",
        "output": str(location.root / f"output-{mode}"),
    }
    asked = {"entry": f"{JOBS}:counted", "allow_known_bugs": ("HELD-ROWS",), "mode": mode}
    job_dir = location.job_dir if mode == "streaming" else location.root / f"job-{mode}"
    run_in(spark, location, job_dir, "counted", params=params, conf=FORMATS[store], **asked)
    return read_with_pandas(Path(params["output"]))


def rows_in_state(location):
    """Return the rows in state after each batch of the only run."""
    directory = JobDirectory(open_storage(str(location.job_dir)))
    (only,) = directory.run_ids()
    history = present(directory.run(only).history("out"))
    return {each.batch: each.state_rows for each in history.batches}


@pytest.mark.parametrize("store", ["rocksdb", pytest.param("hdfs", marks=pytest.mark.whole)])
@pytest.mark.parametrize("query", ["joined_windows", "with_windows", "left_semi"])
def test_a_drain_leaves_the_rows_of_a_join_where_they_are(spark, location, kept, query, store):
    """
    The first batch and the drain keep the rows of the join. The others evict what the watermark
    has passed, and the rows of the output are those of BATCH.
    """
    rows = run(spark, location, query, store=store)

    assert rows == run(spark, location, query, mode="batch")
    assert rows
    assert {FIRST: 1, DRAIN: 1} == {batch: n for batch, n in enumerate(kept) if n}
    in_state = rows_in_state(location)
    assert in_state[DRAIN] > 0
    assert in_state[DRAIN - 1] < sum(map(len, LEFT + RIGHT))


def test_an_outer_join_evicts_its_rows(spark, location, kept):
    """It writes a row without a match when it evicts the row."""
    rows = run(spark, location, "outer")

    assert rows == run(spark, location, "outer", mode="batch")
    assert {0} == set(kept)
    assert rows_in_state(location)[DRAIN] == 0
