"""The wait of a worker for a short run, before it defers the task."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from handmade import ELSEWHERE, TI, Job

from airflow_provider.hooks.job_memory import STREAM_KEY
from airflow_provider.operators.awaited_driver import AwaitedDriver
from airflow_provider.operators.spark_streaming import SparkStreamingOperator
from airflow_provider.operators.worker_wait import (
    DEFERRAL_S,
    RunLocation,
    choose_wait_s,
    last_seconds,
    seconds_of,
)
from airflow_provider.runtime.base.clock import SystemClock, from_iso, to_iso
from airflow_provider.runtime.jobdir.lease import LeaseObserver
from tests.present import present

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from airflow_provider.runtime.jobdir.layout import RunDirectory

pytestmark = pytest.mark.usefixtures("callable_outside_of_a_task")


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path / "job")


@pytest.mark.parametrize(
    ("last_s", "is_warm", "passed_s", "expected"),
    [
        (None, False, 0.0, 0.0),
        (None, True, 0.0, DEFERRAL_S),
        (None, True, 600.0, DEFERRAL_S),
        (0.5, True, 0.0, DEFERRAL_S),
        (9.5, False, 0.0, DEFERRAL_S),
        (9.5, False, 9.4, DEFERRAL_S),
        (9.5, False, 9.6, 0.0),
        (10.5, True, 0.0, 0.0),
        (10.5, True, 10.0, 0.0),
        (-1.0, True, 0.0, 0.0),
    ],
)
def test_a_worker_waits_itself_while_that_is_shorter_than_a_deferral(
    last_s: float | None, passed_s: float, expected: float, *, is_warm: bool
) -> None:
    """The table of the decision."""
    assert expected == choose_wait_s(last_s, is_warm=is_warm, passed_s=passed_s)


@pytest.fixture
def ended_run(job: Job) -> Callable[[float], RunDirectory]:
    """Give a function that ends a run of a job so many seconds after its submission."""

    def end(seconds: float) -> RunDirectory:
        job.submit()
        (record,) = job.run.submissions()
        ended = to_iso(from_iso(record.submitted) + dt.timedelta(seconds=seconds))
        final = dataclasses.replace(job.finish(), committed=ended)
        final.put(job.run.storage, "final.json")
        return job.run

    return end


def test_the_seconds_of_a_run_are_those_of_its_one_driver(
    job: Job, ended_run: Callable[[float], RunDirectory]
) -> None:
    """They are unknown before the end, after a stop, and of a run that was continued."""
    assert seconds_of(job.run) is None
    run = ended_run(2.5)
    assert 2.5 == seconds_of(run)

    dataclasses.replace(present(run.final()), outcome="SUSPENDED").put(run.storage, "final.json")
    assert seconds_of(run) is None
    dataclasses.replace(present(run.final()), outcome="FINISHED").put(run.storage, "final.json")
    job.submit("d2")
    assert seconds_of(run) is None


def test_the_last_run_is_that_of_the_job_directory_or_of_the_last_task_that_succeeded(
    job: Job, ended_run: Callable[[float], RunDirectory]
) -> None:
    """A slice's directory is new, so Airflow knows the last one; what fails is unknown."""
    ended_run(2.5)
    location = {"job_dir": job.url, "run_id": job.run_id}
    pulled: list[Any] = []

    def pull(**asked: Any) -> Any:
        pulled.append(asked)
        return location

    def previous(**asked: Any) -> Any:
        pulled.append(asked)
        return SimpleNamespace(run_id="run_0")

    ti = SimpleNamespace(map_index=3, get_previous_ti=previous, xcom_pull=pull)

    assert 2.5 == last_seconds(TI, RunLocation(**location))
    assert 2.5 == last_seconds(ti, None)
    assert [{"state": "success", "map_index": 3}, {"key": STREAM_KEY, "run_id": "run_0"}] == pulled
    assert last_seconds(TI, None) is None
    ti.get_previous_ti = lambda **_: None
    assert last_seconds(ti, None) is None
    del ti.map_index
    assert last_seconds(ti, None) is None


def test_a_worker_waits_first_where_a_warm_driver_is_asked_for_or_the_last_run_was_short(
    job: Job, ended_run: Callable[[float], RunDirectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task or its connection asks for one; `defer_after` wins, and no stream is waited for."""
    new = AwaitedDriver("d9", None, to_iso(SystemClock().now()))
    ended_run(2.5)

    def seconds(waited: AwaitedDriver = new, **arguments: Any) -> float:
        return SparkStreamingOperator(
            task_id="daily", job="flights.jobs:daily", job_dir=job.url, **arguments
        )._defer_after_s(waited, {"ti": TI})

    assert [0.0, DEFERRAL_S, 0.0] == [seconds(), seconds(warm=True), seconds(conn_id="nowhere")]
    assert 13.0 == seconds(new._replace(last_run=job.run_id))
    assert 0.0 == seconds(new._replace(last_run=job.run_id), defer_after=0)
    assert 0.0 == seconds(warm=True, until="stopped")
    assert 0.0 == seconds(AwaitedDriver(), warm=True)
    monkeypatch.setenv(
        "AIRFLOW_CONN_SPARK_DEFAULT",
        json.dumps({"conn_type": "spark", "host": "local[1]", "extra": {"warm": True}}),
    )
    assert DEFERRAL_S == seconds()


def test_the_last_run_is_that_of_the_newest_lease(job: Job) -> None:
    """Before the driver of this run had one; a run that is continued is not the last one."""
    job.submit()
    (record,) = job.run.submissions()
    with job.lease():
        lease = LeaseObserver(job.directory.storage, SystemClock()).current()

    other = dataclasses.replace(record, run_id="another")
    assert None is AwaitedDriver.of(record, lease).last_run
    assert job.run_id == AwaitedDriver.of(other, lease).last_run
    assert None is AwaitedDriver.of(other).last_run


def test_a_worker_sees_the_end_of_a_short_run_before_the_next_poll(job: Job) -> None:
    """It looks for the final checkpoint alone between two polls of everything."""
    job.submit(process=ELSEWHERE)
    operator = SparkStreamingOperator(
        task_id="daily",
        job="flights.jobs:daily",
        job_dir=job.url,
        poll_interval=600.0,
        deferrable=False,
    )
    with job.lease():
        ending = threading.Timer(0.3, job.finish)
        ending.start()
        began = SystemClock().monotonic()
        shown = operator.execute({"ti": TI})
        ending.join()

    assert "FINISHED" == shown["outcome"]
    assert SystemClock().monotonic() - began < 300.0
