"""``spark-stream cleanup``: what a start does first, and nothing else."""

from __future__ import annotations

import pytest
from streams import failing_at, read_with_pandas, windows_of, write_events

from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.cli import main
from airflow_provider.runtime.driver import clean_up_job
from airflow_provider.runtime.driver.clean_up_job import clean_up
from airflow_provider.runtime.errors import UnknownJobError
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.observe.observer import RunWatcher
from airflow_provider.runtime.observe.state import RunState
from airflow_provider.runtime.storage.open import open_storage

pytestmark = pytest.mark.spark

EVENTS = [(1, "a", 1), (12, "b", 2), (25, "a", 3)]


def staged(location):
    return sorted(path.name for path in location.root.glob(".*.staging/*/*"))


@pytest.mark.long
def test_a_finished_jobs_leftovers_are_removed_and_its_output_stays(spark, location):
    """What a driver in a long pause staged after the job had ended is removed; no row changes."""
    write_events(location.input, EVENTS)
    location.run(spark, "tumbling_window")
    before = read_with_pandas(location.output)
    query_id = JobDirectory(open_storage(str(location.job_dir))).run_ids() and next(
        path.name for path in (location.job_dir / "queries/out/committables").iterdir()
    )
    leftover = location.root / ".output.staging" / query_id / "0-0"
    leftover.mkdir(parents=True)
    (leftover / "part-0").write_text("half")

    assert ["out"] == clean_up(str(location.job_dir), spark=spark)
    assert [] == staged(location)
    assert before == read_with_pandas(location.output) == windows_of(EVENTS)


def test_what_spark_has_committed_is_published(spark, location):
    """
    An epoch that a driver could not publish before it ended is published; the run is not resumed.
    """
    write_events(location.input, EVENTS)

    with failing_at("files.published_one"), pytest.raises(Exception, match="files.published_one"):
        location.run(spark, "no_state")

    clean_up(str(location.job_dir), spark=spark)
    assert 3 == len(read_with_pandas(location.output))
    run = JobDirectory(open_storage(str(location.job_dir))).run_ids()
    assert 1 == len(run)
    assert JobDirectory(open_storage(str(location.job_dir))).run(run[0]).final() is None


def test_no_task_takes_it_for_its_driver(spark, location, monkeypatch):
    """
    A task whose run is put in order meanwhile sees that somebody else is at it, and waits for no
    driver of its own.
    """
    write_events(location.input, EVENTS)
    with failing_at("files.published_one"), pytest.raises(Exception, match="files.published_one"):
        location.run(spark, "no_state")
    directory = JobDirectory(open_storage(str(location.job_dir)))
    (run_id,) = directory.run_ids()
    seen = []

    def look(*_) -> None:
        seen.append(RunWatcher(directory.storage, run_id, SystemClock()).assess().run_state)

    monkeypatch.setattr(clean_up_job, "_recover", look)
    clean_up(str(location.job_dir), spark=spark)

    assert [RunState.FOREIGN] == seen


def test_a_location_without_a_job_is_refused(tmp_path, capsys):
    """There is nothing to clean up where no job ever ran; nothing is written."""
    assert UnknownJobError.exit_code == main.main(["cleanup", str(tmp_path / "none")])
    assert "none" in capsys.readouterr().err
    assert [] == list(tmp_path.iterdir())
