"""Corrections of published output: each is an event once, and so is each period that it revises."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from airflow_provider.runtime.api.sinks import OpenFence
from airflow_provider.runtime.jobdir.folding import KEEP_OPERATIONS, fold_operations
from airflow_provider.runtime.jobdir.journal import Journal
from airflow_provider.runtime.jobdir.upgrade_record import (
    UpgradeRecord,
    UpgradeStep,
    put_upgrade,
    upgrade_id,
)
from airflow_provider.runtime.observe.events import CompletePeriods, Corrections
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.savepoints.restore import Restore
from airflow_provider.runtime.savepoints.restore_plan import RestoreSettings
from airflow_provider.runtime.savepoints.restores import Restores
from airflow_provider.runtime.savepoints.take import take_savepoint
from airflow_provider.runtime.testing.job_directories import rewind_run
from tests.dying import dies_at
from tests.present import present
from tests.unit.hourly_job import HOUR, HourlyJob, Watcher, ended, hours

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

DEATHS = ("restore.begun", "revert.removed_one", "revert.done", "restore.copied", "restore.done")


@pytest.fixture
def job(tmp_path: Path) -> Iterator[HourlyJob]:
    """Yield a job that has written the first three hours."""
    made = HourlyJob(tmp_path / "job")
    for hour in range(3):
        made.run(hour)
    yield made
    made.bench.close()


def periods(job: HourlyJob, *, revisions: bool = True) -> Watcher:
    return Watcher(job, CompletePeriods(HOUR, revisions=revisions))


def test_an_epoch_keeps_its_event_times(job: HourlyJob) -> None:
    """They are in its record, in the journal when its rows are removed, and in no other record."""
    job.rewind(2)
    (operation,) = Journal(job.bench.storage).corrections()
    (run,) = operation.revises or []

    assert hours(1) == present(job.bench.record(1)).event_times
    assert ("r2", {"q"}, hours(2)) == (run.run_id, set(run.queries), run.queries["q"].event_times)


def test_a_rewind_is_an_event_with_what_it_removed(job: HourlyJob) -> None:
    """The period, the run's interval, the rows before and after; what was there before is none."""
    watcher = Watcher(job, Corrections())
    job.run(3, rows=5)
    job.rewind(3)
    (step,) = watcher.new()

    assert "revised:r3:1" == step.id
    expected = {
        "event": "revised",
        "reason": "rewind",
        "run_id": "r3",
        "least": "1970-01-01T03:00:00.000Z",
        "greatest": "1970-01-01T03:59:59.999Z",
        "rows_before": 5,
        "rows_after": 0,
        "replayed_by": None,
    }
    assert expected == {name: step.payload[name] for name in expected}
    (run,) = step.payload["runs"]
    assert {"start": "1970-01-01T03:00:00Z", "end": "1970-01-01T03:59:59.999Z"} == run["interval"]
    assert [] == watcher.ids()
    assert ["revised:r3:1"] == Watcher(job, Corrections(from_start=True)).ids()


@pytest.mark.parametrize("step", DEATHS)
def test_a_rewind_that_died_is_one_event(job: HourlyJob, step: str) -> None:
    """None before the next process has completed it, and then one; a third process adds none."""
    watcher = Watcher(job, Corrections())
    with dies_at(step):
        job.rewind(2)
    is_done = step == "restore.done"
    early = watcher.ids()
    job.rewind(2, token=100)
    late = watcher.ids()
    job.rewind(2, token=101)

    assert (["revised:r2:1"] if is_done else []) == early
    assert ([] if is_done else ["revised:r2:1"]) == late
    assert [] == watcher.ids()


def test_a_paused_process_that_ends_its_operation_late_adds_no_event(job: HourlyJob) -> None:
    """The next one has continued it under another number, and both are one correction."""
    watcher = Watcher(job, Corrections())
    with dies_at("revert.done"):
        job.rewind(2)
    paused = Journal(job.bench.storage).newest()
    assert paused is not None
    job.rewind(2, token=100)
    ids = watcher.ids()
    Restores(job.directory).end(paused)

    assert ["revised:r2:1"] == ids
    assert [] == watcher.ids()
    assert 1 == len(Journal(job.bench.storage).corrections())


