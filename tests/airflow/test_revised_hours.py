"""Revised hours of a stream in a real Airflow, whose triggerers are killed meanwhile."""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from chaos import kill_triggerer
from services import HERE, Airflow, postgres_server, wait_for

from tests.unit.hourly_job import HourlyJob, ended

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.timeout(3600), pytest.mark.whole]

HOURS = 24
EVENTS_S = 600  # Airflow 3.1 and 3.2 have no state store: each event takes 12 to 17 seconds there
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
    path = "/dags/hour_report/dagRuns?state=success&limit=100"
    return [run["dag_run_id"] for run in airflow.call("GET", path)["dag_runs"]]


def events(airflow: Airflow) -> set[str]:
    """Return the ids of the asset's events; where Airflow keeps no position, one may come twice."""

    def ask() -> dict[str, Any] | None:
        # Airflow 3.3.2 answers 500 while a run that an event has created has not begun.
        with contextlib.suppress(AssertionError):
            return dict(airflow.call("GET", "/assets/events?limit=100"))
        return None

    found = wait_for("an answer", ask, within=60)["asset_events"]
    return {each["extra"]["payload"]["id"] for each in found}


def read_all(airflow: Airflow, job: HourlyJob, wanted: set[str]) -> None:
    """Let hours pass until all wanted runs are there: an event may wait for a later one."""
    for hour in range(HOURS, HOURS + 8):
        job.run(hour)
        wait_for("the hour", lambda: f"complete:{ended(hour)}" in events(airflow), within=EVENTS_S)
        with contextlib.suppress(AssertionError):
            wait_for("the runs", lambda: wanted <= {*reports(airflow)}, within=30, every=1)
            return
    assert wanted <= {*reports(airflow)}


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
    complete = {f"complete:{ended(hour)}" for hour in range(HOURS)}
    revised = f"revised:r{HOURS - 1}:1:{ended(HOURS - 1)}"
    wait_for("every hour", lambda: complete <= events(airflow), within=EVENTS_S, every=1)
    replay = job.undo_for_replay(HOURS - 1)
    kill_triggerer(airflow, whole=True)
    job.run(HOURS - 1, replay, rows=7, is_final=False)
    with pytest.raises(AssertionError, match="not within 15 seconds: another event"):
        wait_for("another event", lambda: events(airflow) != complete, within=15, every=1)
    job.finish(replay)
    kill_triggerer(airflow, whole=False)
    wait_for("the event", lambda: revised in events(airflow), within=EVENTS_S, every=0.1)
    kill_triggerer(airflow, whole=True)
    read_all(airflow, job, {*complete, revised})
    job.bench.close()

    found = reports(airflow)
    later = {f"complete:{ended(hour)}" for hour in range(HOURS, HOURS + 8)}
    assert sorted([*complete, revised]) == sorted(each for each in found if each not in later)
