"""Batch histories of real streams: every batch is there once, over all attempts, however fast it was."""

from __future__ import annotations

import pytest
from driving import driving
from streams import failing_at, write_events

from airflow_provider.runtime.errors import RunFailedError
from airflow_provider.runtime.failures.restart_strategy import NoRestart
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.storage.open import open_storage
from tests.present import present

pytestmark = pytest.mark.spark

ONE_BY_ONE = {"files_per_batch": "1"}
FAST = 20


def run_of(location):
    """Return the directory of the job's only run."""
    directory = JobDirectory(open_storage(str(location.job_dir)))
    (run_id,) = directory.run_ids()
    return directory.run(run_id)


def history_of(location, query="out"):
    return present(run_of(location).history(query))


@pytest.mark.long
def test_a_history_misses_no_batch(spark, location):
    """Many batches end between two looks of the driver, and each is recorded with its rows."""
    write_events(location.input, *([(n, "a", n)] * (n % 3 + 1) for n in range(FAST)))
    final = location.run(spark, "no_state", params=ONE_BY_ONE)

    batches = history_of(location).batches
    assert [*range(FAST)] == [batch.batch for batch in batches]
    assert [n % 3 + 1 for n in range(FAST)] == [batch.rows for batch in batches]
    assert final.rows_read == sum(present(batch.rows) for batch in batches)
    assert all(batch.time_ms >= batch.duration_ms["addBatch"] > 0 for batch in batches)
    assert [1] * FAST == [batch.attempt for batch in batches]
    assert [*range(FAST)][::-1] == [present(b.backlog)["filesOutstanding"] for b in batches]
    assert sorted(batch.at for batch in batches) == [batch.at for batch in batches]


@pytest.mark.long
def test_attempts_go_on_in_one_history(spark, location):
    """
    A cancelled attempt leaves its batches; one that fails at once and the last one go on with them.
    """
    write_events(location.input, *([(10 * n, "a", 1), (10 * n, "b", 1)] for n in range(3)))
    with driving(spark, location) as driver:
        driver.read(3)
    # Late by the watermark of the batch before it, whether or not one without rows comes between.
    write_events(location.input, [(30, "a", 1)], [(40, "a", 1), (1, "a", 1)], first=3)
    with failing_at("sink.precommitted"), driving(spark, location, restart=NoRestart()) as driver:
        driver.end()
    assert isinstance(driver.error, RunFailedError)
    with driving(spark, location) as driver:
        driver.read(5)
        driver.stop(drain=True)
        final = driver.end()

    history = history_of(location)
    batches = history.batches
    with_rows = [batch for batch in batches if batch.rows]
    drained = batches[-1]
    assert final.queries["out"].batch_id == drained.batch
    assert [*range(len(batches))] == [batch.batch for batch in batches]
    assert [2, 2, 2, 1, 2] == [batch.rows for batch in with_rows]
    assert [1, 1, 1, 3, 3] == [batch.attempt for batch in with_rows]
    assert 1 == sum(batch.late_rows or 0 for batch in batches)
    assert "2026-01-01T00:00:15.000Z" in [batch.watermark for batch in batches]
    assert [] == [batch.lag_s for batch in batches if (batch.lag_s or 1) <= 0]
    assert max(batch.state_rows or 0 for batch in batches) > 0
    assert ("9999-12-31T23:59:59.999Z", None, 0) == (
        drained.watermark,
        drained.lag_s,
        drained.state_rows,
    )
    assert [2, 1, 0] == [present(batch.backlog)["filesOutstanding"] for batch in with_rows[:3]]
    assert {"starts", "unchanged", "grows"} & {batch.decision for batch in with_rows}
    assert present(with_rows[0].limits)["events"] >= 1
    assert [] == history.hours
    assert [spark.sparkContext.applicationId] * 3 == [
        attempt.application_id for attempt in run_of(location).attempts()
    ]
    datasets = {
        "sources": {"events": [{"namespace": "file", "name": str(location.input)}]},
        "sinks": {
            f"files:{location.output}": [{"namespace": "file", "name": str(location.output)}]
        },
    }
    assert [{"out": datasets}] * 3 == [attempt.datasets for attempt in run_of(location).attempts()]


def test_a_batch_run_is_one_batch(spark, location):
    """A BATCH run has one entry per query: its rows, and how long they took."""
    write_events(location.input, [(1, "a", 1), (2, "a", 1)], [(13, "a", 3)])
    location.run(spark, "tumbling_window", mode="batch")

    (batch,) = history_of(location).batches
    assert (0, 1, 3) == (batch.batch, batch.attempt, batch.rows)
    assert batch.time_ms > 0
    assert None is batch.watermark


def test_a_foreign_history_is_replaced(spark, location, caplog):
    """Whatever lies in its place, the job runs, and says so once."""
    write_events(location.input, [(1, "a", 1)])
    path = location.job_dir / "runs" / "r1" / "history" / "out.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"version": 1, "query": "other"}')
    final = location.run(spark, "no_state", run_id="r1")

    assert "FINISHED" == final.outcome
    assert 1 == sum("it is replaced" in record.getMessage() for record in caplog.records)
    assert [1] == [batch.rows for batch in history_of(location).batches]