def test_a_run_that_has_published_nothing_is_no_correction(job: HourlyJob) -> None:
    """A run of which no row was visible can be undone, and nobody has read anything else."""
    watcher = Watcher(job, Corrections())
    rewind_run(job.directory, "r9")
    Restores(job.directory).begin(job.bench.lease("x"), "2026-01-01T00:00:00.000Z", rewinds=["r9"])

    assert [] == watcher.ids()


def test_folded_corrections_stay_events(job: HourlyJob) -> None:
    """Once their operations are folded, a watcher that was away reports them, each once."""
    watcher = Watcher(job, Corrections())
    restores = Restores(job.directory)
    for number in range(2 * KEEP_OPERATIONS + 5):
        job.run(3, f"again-{number}")
        job.rewind_run(f"again-{number}")
    fold_operations(job.bench.storage, restores.is_start)

    assert Journal(job.bench.storage).through > 0
    found = watcher.ids()
    assert 2 * KEEP_OPERATIONS + 5 == len(found) == len(set(found))


# --- periods -------------------------------------------------------------------------------------


def test_the_hour_that_is_replayed_is_reported_once_and_no_other(tmp_path: Path) -> None:
    """
    Of 24 hours the last one is replayed: nothing when its rows are removed, nothing while the
    replay is at work, one event when it has committed, and none of the other 23.
    """
    job = HourlyJob(tmp_path / "job")
    for hour in range(24):
        job.run(hour)
    watcher = periods(job)
    replay = job.undo_for_replay(23)
    removed = watcher.ids()
    job.run(23, replay, rows=7, is_final=False)
    published = watcher.ids()
    job.finish(replay)
    (step,) = watcher.new()

    assert ([], []) == (removed, published)
    assert f"revised:r23:1:{ended(23)}" == step.id
    assert ("revised", ended(22), ended(23)) == tuple(
        step.payload[name] for name in ("event", "start", "boundary")
    )
    (correction,) = step.payload["corrections"]
    assert ("replay", 1, 7, "r23.r2") == tuple(
        correction[name] for name in ("reason", "rows_before", "rows_after", "replayed_by")
    )
    assert [] == watcher.ids()
    job.run(24)
    assert [f"complete:{ended(24)}"] == watcher.ids()


def test_without_revisions_a_period_is_reported_once(job: HourlyJob) -> None:
    """As before: also when its run was replayed."""
    watcher = periods(job, revisions=False)
    job.run(2, job.undo_for_replay(2))

    assert [] == watcher.ids()
    job.run(3)
    assert [f"complete:{ended(3)}"] == watcher.ids()


def test_a_rewound_hour_is_reported_when_the_next_run_has_written_it(job: HourlyJob) -> None:
    """Not before the output is complete again up to where it was."""
    watcher = periods(job)
    job.rewind(2)
    removed = watcher.ids()
    job.run(2, "next")

    assert [] == removed
    assert [f"revised:r2:1:{ended(2)}"] == watcher.ids()
    assert [] == watcher.ids()


def test_late_rows_of_the_run_revise_the_hours_before(job: HourlyJob) -> None:
    """An hour that stayed complete is due only when its rows are there again."""
    watcher = periods(job)
    job.run(3, times=hours(1, 3))
    complete = watcher.ids()
    replay = job.undo_for_replay(3)
    removed = watcher.ids()
    job.run(3, replay, times=hours(1, 3))
    expected = [f"revised:r3:1:{ended(hour)}" for hour in (1, 2, 3)]

    assert ([f"complete:{ended(3)}"], []) == (complete, removed)
    assert expected == [id_ for _ in range(4) for id_ in watcher.ids(at_most=1)]


def test_hours_that_only_the_replay_has_written_are_revised(job: HourlyJob) -> None:
    """The corrected input has rows of an hour in which the run had none."""
    watcher = periods(job)
    job.run(2, job.undo_for_replay(2), times=hours(0, 2))

    assert [f"revised:r2:1:{ended(hour)}" for hour in (0, 1, 2)] == watcher.ids()


