"""Revised hours of a stream in a real Airflow, whose triggerers are killed meanwhile."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from chaos import kill_triggerer
from services import HERE, Airflow, postgres_server, wait_for

from tests.unit.hourly_job import HourlyJob, ended

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.timeout(900), pytest.mark.whole]

HOURS = 24
HASTE = {
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "5",
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "2",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "8",
}


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    """Give an Airflow with a database of its own."""
    folder = tmp_path_factory.mktemp("revised")
    (folder / "dags").mkdir()
    shutil.copy(HERE / "dags" / "revising.py", folder / "dags")
    with postgres_server() as url:
        data = str(folder / "data")
        airflow = Airflow(folder / "home", folder / "dags", url, TEST_DATA=data, **HASTE)
        try:
            airflow.start()
            yield airflow
        finally:
            airflow.stop()


def reports(airflow: Airflow) -> list[str]:
    """Return the ids of the runs of what reads an hour, that have succeeded."""
    path = "/dags/hour_report/dagRuns?state=success&limit=100&order_by=run_id"
    return [run["dag_run_id"] for run in airflow.call("GET", path)["dag_runs"]]


def test_an_hour_that_is_replayed_is_read_again_once_and_no_other(airflow: Airflow) -> None:
    """
    Of 24 hours the last one is replayed. Triggerers are killed when its rows are removed, when they
    are published again, and when its event is registered: its consumer has one run more, which the
    other hours have not, and none before the replay has ended.
    """
    job = HourlyJob(airflow.home.parent / "data" / "revised" / "job")
    for hour in range(HOURS):
        job.run(hour)
    for dag_id in ("hour_report", "revising"):
        airflow.unpause(dag_id)
    complete = sorted(f"complete:{ended(hour)}" for hour in range(HOURS))
    wait_for("a run for each hour", lambda: len(reports(airflow)) >= HOURS, within=400, every=1)
    first = sorted(reports(airflow))
    replay = job.undo_for_replay(HOURS - 1)
    kill_triggerer(airflow, whole=True)
    job.run(HOURS - 1, replay, rows=7, is_final=False)
    with pytest.raises(AssertionError, match="not within 8 seconds: another run"):
        wait_for("another run", lambda: len(reports(airflow)) > HOURS, within=8, every=1)
    job.finish(replay)
    kill_triggerer(airflow, whole=False)
    wait_for("a run more", lambda: len(reports(airflow)) > HOURS, within=200, every=0.2)
    kill_triggerer(airflow, whole=True)
    job.run(HOURS)  # whose event comes after all that the next triggerer repeats
    wait_for("the next hour", lambda: len(reports(airflow)) > HOURS + 1, within=200, every=1)
    job.bench.close()

    assert complete == first
    revised = f"revised:r{HOURS - 1}:1:{ended(HOURS - 1)}"
    assert sorted([*complete, revised, f"complete:{ended(HOURS)}"]) == sorted(reports(airflow))
