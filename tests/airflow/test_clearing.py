"""A retry resumes, a clear replays: Airflow's own numbers distinguish them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider.hooks.task_runs import RunChoice, current_run, resolve_run
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.submissions import RunOwnerRecord
from airflow_provider.runtime.storage.open import open_storage
from airflow_provider.runtime.testing.job_directories import a_run

if TYPE_CHECKING:
    from pathlib import Path

FIRST = "flights-daily-run_1"


@pytest.fixture
def job_dir(tmp_path: Path) -> str:
    return str(tmp_path / "job")


def submit(job_dir: str, run_id: str, max_tries: int) -> None:
    """Record the run's owner, as a task does before it submits a driver."""
    owner = RunOwnerRecord(
        dag_id="flights", dag_run_id="run_1", run_type="manual", slice=None, max_tries=max_tries
    )
    run = JobDirectory(open_storage(job_dir)).run(run_id)
    owner.put_if_absent(run.storage, RunOwnerRecord.NAME)


def begin(job_dir: str, run_id: str, max_tries: int) -> None:
    """Submit a driver, and let it record the run."""
    submit(job_dir, run_id, max_tries)
    JobDirectory(open_storage(job_dir)).run(run_id).put_record(a_run(run_id))


def execute(job_dir: str, max_tries: int) -> RunChoice:
    return resolve_run(job_dir, FIRST, max_tries)


def test_retries_are_of_the_same_run(job_dir: str) -> None:
    """A try after a failure has the same number, so it resumes what the one before it began."""
    first = execute(job_dir, 3)
    begin(job_dir, FIRST, 3)

    assert RunChoice(FIRST, None) == first == execute(job_dir, 3) == execute(job_dir, 3)


def test_a_clear_is_another_run_in_its_place(job_dir: str) -> None:
    """
    It replays the one before it; its own retries resume it, and each further clear is the next.
    """
    begin(job_dir, FIRST, 3)

    second = execute(job_dir, 4)
    assert RunChoice(f"{FIRST}.r2", FIRST) == second == execute(job_dir, 4) == execute(job_dir, 7)
    assert second == current_run(job_dir, FIRST)

    begin(job_dir, f"{FIRST}.r2", 7)
    assert second == execute(job_dir, 7)
    assert RunChoice(f"{FIRST}.r3", f"{FIRST}.r2") == execute(job_dir, 8)


def test_a_task_cleared_before_its_run_has_begun_has_nothing_to_undo(job_dir: str) -> None:
    """
    The run stays the first one, also when it is retried afterwards, whether or not a driver was
    submitted that has not come up; without one nothing is written.
    """
    assert RunChoice(FIRST, None) == execute(job_dir, 4)
    assert [] == JobDirectory(open_storage(job_dir)).storage.list("")
    submit(job_dir, FIRST, 4)
    assert RunChoice(FIRST, None) == execute(job_dir, 5)

    begin(job_dir, FIRST, 5)
    assert RunChoice(FIRST, None) == execute(job_dir, 5)
    assert f"{FIRST}.r2" == execute(job_dir, 6).run_id


def test_two_that_see_one_clear_agree(job_dir: str) -> None:
    """A worker that dies after the decision leaves it to the next try."""
    begin(job_dir, FIRST, 0)

    assert execute(job_dir, 1) == execute(job_dir, 1) == current_run(job_dir, FIRST)
