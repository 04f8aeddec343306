"""Supervision: what it sees of a run, and what it says of one that goes on."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import TYPE_CHECKING

import pytest

from airflow_provider.runtime.errors import CheckpointError
from airflow_provider.runtime.jobdir.dropped_rows import describe_dropped_rows
from airflow_provider.runtime.jobdir.lease import Liveness
from airflow_provider.runtime.jobdir.query_reports import PublishedSource
from airflow_provider.runtime.observe.completeness import describe_running
from airflow_provider.runtime.observe.health import Limits
from airflow_provider.runtime.observe.snapshot import RunSnapshot
from airflow_provider.runtime.observe.supervise import (
    Supervision,
    sample_query,
)
from airflow_provider.runtime.testing.job_directories import (
    JobDirectoryBuilder,
    a_progress,
    an_attempt,
)
from tests.unit.support import a_lease

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_provider.runtime.jobdir.run_records import ProgressRecord


def a_snapshot(*, token: int = 2, progress: ProgressRecord | None = None) -> RunSnapshot:
    lease = dataclasses.replace(a_lease(driver_id="d2"), token=token)
    attempt = an_attempt(2, driver_id="d2")
    return RunSnapshot(
        "r1", lease=lease, liveness=Liveness.LIVE, attempt=attempt, progress=progress
    )


def test_a_report_of_the_driver_before_is_not_this_ones() -> None:
    """Only what the attempt that holds the lease has reported counts."""
    assert a_progress() == a_snapshot(progress=a_progress()).driver_progress
    assert a_snapshot(progress=a_progress(attempt=1)).driver_progress is None
    assert a_snapshot(token=3, progress=a_progress()).driver_progress is None
    assert a_snapshot().driver_progress is None


def test_a_query_is_looked_at_in_its_logs(tmp_path: Path) -> None:
    """Nothing yet, a planned batch, a committed one."""
    job = JobDirectoryBuilder(tmp_path)
    looks = [sample_query(job.directory, "q", None)]
    job.spark.begin().plan(0)
    looks.append(sample_query(job.directory, "q", {"numFilesOutstanding": 0}))
    job.spark.commit(0)
    looks.append(sample_query(job.directory, "q", None))

    assert [(-1, -1), (0, -1), (0, 0)] == [(each.planned, each.committed) for each in looks]
    assert [False, True, False] == [each.has_work for each in looks]


def test_what_is_told_survives_json() -> None:
    """Limits and end travel in a trigger's arguments, and so do their absences."""
    ends = dt.datetime(2026, 1, 1, 1, tzinfo=dt.timezone.utc)
    full = Supervision(Limits(30.0, {"numFilesOutstanding": 5}, 60.0), ends)

    assert [full, Supervision(Limits())] == [
        Supervision.from_dict(each.to_dict()) for each in (full, Supervision(Limits()))
    ]


@pytest.mark.parametrize(
    ("limits", "seconds"),
    [
        (Limits(), 5.0),
        (Limits(3600.0), 5.0),
        (Limits(10.0), 1.0),
        (Limits(lag_time_s=1.0), 5.0),
        (Limits(10.0, {"numFilesOutstanding": 5}, 2.0), 0.2),
    ],
)
def test_looks_are_as_many_as_the_shortest_limit_needs(limits: Limits, seconds: float) -> None:
    """What is not limited asks for no looks."""
    assert seconds == Supervision(limits).poll_every_s()


def test_a_query_of_sparks_own_sink_is_told_by_its_commits(tmp_path: Path) -> None:
    """
    It publishes as it writes and has no epochs, so what Spark has committed is what readers see.
    """
    job = JobDirectoryBuilder(tmp_path).begin().request_run()
    job.spark.begin().run(0).run(1)
    operator = {"id": 0, "name": "hours", "kind": "stateStoreSave", "finish_state": "running"}
    queries = {"q": {"backlog": None, "rows_read": 3, "operators": [{**operator, "late_rows": 3}]}}

    progress = a_progress(queries=queries, late_rows=3, late_minimum=True, lost_rows=4)
    document = describe_running(job.directory, a_snapshot(progress=progress))

    assert (3, 4) == (document.late_rows, document.lost_rows)
    late, _ = describe_dropped_rows(document)
    assert late.startswith("at least 3 rows")
    assert late.endswith("3 by operator hours of query q")
    query = document.queries["q"]
    assert (1, ()) == (query.batch_id, query.sinks)
    assert (PublishedSource(name=None, end_offset={"logOffset": 0}),) == query.sources


def test_a_driver_that_has_not_begun_has_nothing_to_hand_over(tmp_path: Path) -> None:
    """The error says so, and no document is made up."""
    with pytest.raises(CheckpointError, match="has not begun its queries"):
        describe_running(JobDirectoryBuilder(tmp_path).directory, a_snapshot())
