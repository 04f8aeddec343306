"""Events of a stream: savepoints, final checkpoints and failures, each reported once."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider.runtime.base.clock import to_iso
from airflow_provider.runtime.jobdir.run_records import CANCELLED, FAILED
from airflow_provider.runtime.jobdir.runs import RECENT
from airflow_provider.runtime.observe.events import (
    CompletePeriods,
    EventSource,
    EventStep,
    Failures,
    FinalCheckpoints,
    NewSavepoints,
    State,
)
from airflow_provider.runtime.savepoints.record import (
    MANIFEST,
    QuerySavepoint,
    SavedFile,
    SavepointRecord,
)
from airflow_provider.runtime.testing.job_directories import (
    JobDirectoryBuilder,
    a_final,
    a_run,
    an_attempt,
    an_exit,
    rewind_run,
)

if TYPE_CHECKING:
    from pathlib import Path

HOUR = 3_600_000
FAILURE = {
    "failure_class": "NON_RECOVERABLE",
    "reason": "no such column",
    "condition": "UNRESOLVED_COLUMN",
    "query": "q",
    "batch": 7,
    "root_cause": "AnalysisException: no such column",
}


class Watched:
    """A watcher of a job, and the ids that it has reported.

    Args:
        job: the job.
        source: what it reports.
    """

    def __init__(self, job: JobDirectoryBuilder, source: EventSource[Any]) -> None:
        self._job = job
        self._source = source
        self._state: State | None = None

    def new(self, at_most: int = 1000) -> list[EventStep]:
        """Look, and return the events; the first look has none. Only JSON is remembered."""
        seen = self._source.read(self._job.directory, self._state)
        if self._state is None:
            self._state = self._source.begin(seen)
            seen = self._source.read(self._job.directory, self._state)
        steps = list(self._source.steps(self._state, seen))[:at_most]
        if steps:
            self._state = json.loads(json.dumps(steps[-1].state))
        return steps

    def ids(self) -> list[str]:
        return [step.id for step in self.new()]


@pytest.fixture
def job(tmp_path: Path) -> JobDirectoryBuilder:
    return JobDirectoryBuilder(tmp_path / "job").begin()


def save(job: JobDirectoryBuilder, name: str, *, taken: str = "2026-01-01T00:00:00.000Z") -> None:
    location = job.storage.at(f"savepoints/{name}")
    location.put("queries/q/metadata", b"{}")
    query = QuerySavepoint(
        query_id="id",
        batch=3,
        planned=False,
        watermark=taken,
        drained=False,
        sources=[],
        operators=[],
        addressed=[],
        files=(SavedFile("metadata", 2),),
    )
    SavepointRecord(
        name=name,
        taken=taken,
        origin="periodic",
        labels={},
        job="flights",
        run_id="r1",
        source=str(job.root),
        queries={"q": query},
    ).put(location, MANIFEST)


def end(job: JobDirectoryBuilder, number: int, outcome: str = "FINISHED") -> None:
    """Let a run have its final checkpoint."""
    run = job.directory.run(f"r{number}")
    run.put_record(a_run(f"r{number}", token=number))
    run.put_final(a_final(f"r{number}", outcome=outcome))


def test_a_savepoint_is_reported_when_it_is_complete(job):
    """One that was there, one that is being taken, and one of a run's start are none."""
    save(job, "before")
    watched = Watched(job, NewSavepoints())
    first = watched.ids()
    job.storage.put("savepoints/taking/queries/q/metadata", b"{}")
    save(job, "rewind-r1")
    quiet = watched.ids()
    save(job, "daily")
    (step,) = watched.new()

    assert ([], []) == (first, quiet)
    assert "savepoint:daily:2026-01-01T00:00:00.000Z" == step.id
    assert ("daily", "periodic", {"q": 3}) == tuple(
        step.payload[name] for name in ("name", "origin", "batches")
    )
    assert step.payload["url"].endswith("/savepoints/daily")
    assert [] == watched.ids()


