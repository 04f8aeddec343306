"""An upgrade whose task waits in a real triggerer, which is killed meanwhile."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest
from chaos import family, send
from services import Airflow, wait_for

from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.jobdir.lease import LeaseObserver, Liveness
from airflow_provider.runtime.jobdir.upgrade_record import upgrade_id
from airflow_provider.runtime.storage.open import open_storage
from tests.present import present

pytestmark = [pytest.mark.spark, pytest.mark.whole, pytest.mark.timeout(600)]

ENDS = ("success", "failed")


def put(location: Path, name: str, *values: int) -> None:
    unfinished = location / "input" / f".{name}"
    unfinished.write_text("".join(f"{value}\n" for value in values))
    unfinished.rename(location / "input" / name)


def batches(job_dir: Path) -> list[Path]:
    """Return the records of what the version in a directory has published."""
    return list(job_dir.glob("queries/copy/committables/*/*.json"))


def driver_of(job_dir: Path) -> str | None:
    """Return the driver that is at work."""
    lease, liveness = LeaseObserver(open_storage(str(job_dir)), SystemClock()).settle()
    return present(lease).driver_id if liveness is Liveness.LIVE else None


def kill_triggerer(airflow: Airflow) -> None:
    """Kill the triggerer with what runs its triggers, and start another one."""
    process = airflow.processes["triggerer"]
    send(family(psutil.Process(process.pid)), signal.SIGKILL)
    process.wait(10)
    airflow.launch("triggerer")


def test_an_upgrade_outlives_its_triggerer(airflow_services: Airflow) -> None:
    """
    The task is deferred while its driver checks, stops the old version and tries the new one. The
    triggerer is killed in the trial period: another one goes on with the wait, the same driver decides,
    and the task is green with what adopts the version. The old version's task says by what it was
    replaced, its next run adopts the driver, and each row is there once.
    """
    airflow = airflow_services
    location = Path(airflow.environment["TEST_DATA"]) / "upgraded"
    (location / "input").mkdir(parents=True)
    put(location, "first.csv", 1, 2, 3)
    stream = airflow.trigger("upgraded_stream")
    wait_for("the first batch", lambda: batches(location / "1"), within=120)

    run_id = airflow.trigger("upgraded")
    airflow.follow("upgraded", run_id, "upgrade", until=("deferred", *ENDS), within=60)
    saved = location / "1" / "savepoints" / upgrade_id(f"{location}/2") / "savepoint.json"
    wait_for("the old version has stopped", saved.exists, within=120)
    put(location, "second.csv", 4, 5)
    wait_for("a batch of the new version", lambda: batches(location / "2"), within=120)
    kill_triggerer(airflow)
    waiting = airflow.task("upgraded", run_id, "upgrade")["state"]
    states = airflow.follow("upgraded", run_id, "upgrade", until=ENDS, within=150)
    result = airflow.xcom("upgraded", run_id, "upgrade")
    airflow.follow("upgraded_stream", stream, "stream", until=ENDS, within=60)
    ended: dict[str, Any] = airflow.xcom("upgraded_stream", stream, "stream")
    again = airflow.trigger("upgraded_stream")
    airflow.follow("upgraded_stream", again, "stream", until=("deferred", *ENDS), within=60)
    put(location, "third.csv", 6)
    wait_for("the third batch", lambda: len(batches(location / "2")) > 1, within=60)
    events = airflow.call("GET", "/assets/events?source_dag_id=upgraded")["asset_events"]
    attempts = location / "2" / "runs" / result["run_id"] / "attempts"
    (attempt,) = [json.loads(path.read_text()) for path in attempts.iterdir()]

    assert "deferred" == waiting
    assert "success" == states[-1], airflow.logs("upgraded", run_id, "upgrade")
    assert (f"{location}/2", f"{location}/1") == (result["job_dir"], result["replaces"])
    assert [result] == [event["extra"] for event in events]
    assert f"{location}/2" == ended["superseded_by"]
    assert attempt["driver_id"] == driver_of(location / "2")  # one driver from the first step on
    assert driver_of(location / "1") is None
    assert "deferred" == airflow.task("upgraded_stream", again, "stream")["state"]
    assert [1, 2, 3, 4, 5, 6] == sorted(pd.read_parquet(location / "output")["value"])
