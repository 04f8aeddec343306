"""The stop operator: what it makes of the driver's answer, here, in the triggerer and in Airflow."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pandas as pd
import pytest
from airflow.sdk import DAG, Asset
from airflow_names import DagSerialization, TaskDeferred, import_string
from handmade import RUN, Job, OutletEvents
from services import Airflow, wait_for

from airflow_provider.airflow_versions import AirflowException, AirflowFailException
from airflow_provider.operators.spark_stop import SparkStopOperator
from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.base.host import identify
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.requests import reply, requests_of
from airflow_provider.runtime.jobdir.run_records import JobRecord, RequestRecord
from airflow_provider.runtime.savepoints.catalog import open_savepoint, verify_savepoint
from airflow_provider.runtime.testing.job_directories import a_run, identified
from airflow_provider.triggers import polling
from airflow_provider.triggers.spark_stop import SparkStopTrigger

pytestmark = pytest.mark.usefixtures("callable_outside_of_a_task")

POLL_S = 0.05
HOLD_S = 0.5


@pytest.fixture(autouse=True)
def held_back_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> float:
    """Return how long a trigger keeps its event back: here nobody's worker has to be noticed."""
    monkeypatch.setattr(polling, "HOLD_S", HOLD_S)
    return HOLD_S


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Return a job of one run, which nobody executes."""
    found = Job(tmp_path / "job")
    JobDirectory(identified(found.storage)).put_job(JobRecord(name="daily", created="now"))
    found.run.put_record(a_run(RUN))
    return found


def operator_of(job: Job, **arguments: Any) -> SparkStopOperator:
    arguments = {"poll_interval": POLL_S, "deferrable": False, **arguments}
    return SparkStopOperator(task_id="stop", job_dir=job.url, **arguments)


def context(max_tries: int = 0, **more: Any) -> Any:
    ti = SimpleNamespace(
        dag_id="flights", task_id="stop", run_id="run_1", map_index=-1, max_tries=max_tries
    )
    return {"ti": ti, "run_id": "run_1", **more}


def requests(job: Job) -> list[RequestRecord]:
    found = [r for driver in job.storage.list("requests") for r in requests_of(job.storage, driver)]
    return sorted(found, key=lambda request: request.at)


def answer(job: Job, request_id: str, **said: Any) -> None:
    said = {"ok": True, "message": "", "outcome": "SUSPENDED", **said}
    reply(job.storage, request_id, clock=SystemClock(), **said)


def deferred(job: Job, max_tries: int = 0, **arguments: Any) -> SparkStopTrigger:
    """Execute, and return the trigger that it must come to, as another triggerer rebuilds it."""
    arguments = {"deferrable": True, "defer_after": 0, **arguments}
    with pytest.raises(TaskDeferred) as raised:
        operator_of(job, **arguments).execute(context(max_tries))
    assert ("resume", {"run_id": RUN}) == (raised.value.method_name, raised.value.kwargs)
    classpath, stored = raised.value.trigger.serialize()
    rebuilt = import_string(classpath)(**json.loads(json.dumps(stored)))
    assert isinstance(rebuilt, SparkStopTrigger)
    assert (classpath, stored) == rebuilt.serialize()
    return rebuilt


def fire(trigger: SparkStopTrigger, within: float = 10.0) -> list[dict[str, Any]]:
    """Run the trigger to its own end, as the triggerer does, and return all its events."""

    async def collect() -> list[dict[str, Any]]:
        return [event.payload async for event in trigger.run()]

    return asyncio.run(asyncio.wait_for(collect(), within))


# --- what cannot be stopped ---------------------------------------------------------------------


@pytest.mark.parametrize("waiting", ["here", "deferred"])
def test_what_is_not_there_fails_for_good(job: Job, tmp_path: Path, waiting: str) -> None:
    """
    No job, a job without a driver, a job that has ended: each is one error at once, which no retry
    follows, and nothing is asked.
    """
    nothing = Job(tmp_path / "nothing")
    with pytest.raises(AirflowFailException, match=r"nothing: no job there \(no job.json\)"):
        operator_of(nothing, deferrable=waiting == "deferred").execute(context())
    assert not nothing.root.exists()

    stop = operator_of(job, deferrable=waiting == "deferred")
    with pytest.raises(AirflowFailException, match="no driver is running this job, so there is"):
        stop.execute(context())
    job.finish()
    with pytest.raises(AirflowFailException, match=f"its last run '{RUN}' is FINISHED"):
        stop.execute(context())
    assert [] == requests(job)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"timeout": "soon"}, "timeout: 'soon' is not a duration"),
        ({"aligned_timeout": "soon"}, "aligned_timeout: 'soon' is not a duration"),
        ({"defer_after": "soon"}, "defer_after: 'soon' is not a duration"),
        ({"poll_interval": 0}, "poll_interval 0: seconds between polls, more than 0"),
    ],
)
def test_a_bad_argument_is_refused_when_the_dag_is_parsed(wrong: dict[str, Any], said: str) -> None:
    """The error names the argument, and what it may be."""
    with pytest.raises(ConfigError, match=said):
        SparkStopOperator(task_id="stop", **{"job_dir": "/jobs/flights", **wrong})


def test_a_savepoint_has_a_name_or_an_address(job: Job) -> None:
    """
    A name means the job's own savepoints, an address is taken as it is, and what can be neither is
    refused before the driver is asked.
    """
    with job.lease():
        for savepoint in ("before-upgrade", "/backup/flights"):
            deferred(job, max_tries=len(requests(job)), savepoint=savepoint, aligned_timeout=5)
        with pytest.raises(AirflowFailException, match="savepoint"):
            operator_of(job, savepoint="..").execute(context(max_tries=9))

    locations = [f"{job.url}/savepoints/before-upgrade", "/backup/flights"]
    assert locations == [request.savepoint for request in requests(job)]
    assert [5.0, 5.0] == [request.aligned_timeout_s for request in requests(job)]


def test_the_operator_can_be_serialised() -> None:
    """The scheduler sees the DAG through Airflow's serialisation."""
    with DAG("flights", schedule=None) as dag:
        SparkStopOperator(task_id="stop", job_dir="/jobs/flights", savepoint="s-{{ ds }}")

    (task,) = DagSerialization.to_dict(dag)["dag"]["tasks"]
    assert ["job_dir", "savepoint", "storage_conn_id"] == list(task["__var"]["template_fields"])


