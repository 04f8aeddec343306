"""Runs that are undone and executed again, by real drivers that die meanwhile."""

from __future__ import annotations

import shutil

import pytest
from streams import Location, Rows, plain, read_with_pandas, windows_of, write_events

from airflow_provider.hooks.task_runs import current_run
from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.cli.main import main
from airflow_provider.runtime.driver.replay_runs import replay_runs
from airflow_provider.runtime.driver.restore_job import restore_job
from airflow_provider.runtime.driver.rewind_job import rewind_job
from airflow_provider.runtime.errors import (
    EXIT_FATAL,
    EXIT_OK,
    ConfigError,
    LostInputError,
    RevertError,
)
from airflow_provider.runtime.jobdir.layout import directory_at
from airflow_provider.runtime.jobdir.runs import runs_newest_first
from airflow_provider.runtime.jobdir.submissions import RunOwnerRecord
from airflow_provider.runtime.queries.input_folders import spark_listing
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.savepoints.take import take_savepoint
from tests.crash.drivers import Drivers

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SUSPEND = {"until": "available", "at_end": "suspend", "replayable_runs": 3}
PLAIN = {"until": "available", "at_end": "suspend"}
POINTS = ("restore.begun", "revert.done")
FIRST = [(1, "a", 1), (4, "b", 2), (12, "b", 2), (25, "a", 3)]
LATER = [(26, "b", 4), (31, "a", 5), (47, "a", 6)]
LAST = [(49, "a", 7), (52, "b", 1)]
CORRECTED = [(26, "b", 40), (31, "a", 50), (33, "b", 1), (48, "a", 60)]


@pytest.fixture
def drivers(location):
    started = Drivers(location)
    yield started
    started.end_all()


def written(location: Location) -> tuple[Rows, Rows]:
    rows = read_with_pandas(location.output / "rows")
    return read_with_pandas(location.output / "windows"), plain((k, v) for _, k, v in rows)


def truth(*events) -> tuple[Rows, Rows]:
    return windows_of(events), plain((k, v) for _, k, v in events)


@pytest.mark.long
def test_input_that_spark_has_moved_away_is_put_back_before_a_restore(spark, location):
    """
    The last batch's files are never moved. A run whose input is moved is not replayable; a restore
    of the savepoint between two runs counts what is gone, and reverts nothing before it is back.
    """
    archived = {"params": {"archive": str(location.root / "archive")}}
    write_events(location.input, FIRST)
    with pytest.raises(ConfigError, match="source 'events' removes its input .* be replayed"):
        location.run(spark, "archived", run_id="one", replayable_runs=1, **archived)
    assert not location.job_dir.exists()
    location.run(spark, "archived", run_id="one", **PLAIN, **archived)
    before = str(location.job_dir / "savepoints/before")
    take_savepoint(job_source(str(location.job_dir), SystemClock()), before)
    write_events(location.input, *([event] for event in LATER * 2), first=1)
    location.run(spark, "archived", run_id="two", **PLAIN, **archived)
    rows = read_with_pandas(location.output)
    assert len(FIRST) + 2 * len(LATER) == len(rows)

    with pytest.raises(LostInputError, match="read 6 files .* and 4 of them are gone: .*/001.csv"):
        restore_job(str(location.job_dir), before, revert=True, spark=spark)
    assert rows == read_with_pandas(location.output)

    for path in (location.root / "archive").rglob("*.csv"):
        path.rename(location.input / path.name)
    restore_job(str(location.job_dir), before, revert=True, spark=spark)
    location.run(spark, "archived", run_id="three", **PLAIN, **archived)
    assert rows == read_with_pandas(location.output)


def test_spark_lists_a_folder_with_any_names(spark, tmp_path):
    """Nothing is taken for a pattern or an escape; an absent folder has no names."""
    folder = tmp_path / "a [1] %20"
    folder.mkdir()
    names = {"b c.txt", "d%20*.txt", "{e}?"}
    for name in names:
        (folder / name).touch()
    list_names = spark_listing(spark)

    assert names == {*list_names(f"file://{folder}")}
    assert not [*list_names(f"file://{folder}/none")]
    with pytest.raises(ConfigError, match="Spark cannot list this input"):
        list_names("nowhere://in")


