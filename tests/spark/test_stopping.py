"""Real streams stopped from outside, with and without drain, with and without a savepoint."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from driving import CLOCK, STREAM, driving, savepoint_url
from streams import Location, read_with_pandas, windows_of, write_events

from airflow_provider.hooks.spark_streaming import SparkStreamingHook
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.control.stop import request_stop
from airflow_provider.runtime.errors import (
    JobDrainedError,
    RunCancelledError,
    RunFailedError,
    SparkStreamError,
    StopError,
    StopRefusedError,
    UnknownJobError,
)
from airflow_provider.runtime.errors.explanation import FailureClass
from airflow_provider.runtime.queries.streaming import StreamQuery
from airflow_provider.runtime.savepoints.catalog import open_savepoint
from airflow_provider.runtime.storage.open import open_storage

pytestmark = pytest.mark.spark

FILES = [
    [(1, "a", 1), (4, "b", 2)],
    [(12, "b", 2), (15, "a", 7)],
    [(25, "a", 3), (28, "c", 1)],
    [(36, "b", 4), (37, "a", 5)],
    [(48, "a", 6)],
]
EVENTS = [event for file in FILES for event in file]


def phases_of(location: Location) -> list[str]:
    """Return the phase of each run of the job, as last reported: none before a first report."""
    reports = location.job_dir.glob("runs/*/progress.json")
    return [json.loads(report.read_text())["phase"] for report in reports]


def test_a_stopped_job_goes_on_as_if_it_never_had(spark, location, tmp_path):
    """
    Without drain nothing is flushed: open windows stay in the savepoint and in the job, and whoever
    goes on, in the same directory or from the savepoint in another one, ends with the truth.
    """
    write_events(location.input, *FILES[:3])
    with driving(spark, location) as driver:
        driver.read(3)
        answer = driver.stop(savepoint=savepoint_url(location))
        final = driver.end()

    assert ("SUSPENDED", savepoint_url(location)) == (answer.outcome, answer.savepoint)
    assert ("SUSPENDED", savepoint_url(location)) == (final.outcome, final.savepoint)
    assert not final.queries["out"].finished
    at_stop = read_with_pandas(location.output)
    assert set(at_stop) < set(windows_of(EVENTS[:6]))
    assert not open_savepoint(savepoint_url(location)).record.drained

    write_events(location.input, *FILES[3:], first=3)
    other = Location(tmp_path / "other")
    params = {"input": str(location.input), "files_per_batch": "1"}
    other.run(spark, "tumbling_window", from_savepoint=savepoint_url(location), params=params)
    assert windows_of(EVENTS) == sorted([*at_stop, *read_with_pandas(other.output)])

    location.run(spark, "tumbling_window", params=params)
    assert windows_of(EVENTS) == read_with_pandas(location.output)


@pytest.mark.long
def test_a_drained_job_is_done(spark, location):
    """
    With drain the last row, the windows and ``finish()`` come before the final checkpoint; neither
    the job nor its savepoint resumes, and says why.
    """
    write_events(location.input, *FILES)
    params = {**STREAM["params"], "trace": str(location.trace)}
    with driving(spark, location, "traced", params=params) as driver:
        driver.read(5)
        answer = driver.stop(drain=True, savepoint=savepoint_url(location))
        final = driver.end()

    assert ("FINISHED", savepoint_url(location)) == (answer.outcome, answer.savepoint)
    assert final.queries["out"].finished
    assert windows_of(EVENTS) == read_with_pandas(location.output)
    word, close = location.noted()
    assert "close" == close
    assert int(word.removeprefix("finish:")) < len(windows_of(EVENTS)), "finish() came after"
    with pytest.raises(JobDrainedError, match="Its windows are flushed"):
        location.run(spark, "traced", params=params, run_id="another")
    with pytest.raises(JobDrainedError, match="drained when this savepoint was taken"):
        Location(location.root / "other").run(
            spark,
            "traced",
            params={**params, "input": str(location.input)},
            from_savepoint=savepoint_url(location),
        )


def open_batch_of(logs, entry):
    """Return the batch that is not committed, if it has an entry of the source's log.

    Spark may run a batch without input before it.
    """
    batch = logs.position().open_batch
    if batch is None:
        return None
    (offset, *_) = logs.offsets(batch).source_offsets()
    return batch if offset is not None and int(offset["logOffset"]) == entry else None


@pytest.mark.long
def test_a_stop_cuts_a_long_batch_short_if_it_may(spark, location):
    """
    After ``aligned_timeout_s`` the batch in flight is not waited for; it runs again with the same
    offsets, also from the savepoint.
    """
    gate = location.root / "gate"
    write_events(location.input, FILES[0])
    params = {**STREAM["params"], "gate": str(gate)}
    with driving(spark, location, "gated", params=params) as driver:
        gate.touch()
        driver.read(1)
        gate.unlink()
        write_events(location.input, *FILES[1:], first=1)
        logs = CheckpointLogs(open_storage(str(location.checkpoint())))
        driver.until(lambda: open_batch_of(logs, 1) is not None)
        held = open_batch_of(logs, 1)
        planned = logs.offsets(held).sources
        began = time.monotonic()
        answer = driver.stop(savepoint=savepoint_url(location), aligned_timeout_s=0)
        took = time.monotonic() - began
        final = driver.end()

    assert "SUSPENDED" == answer.outcome
    assert held - 1 == final.queries["out"].batch_id
    assert took < 10, "the batch would have waited for ever"
    assert open_savepoint(savepoint_url(location)).record.queries["out"].planned

    gate.touch()
    location.run(spark, "gated", params={**params, "bounded": "yes"})
    assert planned == logs.offsets(held).sources
    assert windows_of(EVENTS) == read_with_pandas(location.output)


@pytest.mark.long
def test_a_batch_that_begins_after_the_request_to_stop_is_not_lost(spark, location, monkeypatch):
    """
    Spark may plan a batch between the request and the stop; it ends without a row, and whoever goes
    on runs it.
    """
    gate = location.root / "gate"
    write_events(location.input, FILES[0])
    params = {**STREAM["params"], "gate": str(gate)}
    monkeypatch.setattr(StreamQuery, "halt_in_time", lambda _: None)  # the stop comes too late
    with driving(spark, location, "gated", params=params) as driver:
        logs = CheckpointLogs(open_storage(str(location.checkpoint())))
        driver.until(lambda: logs.position().open_batch == 0)
        write_events(location.input, *FILES[1:], first=1)
        request = request_stop(str(location.job_dir), CLOCK)
        driver.until(lambda: phases_of(location) == ["committing"])
        gate.touch()
        answer = request.wait(CLOCK, 60)
        final = driver.end()

    assert ("SUSPENDED", 0) == (answer.outcome, final.queries["out"].batch_id)
    assert 1 == logs.position().open_batch, "it was planned"
    location.run(spark, "gated", params={**params, "bounded": "yes"})
    assert windows_of(EVENTS) == read_with_pandas(location.output)


@pytest.mark.long
def test_a_run_whose_task_was_killed_goes_on_when_it_is_asked_for_again(spark, location):
    """
    The driver ends at the end of its batch, with a savepoint and without a final checkpoint; the
    same run, which was never over, ends with the truth.
    """
    write_events(location.input, *FILES[:3])
    with driving(spark, location, run_id="r1") as driver:
        driver.read(3)
        hook = SparkStreamingHook()
        assert hook.end(
            str(location.job_dir), "r1", hook.claim(str(location.job_dir), "r1"), "stop"
        )
        assert driver.end() is None

    assert isinstance(driver.error, RunCancelledError)
    (path,) = location.job_dir.glob("savepoints/on-kill-*")
    saved = [query.batch for query in open_savepoint(str(path)).record.queries.values()]
    assert [driver.committed()] == saved
    (attempt,) = location.job_dir.glob("runs/r1/attempts/*.json")
    assert "CANCELLED" == json.loads(attempt.read_text())["outcome"]
    (reply,) = location.job_dir.glob("replies/*.json")
    assert str(path) == json.loads(reply.read_text())["savepoint"]

    write_events(location.input, *FILES[3:], first=3)
    with driving(spark, location, run_id="r1") as driver:
        driver.read(5)
        driver.stop(drain=True)
        final = driver.end()
    assert ("FINISHED", 2) == (final.outcome, final.attempts)
    assert windows_of(EVENTS) == read_with_pandas(location.output)


@pytest.mark.long
def test_a_savepoint_that_fails_does_not_end_the_job(spark, location):
    """
    The caller gets the error, nothing is left of the savepoint, the job reads on, and the next stop
    works.
    """
    write_events(location.input, *FILES[:3])
    with driving(spark, location) as driver:
        driver.read(3)
        with pytest.raises(SparkStreamError, match="no savepoint: .*; the job keeps running"):
            driver.stop(savepoint="/proc/savepoints/s1")  # where nobody can write, nor root

        write_events(location.input, *FILES[3:], first=3)
        driver.read(5)
        answer = driver.stop(drain=True, savepoint=savepoint_url(location))

    assert "FINISHED" == answer.outcome
    assert windows_of(EVENTS) == read_with_pandas(location.output)


@pytest.mark.long
def test_stopping_that_fails_names_the_savepoint(spark, location):
    """
    The savepoint is complete and the final checkpoint cannot be put: the error names the savepoint,
    nothing resumes the job by itself, and both ways on end with the truth.
    """
    write_events(location.input, *FILES[:3])
    with driving(spark, location, run_id="r1") as driver:
        driver.read(3)
        in_the_way = location.job_dir / "runs" / "r1" / "final.json"
        in_the_way.mkdir()
        with pytest.raises(
            StopError, match=f"stopping failed.*{savepoint_url(location)} is complete"
        ):
            driver.stop(savepoint=savepoint_url(location))
        driver.end()
    assert isinstance(driver.error, RunFailedError)
    assert FailureClass.NON_RECOVERABLE is driver.error.failure.failure_class
    assert savepoint_url(location) in str(driver.error)

    in_the_way.rmdir()
    write_events(location.input, *FILES[3:], first=3)
    before = read_with_pandas(location.output)
    other = Location(location.root / "other")
    params = {"input": str(location.input)}
    other.run(spark, "tumbling_window", from_savepoint=savepoint_url(location), params=params)
    assert windows_of(EVENTS) == sorted([*before, *read_with_pandas(other.output)])


@pytest.mark.long
def test_what_cannot_be_stopped_is_said_at_once(spark, location):
    """No job, no driver, a job that has ended, a savepoint whose folder is taken, a second stop."""
    with pytest.raises(UnknownJobError, match=r"no job there \(no job.json\)"):
        request_stop(str(location.job_dir), CLOCK)

    write_events(location.input, *FILES[:2])
    taken = Path(savepoint_url(location, "taken"))
    taken.mkdir(parents=True)
    (taken / "letter").touch()
    with driving(spark, location) as driver:
        driver.read(2)
        with pytest.raises(
            StopRefusedError, match=r"not empty; choose another name.*keeps running"
        ):
            driver.stop(savepoint=str(taken))
        driver.stop()
    with pytest.raises(UnknownJobError, match=r"nothing to stop; its last run .* is SUSPENDED"):
        request_stop(str(location.job_dir), CLOCK)


# --- several queries ------------------------------------------------------------------------------


@pytest.mark.long
def test_a_chain_ends_with_one_final_checkpoint(spark, location):
    """
    Each query of a chain learns that the one before it has ended, drains in turn, and the last
    window of all is in the last table.
    """
    write_events(location.input, *FILES)

    final = location.run(spark, "chain")

    assert "FINISHED" == final.outcome
    assert all(query.finished for query in final.queries.values())
    assert windows_of(EVENTS) == read_with_pandas(location.output / "fine")
    assert windows_of(EVENTS, 30) == read_with_pandas(location.output / "coarse")
    assert windows_of(EVENTS, 60) == read_with_pandas(location.output / "top")


@pytest.mark.whole
def test_a_chain_that_runs_on_is_drained_from_its_head(spark, location):
    """
    Stopped with drain, what is under way flows down before each query drains; stopped without, it
    goes on later.
    """
    write_events(location.input, *FILES[:3])
    with driving(spark, location, "chain") as driver:
        driver.read(3, "fine")
        driver.stop()
        assert "SUSPENDED" == driver.end().outcome
    write_events(location.input, *FILES[3:], first=3)
    with driving(spark, location, "chain") as driver:
        driver.read(5, "fine")
        driver.stop(drain=True)
        assert "FINISHED" == driver.end().outcome

    assert windows_of(EVENTS) == read_with_pandas(location.output / "fine")
    assert windows_of(EVENTS, 30) == read_with_pandas(location.output / "coarse")
    assert windows_of(EVENTS, 60) == read_with_pandas(location.output / "top")
