"""Real streams stopped from outside, with and without drain, with and without a savepoint."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from driving import CLOCK, STREAM, Driver, driving, savepoint_url
from streams import Place, read_with_pandas, windows_of, write_events

from airflow_provider.runtime.checkpoint import CheckpointLogs
from airflow_provider.runtime.errors import (
    JobDrainedError,
    RunFailedError,
    StopError,
    UnknownJobError,
)
from airflow_provider.runtime.failures import FailureClass
from airflow_provider.runtime.savepoint import open_savepoint
from airflow_provider.runtime.stopping import request_stop
from airflow_provider.runtime.storage import open_storage

pytestmark = pytest.mark.spark

FILES = [
    [(1, "a", 1), (4, "b", 2)],
    [(12, "b", 2), (15, "a", 7)],
    [(25, "a", 3), (28, "c", 1)],
    [(36, "b", 4), (37, "a", 5)],
    [(48, "a", 6)],
]
EVENTS = [event for file in FILES for event in file]


def test_a_stopped_job_goes_on_as_if_it_never_had(spark, place, tmp_path):
    """
    Without drain nothing is flushed: open windows stay in the savepoint and in the job, and whoever
    goes on, in the same directory or from the savepoint in another one, ends with the truth.
    """
    write_events(place.input, *FILES[:3])
    with driving(spark, place) as driver:
        driver.read(3)
        answer = driver.stop(savepoint=savepoint_url(place))
        final = driver.end()

    assert ("SUSPENDED", savepoint_url(place)) == (answer.outcome, answer.savepoint)
    assert ("SUSPENDED", savepoint_url(place)) == (final.outcome, final.savepoint)
    assert not final.queries["out"]["finished"]
    at_stop = read_with_pandas(place.output)
    assert set(at_stop) < set(windows_of(EVENTS[:6]))
    assert not open_savepoint(savepoint_url(place)).record.drained

    write_events(place.input, *FILES[3:], first=3)
    other = Place(tmp_path / "other")
    params = {"input": str(place.input), "files_per_batch": "1"}
    other.run(spark, "tumbling_window", from_savepoint=savepoint_url(place), params=params)
    assert windows_of(EVENTS) == sorted([*at_stop, *read_with_pandas(other.output)])

    place.run(spark, "tumbling_window", params=params)
    assert windows_of(EVENTS) == read_with_pandas(place.output)


def test_a_drained_job_is_done(spark, place):
    """
    With drain the last row, the windows and ``finish()`` come before the final checkpoint; neither
    the job nor its savepoint resumes, and says why.
    """
    write_events(place.input, *FILES)
    params = {**STREAM["params"], "trace": str(place.trace)}
    with driving(spark, place, "traced", params=params) as driver:
        driver.read(5)
        answer = driver.stop(drain=True, savepoint=savepoint_url(place))
        final = driver.end()

    assert ("FINISHED", savepoint_url(place)) == (answer.outcome, answer.savepoint)
    assert final.queries["out"]["finished"]
    assert windows_of(EVENTS) == read_with_pandas(place.output)
    word, close = place.noted()
    assert "close" == close
    assert int(word.removeprefix("finish:")) < len(windows_of(EVENTS)), "finish() came after"
    with pytest.raises(JobDrainedError, match="Its windows are flushed"):
        place.run(spark, "traced", params=params, run_id="another")
    with pytest.raises(JobDrainedError, match="drained when this savepoint was taken"):
        Place(place.root / "other").run(
            spark,
            "traced",
            params={**params, "input": str(place.input)},
            from_savepoint=savepoint_url(place),
        )


def test_a_stop_cuts_a_long_batch_short_if_it_may(spark, place):
    """
    After ``aligned_timeout_s`` the batch in flight is not waited for; it runs again with the same
    offsets, also from the savepoint.
    """
    gate = place.root / "gate"
    write_events(place.input, FILES[0])
    params = {**STREAM["params"], "gate": str(gate)}
    with driving(spark, place, "gated", params=params) as driver:
        gate.touch()
        driver.read(1)
        gate.unlink()
        write_events(place.input, *FILES[1:], first=1)
        logs = CheckpointLogs(open_storage(str(place.checkpoint())))
        driver.until(lambda: logs.position().open_batch == 1)
        planned = logs.offsets(1).sources
        began = time.monotonic()
        answer = driver.stop(savepoint=savepoint_url(place), aligned_timeout_s=0)
        took = time.monotonic() - began
        final = driver.end()

    assert "SUSPENDED" == answer.outcome
    assert 0 == final.queries["out"]["batch_id"]
    assert took < 10, "the batch would have waited for ever"
    assert open_savepoint(savepoint_url(place)).record.queries["out"].planned

    gate.touch()
    place.run(spark, "gated", params={**params, "bounded": "yes"})
    assert planned == logs.offsets(1).sources
    assert windows_of(EVENTS) == read_with_pandas(place.output)


def test_a_savepoint_that_fails_does_not_end_the_job(spark, place):
    """
    The caller gets the error, nothing is left of the savepoint, the job reads on, and the next stop
    works.
    """
    write_events(place.input, *FILES[:3])
    with driving(spark, place) as driver:
        driver.read(3)
        with pytest.raises(StopError, match="no savepoint: .*; the job goes on running"):
            driver.stop(savepoint="/proc/savepoints/s1")  # where nobody can write, nor root

        write_events(place.input, *FILES[3:], first=3)
        driver.read(5)
        answer = driver.stop(drain=True, savepoint=savepoint_url(place))

    assert "FINISHED" == answer.outcome
    assert windows_of(EVENTS) == read_with_pandas(place.output)


def test_stopping_that_fails_names_the_savepoint(spark, place):
    """
    The savepoint is complete and the final checkpoint cannot be put: the error names the savepoint,
    nothing resumes the job by itself, and both ways on end with the truth.
    """
    write_events(place.input, *FILES[:3])
    with driving(spark, place, run_id="r1") as driver:
        driver.read(3)
        in_the_way = place.job_dir / "runs" / "r1" / "final.json"
        in_the_way.mkdir()
        with pytest.raises(StopError, match=f"stopping failed.*{savepoint_url(place)} is complete"):
            driver.stop(savepoint=savepoint_url(place))
        driver.end()
    assert isinstance(driver.error, RunFailedError)
    assert FailureClass.NON_RECOVERABLE is driver.error.failure.failure_class
    assert savepoint_url(place) in str(driver.error)

    in_the_way.rmdir()
    write_events(place.input, *FILES[3:], first=3)
    before = read_with_pandas(place.output)
    other = Place(place.root / "other")
    params = {"input": str(place.input)}
    other.run(spark, "tumbling_window", from_savepoint=savepoint_url(place), params=params)
    assert windows_of(EVENTS) == sorted([*before, *read_with_pandas(other.output)])


def test_what_cannot_be_stopped_is_said_at_once(spark, place):
    """
    No job, no driver, a job that has ended, a savepoint whose folder is taken, a second stop.
    """
    with pytest.raises(UnknownJobError, match=r"no job there \(no job.json\)"):
        request_stop(str(place.job_dir), CLOCK)

    write_events(place.input, *FILES[:2])
    taken = Path(savepoint_url(place, "taken"))
    taken.mkdir(parents=True)
    (taken / "letter").touch()
    with driving(spark, place) as driver:
        driver.read(2)
        with pytest.raises(StopError, match=r"not empty; choose another name.*goes on running"):
            driver.stop(savepoint=str(taken))
        driver.stop()
    with pytest.raises(UnknownJobError, match=r"nothing to stop; its last run .* is SUSPENDED"):
        request_stop(str(place.job_dir), CLOCK)


def test_a_stop_that_races_with_the_end_is_answered(spark, tmp_path):
    """
    Asked again and again while a job ends by itself, each stop is either done or told why not, and
    whatever came of it, going on ends with the truth.
    """
    outcomes = set()
    for number, wait_s in enumerate((0.0, 0.3, 0.6, 0.9, 1.2, 1.5)):
        place = Place(tmp_path / str(number))
        write_events(place.input, *FILES[:2])
        driver = Driver(spark, place, "tumbling_window")
        driver.until(lambda place=place: (place.job_dir / "leases").is_dir())
        time.sleep(wait_s)
        try:
            outcomes.add(driver.stop().outcome)
        except (StopError, UnknownJobError) as error:
            outcomes.add(type(error).__name__)
        driver.end()
        if driver.final.outcome == "SUSPENDED":
            place.run(spark, "tumbling_window")
        assert windows_of(EVENTS[:4]) == read_with_pandas(place.output)

    assert outcomes <= {"SUSPENDED", "StopError", "UnknownJobError"}
    assert len(outcomes) > 1, outcomes


# --- several queries ------------------------------------------------------------------------------


def test_a_chain_ends_with_one_final_checkpoint(spark, place):
    """
    Each query of a chain learns that the one before it has ended, drains in turn, and the last
    window of all is in the last table.
    """
    write_events(place.input, *FILES)

    final = place.run(spark, "chain")

    assert "FINISHED" == final.outcome
    assert all(query["finished"] for query in final.queries.values())
    assert windows_of(EVENTS) == read_with_pandas(place.output / "fine")
    assert windows_of(EVENTS, 30) == read_with_pandas(place.output / "coarse")
    assert windows_of(EVENTS, 60) == read_with_pandas(place.output / "top")


def test_a_chain_that_runs_on_is_drained_from_its_head(spark, place):
    """
    Stopped with drain, what is under way flows down before each query drains; stopped without, it
    goes on later.
    """
    write_events(place.input, *FILES[:3])
    with driving(spark, place, "chain") as driver:
        driver.read(3, "fine")
        driver.stop()
        assert "SUSPENDED" == driver.end().outcome
    write_events(place.input, *FILES[3:], first=3)
    with driving(spark, place, "chain") as driver:
        driver.read(5, "fine")
        driver.stop(drain=True)
        assert "FINISHED" == driver.end().outcome

    assert windows_of(EVENTS) == read_with_pandas(place.output / "fine")
    assert windows_of(EVENTS, 30) == read_with_pandas(place.output / "coarse")
    assert windows_of(EVENTS, 60) == read_with_pandas(place.output / "top")


A, B = (windows_of([(i, k, i) for i in range(n)]) for k, n in (("a", 20), ("b", 100)))


@pytest.fixture
def half_way(spark, place) -> Iterator[Driver]:
    """Yield a job of which pipeline ``a`` has finished, and ``b`` is held back in a batch."""
    write_events(place.root / "a", [(i, "a", i) for i in range(20)])
    write_events(
        place.root / "b", *[[(i, "b", i) for i in range(n, n + 10)] for n in range(0, 100, 10)]
    )
    params = {"a": str(place.root / "a"), "b": str(place.root / "b"), "files_per_batch": "1"}
    driver = Driver(spark, place, "pipelines", params=params)
    driver.until(lambda: _rows(place, "a") == A)
    yield driver
    driver.cancel()


def _rows(place: Place, query: str) -> list[Any]:
    folder = place.output / query
    return read_with_pandas(folder) if folder.is_dir() else []


def test_two_pipelines_end_each_in_its_own_time(spark, place, half_way):
    """
    20 and 100 rows are committed; ``a`` has finished long before ``b``, and its output is there.
    """
    assert len(_rows(place, "b")) < len(B)
    final = half_way.end()

    assert ("FINISHED", 120) == (final.outcome, final.rows_read)
    assert (A, B) == (_rows(place, "a"), _rows(place, "b"))