# --- the driver's answer ------------------------------------------------------------------------


def test_a_worker_waits_for_the_answer(job: Job) -> None:
    """XCom and every outlet's event say which run was stopped, how, and where its savepoint is."""
    asset = Asset("flights-stopped")
    events = OutletEvents(asset)
    stop = operator_of(job, savepoint="s1", outlets=[asset])

    with job.lease():
        told: list[Any] = []
        worker = threading.Thread(
            target=lambda: told.append(stop.execute(context(outlet_events=events)))
        )
        worker.start()
        (request,) = wait_for("the driver is asked", lambda: requests(job), within=10)
        answer(job, request.id, savepoint=request.savepoint)
        worker.join(10)

    saved = f"{job.url}/savepoints/s1"
    assert [{"run_id": RUN, "outcome": "SUSPENDED", "savepoint": saved}] == told
    assert told[0] == events[asset].extra


def test_the_trigger_hands_the_answer_over(job: Job) -> None:
    """It fires once, and the task goes on with what the driver has said, be it a refusal."""
    with job.lease():
        done, refused = deferred(job), deferred(job, max_tries=1, drain=True)
        first, second = requests(job)
        answer(job, first.id)
        answer(job, second.id, ok=False, message="the job is being stopped already", outcome=None)
        (told,) = fire(done)
        (said,) = fire(refused)

    stop = operator_of(job)
    expected = {"run_id": RUN, "outcome": "SUSPENDED", "savepoint": None}
    assert expected == stop.resume(context(), told, RUN)
    assert [False, True] == [first.drain, second.drain]
    with pytest.raises(
        AirflowFailException, match="not stopped as requested: the job is being stop"
    ):
        stop.resume(context(), said, RUN)


def test_a_driver_that_dies_is_told_at_once(job: Job) -> None:
    """
    Who waits for a driver that is gone gets an error that says so, and does not wait for the end of
    the time that it was given.
    """
    command = [sys.executable, "-c", "input()"]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE) as driver,
        job.lease(owner=identify([driver.pid])),
    ):
        trigger = deferred(job, timeout="10 minutes")
        driver.kill()
        driver.wait()
        (event,) = fire(trigger)

    assert "ended without an answer" in event["error"]
    with pytest.raises(AirflowException, match="ended without an answer") as caught:
        operator_of(job).resume(context(), event, RUN)
    assert AirflowException is caught.type  # for which a retry may find the next driver