def test_only_the_queries_that_count_revise_an_hour(job: HourlyJob) -> None:
    """A watcher of another query has no event, also of what the replay has written."""
    others = Watcher(job, CompletePeriods(HOUR, queries=("other",), revisions=True))
    ours = Watcher(job, CompletePeriods(HOUR, queries=("q",), revisions=True))
    others.state = {**others.state, "boundary_ms": 3 * HOUR}
    job.run(2, job.undo_for_replay(2))

    assert [] == others.ids()
    assert [f"revised:r2:1:{ended(2)}"] == ours.ids()


def test_an_hour_that_was_not_reported_is_only_complete(job: HourlyJob) -> None:
    """It was removed before a watcher had seen it complete."""
    watcher = periods(job)
    job.run(3)
    job.run(3, job.undo_for_replay(3))

    assert [f"complete:{ended(3)}"] == watcher.ids()
    assert [] == watcher.ids()


def test_several_corrections_of_an_hour_are_one_run(job: HourlyJob) -> None:
    """They are settled together, so one event has both; each hour once, in order."""
    watcher = periods(job)
    job.run(3, times=hours(2, 3))
    complete = watcher.ids()
    by = "run r2.r2, which replays r2"
    job.rewind(3, by=by)
    job.rewind(2, by=by)
    job.run(2, "r2.r2")
    first = watcher.new()
    job.run(3, "r3.r2", times=hours(2, 3))
    second = watcher.ids()

    assert [f"complete:{ended(3)}"] == complete
    assert [f"revised:r2:2:{ended(2)}"] == [step.id for step in first]
    assert ["1", "2"] == sorted(each["correction"] for each in first[0].payload["corrections"])
    assert [f"revised:r3:1:{ended(3)}"] == second


def test_a_replay_that_was_replayed_is_reported_when_the_last_one_is_done(job: HourlyJob) -> None:
    """The first replay died and was cleared again; its consumer runs once."""
    watcher = periods(job)
    first = job.undo_for_replay(2)
    job.run(2, first, is_final=False)
    quiet = watcher.ids()
    job.rewind_run(first, by="run r2.r3, which replays r2.r2")
    removed = watcher.ids()
    job.run(2, "r2.r3")

    assert ([], []) == (quiet, removed)
    assert [f"revised:r2.r2:2:{ended(2)}"] == watcher.ids()
    assert [] == watcher.ids()


def test_unknown_event_times_are_those_of_the_runs_interval(job: HourlyJob) -> None:
    """Output without a column of event time, or of a version that did not record them."""
    watcher = periods(job)
    job.run(3, event_times=None)
    complete = watcher.ids()
    job.run(3, job.undo_for_replay(3), event_times=None)

    assert [f"complete:{ended(3)}"] == complete
    assert [f"revised:r3:1:{ended(3)}"] == watcher.ids()


def test_a_correction_of_unknown_periods_is_one_event_without_any(job: HourlyJob) -> None:
    """The run has no interval either; the consumer decides."""
    watcher = periods(job)
    job.run(3, event_times=None, interval=None)
    complete = watcher.ids()
    job.run(3, job.undo_for_replay(3), event_times=None, interval=None)
    (step,) = watcher.new()

    assert [f"complete:{ended(3)}"] == complete
    assert "revised:r3:1:all" == step.id
    assert (None, None) == (step.payload["start"], step.payload["boundary"])
    assert [] == watcher.ids()


def test_a_watcher_that_gets_revisions_later_reports_those_from_then_on(job: HourlyJob) -> None:
    """A position of a watcher without them is completed with the corrections that are there."""
    job.run(2, job.undo_for_replay(2))
    without = periods(job, revisions=False)
    source = CompletePeriods(HOUR, revisions=True)
    watcher = periods(job)
    watcher.state = {**source.begin(source.read(job.directory, None)), **without.state}
    old = watcher.ids()
    job.rewind_run("r2.r2", by="run r2.r3, which replays r2.r2")
    job.run(2, "r2.r3")

    assert [] == old
    assert [f"revised:r2.r2:2:{ended(2)}"] == watcher.ids()


# --- other reasons -------------------------------------------------------------------------------