@pytest.mark.soak  # tests/crash/test_rewinding.py dies at every step, without a JVM
def test_drivers_die_while_they_undo_a_run(spark, location, drivers):
    """
    Drivers that are to replay a run of two queries die one step after the other; the last one
    executes it, on input that was corrected meanwhile. What has been built on is undone with it only.
    """
    write_events(location.input, FIRST)
    location.run(spark, "two_queries", run_id="one", **SUSPEND)
    write_events(location.input, LATER, first=1)
    location.run(spark, "two_queries", run_id="two", **SUSPEND)
    write_events(location.input, CORRECTED, first=1)

    replay = ("--run-id=two.r2", "--replay=two", "--replayable-runs=3")
    for point in POINTS:
        driver = drivers.run("two_queries", {}, *replay, SPARK_STREAM_FAILPOINT=point)
        assert failpoints.CRASH_EXIT == driver.wait(), driver.log[-3000:]
    final = location.run(spark, "two_queries", run_id="two.r2", replays="two", replayable_runs=3)
    assert ("FINISHED", 2 * len(CORRECTED)) == (final.outcome, final.rows_read)
    assert truth(*FIRST, *CORRECTED) == written(location)

    refused = drivers.run("two_queries", {}, "--run-id=one.r2", "--replay=one")
    assert EXIT_FATAL == refused.wait()
    assert "rewind them first, the newest first: two.r2 (" in refused.log
    with pytest.raises(RevertError, match=r"the newest first: two\.r2 "):
        rewind_job(str(location.job_dir), "one", spark=spark)

    undone = rewind_job(str(location.job_dir), "one", with_later=True, spark=spark)
    assert ["two.r2", "two", "one"] == [run.run_id for run in undone]
    assert [] == list(location.output.rglob("*.parquet"))
    location.run(spark, "two_queries", run_id="one.r2", replays="one")
    assert truth(*FIRST, *CORRECTED) == written(location)


@pytest.mark.long
def test_a_run_in_the_middle_is_executed_again_with_those_built_on_it(spark, location, capsys):
    """
    The job's runs leave what they would have left had the input been right from the beginning; the
    command dies after the first of them, and continues.
    """
    for number, (run_id, events) in enumerate({"one": FIRST, "two": LATER, "three": LAST}.items()):
        write_events(location.input, events, first=number)
        location.run(spark, "two_queries", run_id=run_id, **SUSPEND)
    for run_id in ("two", "three"):
        owner = RunOwnerRecord(
            dag_id="d", dag_run_id=run_id, run_type="scheduled", slice=None, max_tries=0
        )
        owner.put(directory_at(str(location.job_dir)).run(run_id).storage, RunOwnerRecord.NAME)
    write_events(location.input, CORRECTED, first=1)

    command = ["replay", str(location.job_dir), "two"]
    assert "two.r2" == next(replay_runs(*command[1:], spark=spark)).run_id
    for _ in range(2):
        assert EXIT_OK == main(command, spark=spark)
        lines = capsys.readouterr().out.splitlines()
        said = [line.split(",")[0] for line in lines if line.startswith("SUSPENDED")]
        assert ["SUSPENDED: run two.r2", "SUSPENDED: run three.r2"] == said

    assert ["three.r2", "two.r2", "one"] == [
        record.run_id
        for record in runs_newest_first(directory_at(str(location.job_dir)))
        if directory_at(str(location.job_dir)).run(record.run_id).rewound() is None
    ]
    assert "two.r2" == current_run(str(location.job_dir), "two").run_id
    assert "three.r2" == current_run(str(location.job_dir), "three").run_id
    location.run(spark, "two_queries", run_id="last")
    assert truth(*FIRST, *CORRECTED, *LAST) == written(location)


def test_what_sparks_own_sinks_have_written_is_not_written_again(spark, location):
    """
    Neither a replay nor a restore can take it back, so both are refused, and nothing is touched.
    """
    write_events(location.input, FIRST)
    location.run(spark, "native_windows", run_id="one", **SUSPEND)
    before = str(location.job_dir / "savepoints/before")
    take_savepoint(job_source(str(location.job_dir), SystemClock()), before)
    write_events(location.input, LATER, first=1)
    location.run(spark, "native_windows", run_id="two", **SUSPEND)
    rows = read_with_pandas(location.output)

    with pytest.raises(RevertError, match="what it has written cannot be reverted"):
        location.run(spark, "native_windows", run_id="two.r2", replays="two")
    with pytest.raises(RevertError, match="what it has written cannot be reverted"):
        restore_job(str(location.job_dir), before, revert=True, spark=spark)

    assert rows == read_with_pandas(location.output)
    final = location.run(spark, "native_windows", run_id="three")
    assert "FINISHED" == final.outcome
    assert windows_of([*FIRST, *LATER]) == read_with_pandas(location.output)


@pytest.mark.long
def test_what_an_undone_driver_uploads_late_counts_nowhere(spark, location):
    """
    State and commits of the same numbers, put where the query was when they were made: by an
    executor on a machine that was cut off, or a JVM that was paused.
    """
    write_events(location.input, FIRST)
    location.run(spark, "tumbling_window", run_id="one", **SUSPEND)
    before, left = str(location.job_dir / "savepoints/before"), location.checkpoint()
    take_savepoint(job_source(str(location.job_dir), SystemClock()), before)
    write_events(location.input, LATER, first=1)
    location.run(spark, "tumbling_window", run_id="two", **SUSPEND)
    shutil.copytree(left, location.root / "late")

    restore_job(str(location.job_dir), before, revert=True, spark=spark)
    write_events(location.input, CORRECTED, first=1)
    location.run(spark, "tumbling_window", run_id="three", **SUSPEND)
    shutil.copytree(location.root / "late", left)

    final = location.run(spark, "tumbling_window", run_id="four")
    assert "FINISHED" == final.outcome
    assert windows_of([*FIRST, *CORRECTED]) == read_with_pandas(location.output)
    assert not left.exists()