def test_what_is_answered_soon_is_not_deferred(job: Job) -> None:
    """The worker itself waits for the first seconds; the triggerer has what is left of the time."""
    stop = operator_of(job, deferrable=True, defer_after=10, savepoint="s1")
    with job.lease():
        told: list[Any] = []
        worker = threading.Thread(target=lambda: told.append(stop.execute(context())))
        worker.start()
        (request,) = wait_for("the driver is asked", lambda: requests(job), within=10)
        answer(job, request.id)
        worker.join(10)
        later = deferred(job, max_tries=1, defer_after=0.2, timeout=100)

    assert ["SUSPENDED"] == [each["outcome"] for each in told]
    assert 99.8 == later.timeout_s


def test_a_trigger_keeps_its_event_back_until_its_worker_has_ended(
    job: Job, held_back_for_a_moment: float
) -> None:
    """
    An answer that is there at once comes when Airflow has noticed that the worker has ended, one
    that comes later without delay.
    """
    began = time.monotonic()
    with job.lease():
        trigger = deferred(job)
        answer(job, requests(job)[0].id)
        fire(trigger)
        took = time.monotonic() - began
        (event,) = fire(deferred(job, max_tries=1, timeout=2 * held_back_for_a_moment))

    assert took >= held_back_for_a_moment
    assert "has not stopped in 1 seconds" in event["error"]
    assert time.monotonic() - began < took + 3 * held_back_for_a_moment


@pytest.mark.parametrize("waiting", ["here", "deferred"])
def test_there_is_an_end_to_waiting(job: Job, waiting: str) -> None:
    """A driver that says nothing: the error names the time, and that the request stands."""
    said = "has not stopped in 0.3 seconds; it still will when its batch ends"
    with job.lease():
        if waiting == "deferred":
            (event,) = fire(deferred(job, timeout=0.3))
            assert said in event["error"]
        else:
            with pytest.raises(AirflowException, match=said) as caught:
                operator_of(job, timeout=0.3).execute(context())
            assert AirflowException is caught.type  # a retry waits on

    assert 1 == len(requests(job))


def test_a_storage_that_is_away_is_waited_for(job: Job, tmp_path: Path) -> None:
    """The trigger goes on looking when it cannot read the job directory for a while."""
    with job.lease():
        trigger = deferred(job)
        (request,) = requests(job)
        answer(job, request.id)
        replies, away = job.root / "replies", tmp_path / "away"
        replies.rename(away)
        replies.touch()  # no folder any more: whoever reads there gets an error of the system

        async def watch() -> tuple[bool, list[dict[str, Any]]]:
            async def events() -> list[dict[str, Any]]:
                return [event.payload async for event in trigger.run()]

            task = asyncio.create_task(events())
            done, _ = await asyncio.wait([task], timeout=1.0)
            replies.unlink()
            away.rename(replies)
            return bool(done), await asyncio.wait_for(task, 10)

        fired_early, (event,) = asyncio.run(watch())

    assert not fired_early
    assert "SUSPENDED" == event["answer"]["outcome"]


def test_a_retry_waits_for_the_same_stop_and_a_clear_asks_anew(job: Job) -> None:
    """
    A try after a worker's death finds the answer, also when the driver has gone; a clear, by which
    Airflow raises the number of tries, means another stop, for which there is nobody now.
    """
    with job.lease():
        first = deferred(job, max_tries=2, savepoint="s1")
        assert first.serialize() == deferred(job, max_tries=2, savepoint="s1").serialize()
        (request,) = requests(job)
        answer(job, request.id, savepoint=request.savepoint)
    job.finish("SUSPENDED")
    stop = operator_of(job, savepoint="s1")

    told = stop.execute(context(max_tries=2))
    with pytest.raises(AirflowFailException, match=f"its last run '{RUN}' is SUSPENDED"):
        stop.execute(context(max_tries=5))

    assert request.savepoint == told["savepoint"]
    assert [request.id] == [found.id for found in requests(job)]


# --- in Airflow ---------------------------------------------------------------------------------

STREAM, DEFERRED = "stopped_stream", "stops_deferred"
SOON, IN_A_WORKER = "stops_soon", "drains_in_a_worker"
ENDS = ("success", "failed")
Rows = list[tuple[pd.Timestamp, str, int, int]]