def test_a_name_of_a_savepoint_that_is_used_again_is_a_new_event(job):
    """What is removed is forgotten with the next event; what cannot be read for a while is not."""
    watched = Watched(job, NewSavepoints(from_start=True))
    save(job, "a", taken="2026-01-01T00:00:00.000Z")
    save(job, "b", taken="2026-01-01T00:00:01.000Z")
    both = watched.ids()
    manifest = job.root / "savepoints" / "b" / MANIFEST
    whole = manifest.read_bytes()
    manifest.write_bytes(b"nonsense")
    save(job, "a", taken="2026-01-01T00:00:02.000Z")
    again = watched.ids()
    manifest.write_bytes(whole)

    assert 2 == len(both)
    assert ["savepoint:a:2026-01-01T00:00:02.000Z"] == again
    assert [] == watched.ids()


@pytest.mark.parametrize("hours", [-1, 1])
def test_clocks_apart_change_nothing(job, hours):
    """
    What is recorded by a clock that is an hour behind or ahead of all others is reported as well.
    """
    now = dt.datetime.now(dt.timezone.utc)
    at = to_iso(now + dt.timedelta(hours=hours))
    save(job, "before", taken=to_iso(now))
    end(job, 1)
    job.spark.begin()
    sources: list[EventSource[Any]] = [
        CompletePeriods(HOUR),
        NewSavepoints(),
        FinalCheckpoints(),
        Failures(),
    ]
    watched = [Watched(job, source) for source in sources]
    first = [each.ids() for each in watched]

    save(job, "later", taken=at)
    run = job.directory.run("r2")
    run.put_record(a_run("r2", token=2, started=at))
    run.put_attempt(an_attempt(1, started=at, ended=at, outcome=FAILED, failure=FAILURE))
    run.put_final(dataclasses.replace(a_final("r2"), started=at, committed=at))
    job.spark.run(0, watermark_ms=5 * HOUR)

    assert [[], [], [], []] == first
    assert [
        ["complete:1970-01-01T05:00:00.000Z", "end:r2"],
        [f"savepoint:later:{at}"],
        ["final:r2"],
        ["failure:r2:1"],
    ] == [each.ids() for each in watched]
    assert [[], [], [], []] == [each.ids() for each in watched]


def test_a_final_checkpoint_is_reported_with_its_rows(job):
    """
    FINISHED and SUSPENDED are events, what was there is none, and a run that was undone neither.
    """
    end(job, 1)
    watched = Watched(job, FinalCheckpoints())
    first = watched.ids()
    end(job, 2, "SUSPENDED")
    end(job, 3)
    rewind_run(job.directory, "r3")
    end(job, 4)
    steps = watched.new()

    assert [] == first
    assert ["final:r2", "final:r4"] == [step.id for step in steps]
    shown = ("run_id", "outcome", "rows_read", "attempts", "queries")
    assert ("r2", "SUSPENDED", 10, 1, ["q"]) == tuple(steps[0].payload[name] for name in shown)
    assert [] == watched.ids()


@pytest.mark.slow
def test_no_run_is_missed_while_nobody_looks(job):
    """However many runs end between two looks, and wherever the watcher dies among their events."""
    watched = Watched(job, FinalCheckpoints())
    watched.ids()
    for number in range(1, 4 * RECENT):
        end(job, number)

    found = [step.id for _ in range(20) for step in watched.new(at_most=3)]

    assert [f"final:r{number}" for number in range(1, 4 * RECENT)] == found


def test_from_the_start_all_runs_are_reported(job):
    """Also those before the ten newest ones, and what is remembered of them stays small."""
    for number in range(1, 3 * RECENT):
        end(job, number)
    watched = Watched(job, FinalCheckpoints(from_start=True))

    steps = watched.new()

    assert [f"final:r{number}" for number in range(1, 3 * RECENT)] == [step.id for step in steps]
    assert RECENT == len(steps[-1].state["known"])
    assert [] == watched.ids()