def test_a_restore_that_reverts_is_one_correction_of_several_runs(job: HourlyJob) -> None:
    """The rows after the savepoint go, of each run since; a later run of each hour is reported."""
    url = f"{job.directory.url}/savepoints/before"
    source = job_source(job.directory.url, job.bench.clock)
    saved = take_savepoint(source, url, origin="manual", clock=job.bench.clock)
    for hour in (3, 4):
        job.run(hour)
    events, hourly = Watcher(job, Corrections()), periods(job)
    query = SimpleNamespace(name="q", sinks=[job.sink], native=None)
    restore = Restore(job.directory, OpenFence(99), job.bench.clock, [query])
    restore.run(RestoreSettings(saved, {"q": "q"}, rewinds=["r3", "r4"]))
    (step,) = events.new()
    removed = hourly.ids()
    job.run(3, "r5")
    half = hourly.ids()
    job.run(4, "r6")

    assert ("restore", "r4", 2, 0) == tuple(
        step.payload[name] for name in ("reason", "run_id", "rows_before", "rows_after")
    )
    assert ["r3", "r4"] == [run["run_id"] for run in step.payload["runs"]]
    assert ([], []) == (removed, half)
    assert [f"revised:r4:1:{ended(hour)}" for hour in (3, 4)] == hourly.ids()


def test_corrected_records_revise_the_hour_that_they_are_of(job: HourlyJob) -> None:
    """The batch has new rows as well, and other hours; those are complete, and not revised."""
    job.reads_corrections()
    events, hourly = Watcher(job, Corrections()), periods(job)
    job.run(3)
    first = events.ids(), hourly.ids()
    job.run(4, times=hours(0, 4), corrected=hours(1))
    (step,) = events.new()

    assert ([], [f"complete:{ended(3)}"]) == first
    assert ("also", "r4", None) == tuple(
        step.payload[name] for name in ("reason", "run_id", "rows_before")
    )
    expected = [f"complete:{ended(4)}", f"revised:r4:q:4:{ended(1)}"]
    assert expected == [id_ for _ in range(3) for id_ in hourly.ids(at_most=1)]
    assert ([], []) == (events.ids(), hourly.ids())


def test_corrected_records_that_are_read_again_after_a_rewind_revise_once(job: HourlyJob) -> None:
    """Their hour is a part of what the rewind has removed, and is due with the rest of it."""
    job.reads_corrections()
    hourly = periods(job)
    job.run(3, times=hours(1, 3), corrected=hours(1))
    first = [id_ for _ in range(3) for id_ in hourly.ids()]
    job.rewind(3)
    job.reads_corrections()
    removed = hourly.ids()
    job.run(2, "r4", times=hours(1), corrected=hours(1))
    half = hourly.ids()
    job.run(3, "r5")

    assert [f"complete:{ended(3)}", f"revised:r3:q:3:{ended(1)}"] == first
    assert ([], []) == (removed, half)
    again = [step for _ in range(3) for step in hourly.new()]
    assert [ended(hour) for hour in (1, 2, 3)] == [step.payload["boundary"] for step in again]
    reasons = [{each["reason"] for each in step.payload["corrections"]} for step in again]
    assert [{"rewind", "also"}, {"rewind"}, {"rewind"}] == reasons


def test_a_version_that_was_rolled_back_is_a_correction_of_the_old_one(
    job: HourlyJob, tmp_path: Path
) -> None:
    """What its trial had published was removed, by the journal of the new directory."""
    new = HourlyJob(tmp_path / "new")
    trial = upgrade_id(new.directory.url)
    new.run(0, trial, rows=4)
    events = Watcher(job, Corrections())
    step = UpgradeRecord(
        by="d1",
        id=trial,
        to=new.directory.url,
        entry="job.py:daily",
        old_run_id="r2",
        began="2026-01-01T00:00:00.000Z",
    )
    put_upgrade(job.directory, step)
    for each in (UpgradeStep.TRIAL, UpgradeStep.REJECTED):
        step = put_upgrade(job.directory, step.after(each))
    new.rewind_run(trial)
    rejected = events.ids()
    put_upgrade(job.directory, step.after(UpgradeStep.ROLLED_BACK))
    (found,) = events.new()
    new.bench.close()

    assert [] == rejected
    assert f"revised:{trial}:u4" == found.id
    assert ("upgrade", 4, 0) == tuple(
        found.payload[name] for name in ("reason", "rows_before", "rows_after")
    )
    assert [] == events.ids()