class Stopped:
    """The stream of the DAGs, its input and its output.

    Args:
        airflow: where the DAGs run.
    """

    def __init__(self, airflow: Airflow) -> None:
        self._airflow = airflow
        self.root = Path(airflow.environment["TEST_DATA"]) / "stopped"
        shutil.rmtree(self.root, ignore_errors=True)
        (self.root / "input").mkdir(parents=True)
        self._rows: list[tuple[pd.Timestamp, str, int]] = []

    def write(self, minute: int) -> None:
        """Put the events of one minute, and the first one of the next."""
        start = pd.Timestamp("2026-01-01") + pd.Timedelta(minutes=minute)
        new = [(start + dt.timedelta(seconds=s), key, minute + s) for s in (1, 60) for key in "ab"]
        unfinished = self.root / "input" / f".{minute}.csv"
        unfinished.write_text("".join(f"{t:%F %T},{key},{value}\n" for t, key, value in new))
        unfinished.replace(self.root / "input" / f"{minute}.csv")
        self._rows += new

    def truth(self) -> Rows:
        frame = pd.DataFrame(self._rows, columns=["time", "key", "value"])
        groups = frame.groupby([frame["time"].dt.floor("min").rename("minute"), "key"])["value"]
        return _sorted(groups.agg(n="size", total="sum").reset_index())

    def output(self) -> Rows:
        folder = self.root / "output"
        return _sorted(pd.read_parquet(folder)) if folder.is_dir() else []

    def start(self, *, published: int) -> str:
        """Trigger the stream, and return its run when so many rows are published in all."""
        run_id = self._airflow.trigger(STREAM)
        wait_for("what is over is published", lambda: len(self.output()) >= published, within=90)
        return run_id

    def trigger(self, dag_id: str) -> tuple[str, list[str]]:
        """Return a new run of a DAG that stops, and the states of its task."""
        run_id = self._airflow.trigger(dag_id)
        return run_id, self.states(dag_id, run_id)

    def states(self, dag_id: str, run_id: str) -> list[str]:
        return self._airflow.follow(dag_id, run_id, "stop", until=ENDS, within=90)

    def end_of_stream(self, run_id: str) -> tuple[str, str]:
        """Return the state of the stream's task, and its final checkpoint's outcome."""
        states = self._airflow.follow(STREAM, run_id, "stream", until=ENDS, within=60)
        self._airflow.wait_for_end(STREAM, run_id)
        return states[-1], self._airflow.xcom(STREAM, run_id, "stream")["outcome"]


def _sorted(frame: pd.DataFrame) -> Rows:
    columns = (frame[name].tolist() for name in ("minute", "key", "n", "total"))
    return sorted(zip(*columns, strict=True))


@pytest.mark.whole
@pytest.mark.spark
@pytest.mark.timeout(400)
def test_a_stream_is_stopped_and_goes_on_and_is_drained(airflow_services: Airflow) -> None:
    """
    Stopped with a savepoint from the triggerer, the stream's own task turns green, and its next run
    goes on; a stop whose savepoint's location is taken fails at once and disturbs nobody; drained from
    a worker, all windows are written, and a clear of the first stop has nothing to stop any more.
    """
    airflow = airflow_services
    stream = Stopped(airflow)

    stream.write(0)
    first = stream.start(published=2)
    stop, states = stream.trigger(DEFERRED)
    told = airflow.xcom(DEFERRED, stop, "stop")
    query = f"source_dag_id={DEFERRED}&source_run_id={quote(stop)}"
    events = airflow.call("GET", f"/assets/events?{query}")["asset_events"]
    assert ["deferred", "success"] == [s for s in states if s in {"deferred", *ENDS}]
    saved = f"{stream.root}/job/savepoints/stopped-1"
    assert ("SUSPENDED", saved) == (told["outcome"], told["savepoint"])
    assert [told] == [event["extra"] for event in events]
    assert [] == verify_savepoint(open_savepoint(saved))
    assert ("success", "SUSPENDED") == stream.end_of_stream(first)

    stream.write(2)
    second = stream.start(published=4)
    refused, states = stream.trigger(SOON)
    assert ("failed", False, False) == (states[-1], "deferred" in states, "up_for_retry" in states)
    said = "choose another name for the savepoint; the job keeps running"
    assert said in airflow.logs(SOON, refused, "stop")
    drain, states = stream.trigger(IN_A_WORKER)
    assert ("success", False) == (states[-1], "deferred" in states)
    assert "FINISHED" == airflow.xcom(IN_A_WORKER, drain, "stop")["outcome"]
    assert ("success", "FINISHED") == stream.end_of_stream(second)
    assert stream.truth() == stream.output()

    airflow.clear(DEFERRED, stop, "stop")
    states = stream.states(DEFERRED, stop)
    assert ("failed", False) == (states[-1], "up_for_retry" in states)
    assert 2 == airflow.task(DEFERRED, stop, "stop")["try_number"]
    assert "so there is nothing to stop; its last run" in airflow.logs(DEFERRED, stop, "stop")