def test_an_older_run_that_ends_later_is_reported(job):
    """A run that was resumed after newer ones have ended, of the ten newest."""
    job.directory.run("r1").put_record(a_run("r1", token=1))
    watched = Watched(job, FinalCheckpoints())
    watched.ids()
    end(job, 2)
    newer = watched.ids()

    end(job, 1)

    assert (["final:r2"], ["final:r1"]) == (newer, watched.ids())


def test_another_job_in_the_same_folder_begins_again(job):
    """Its runs have low numbers and known names, and are new all the same."""
    for number in range(1, 2 * RECENT):
        end(job, number)
    watched = Watched(job, FinalCheckpoints())
    watched.ids()
    (job.root / "job.json").unlink()
    for path in sorted((job.root / "runs").rglob("*.json")):
        path.unlink()
    record = {"version": 1, "name": "daily", "created": "2026-02-02T00:00:00.000Z"}
    (job.root / "job.json").write_text(json.dumps(record))

    end(job, 1)

    assert ["final:r1"] == watched.ids()
    assert [] == watched.ids()


def test_a_failure_is_reported_with_its_class_and_cause(job):
    """An attempt that is at work is none, one that was cancelled neither."""
    run = job.directory.run("r1")
    run.put_record(a_run("r1", token=1))
    watched = Watched(job, Failures())
    watched.ids()
    run.put_attempt(an_attempt(1))
    quiet = watched.ids()
    run.put_attempt(an_attempt(1, outcome=FAILED, failure=FAILURE, ended="2026-01-01T00:00:00Z"))
    (step,) = watched.new()
    run.put_attempt(an_attempt(2, outcome=CANCELLED, ended="2026-01-01T00:00:00Z"))

    assert [] == quiet
    assert "failure:r1:1" == step.id
    assert {**step.payload, **FAILURE, "retryable": False, "attempt": 1} == step.payload
    assert [] == watched.ids()


def test_a_driver_that_dies_without_a_word_has_failed(job):
    """
    By the exit code that its launcher has recorded; or, when nobody could, because another follows.
    """
    run = job.directory.run("r1")
    run.put_record(a_run("r1", token=1))
    watched = Watched(job, Failures(from_start=True))
    run.put_attempt(an_attempt(1, driver_id="d1"))
    run.put_end("d1", an_exit(-9, "Killed", ""))
    (killed,) = watched.new()
    run.put_attempt(an_attempt(2, driver_id="d2"))
    alive = watched.ids()
    run.put_attempt(an_attempt(3, driver_id="d3"))
    (lost,) = watched.new()

    assert "failure:r1:1" == killed.id
    assert ("ENVIRONMENT", True, "Killed") == tuple(
        killed.payload[name] for name in ("failure_class", "retryable", "root_cause")
    )
    assert "killed by SIGKILL" in killed.payload["reason"]
    assert [] == alive
    assert "failure:r1:2" == lost.id
    assert "was lost" in lost.payload["reason"]


def test_where_no_job_is_yet_all_that_comes_is_new(tmp_path):
    """Nothing was there at the first look, and nothing is written there."""
    job = JobDirectoryBuilder(tmp_path / "job")
    sources: list[EventSource[Any]] = [
        CompletePeriods(HOUR),
        NewSavepoints(),
        FinalCheckpoints(),
        Failures(),
    ]
    watched = [Watched(job, source) for source in sources]
    first = [each.ids() for each in watched]
    assert not job.root.exists()

    job.begin()
    save(job, "a")
    end(job, 1)
    job.spark.begin().run(0, watermark_ms=5 * HOUR + 1)

    assert [[], [], [], []] == first
    assert [
        ["complete:1970-01-01T05:00:00.000Z", "end:r1"],
        ["savepoint:a:2026-01-01T00:00:00.000Z"],
        ["final:r1"],
        [],
    ] == [each.ids() for each in watched]
