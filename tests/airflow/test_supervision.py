"""DAG runs that watch a stream without an end, each for its time, on job directories made by hand."""

from __future__ import annotations

import asyncio
import datetime as dt
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import Asset
from airflow_names import TaskDeferred
from handmade import ELSEWHERE, TI, OutletEvents
from handmade_streams import RUN, Stream
from services import wait_for

from airflow_provider.airflow_versions import AirflowException, AirflowFailException
from airflow_provider.hooks.spark_streaming import SparkStreamingHook
from airflow_provider.hooks.task_runs import Period, PeriodRecord
from airflow_provider.operators.retry_policy import SparkRunFailedError
from airflow_provider.operators.spark_streaming import SparkStreamingOperator
from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.base.host import identify_this
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.lease import LeaseObserver, Liveness
from airflow_provider.runtime.jobdir.requests import put_cancel, put_request
from airflow_provider.runtime.testing.job_directories import rewind_run
from airflow_provider.triggers import polling
from airflow_provider.triggers.spark_streaming import SparkStreamingTrigger
from tests.unit.support import FakeClock

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("callable_outside_of_a_task")

MISSING = "/nowhere/jobs.py:daily"  # as soon as a driver is to be submitted, this is refused
DELAYS = Asset("delays")


@pytest.fixture(autouse=True)
def no_worker_to_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's worker has to be noticed here."""
    monkeypatch.setattr(polling, "HOLD_S", 0.0)


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    return Stream(tmp_path / "job")


def operator_of(stream: Stream, **arguments: Any) -> SparkStreamingOperator:
    told = {"job": MISSING, "poll_interval": 0.05, "until": "stopped", "max_runtime": "1 hour"}
    return SparkStreamingOperator(task_id="daily", job_dir=stream.url, **{**told, **arguments})


def context(dag_run: str = "run_1", *, max_tries: int = 3) -> Any:
    ti = SimpleNamespace(**{**vars(TI), "run_id": dag_run, "max_tries": max_tries})
    ti.xcom_push = lambda key, value: vars(ti).setdefault("pushed", {}).update({key: value})
    return {"ti": ti, "outlet_events": OutletEvents(DELAYS)}


def deferral(operator: SparkStreamingOperator, told: Any) -> SparkStreamingTrigger:
    """Execute, and return the trigger that the task waits with."""
    with pytest.raises(TaskDeferred) as raised:
        operator.execute(told)
    assert isinstance(raised.value.trigger, SparkStreamingTrigger)
    return raised.value.trigger


def fire(trigger: SparkStreamingTrigger, within: float = 10.0) -> dict[str, Any]:
    """Run the trigger to its own end, as the triggerer does, and return its event."""

    async def collect() -> list[dict[str, Any]]:
        return [event.payload async for event in trigger.run()]

    (event,) = asyncio.run(asyncio.wait_for(collect(), within))
    return event


def periods(stream: Stream) -> dict[str, PeriodRecord]:
    storage = stream.run.storage
    read = {name: PeriodRecord.read(storage, f"periods/{name}") for name in storage.list("periods")}
    return {name: record for name, record in read.items() if record is not None}


# --- arguments ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"until": "end"}, "only a run with until='stopped' is handed over"),
        ({"until": None}, "only a run with until='stopped' is handed over"),
        ({"on_clear": "replay"}, "max_runtime goes with on_clear='resume'"),
        ({"max_runtime": 0}, "max_runtime 0: a time, more than 0"),
        ({"max_runtime": "a while"}, "max_runtime: 'a while' is not a duration"),
        ({"progress_timeout": 0}, "progress_timeout 0: a time, more than 0"),
        ({"progress_timeout": "1 minute", "trigger": "1 minute"}, "batches come every '1 minute'"),
        ({"max_lag": {"maxOffsetsBehindLatest": "many"}}, "max_lag: 'many' for 'maxOffsetsBeh"),
        ({"max_lag": {"maxOffsetsBehindLatest": -1}}, "max_lag: -1 for 'maxOffsetsBehindLatest'"),
        (
            {"progress_timeout": 3, "poll_interval": 1},
            "progress_timeout 3 s: give at least 4 times poll_interval",
        ),
        (
            {"max_lag": {"numFilesOutstanding": 1}, "max_lag_time": 3, "poll_interval": 1},
            "max_lag_time 3 s: give at least 4 times poll_interval, 4 s",
        ),
        ({"max_lag_time": 0}, "max_lag_time 0: a time, more than 0"),
    ],
)
def test_a_bad_argument_is_refused_when_the_dag_is_parsed(
    stream: Stream, wrong: dict[str, Any], said: str
) -> None:
    """The error names the argument, what it was, and what it may be."""
    with pytest.raises(ConfigError) as raised:
        operator_of(stream, **wrong)

    assert said in str(raised.value)


def test_a_run_of_many_dag_runs_has_no_interval(stream: Stream) -> None:
    """
    Otherwise the driver that the next DAG run submits would be refused: it asks for another one.
    """
    now = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
    told: Any = {**context(), "data_interval_start": now, "data_interval_end": now}

    assert operator_of(stream)._spec("r1", told).interval is None


# --- adopt, hand over ---------------------------------------------------------------------------


def test_a_stream_is_handed_over_from_one_dag_run_to_the_next(stream: Stream) -> None:
    """
    Each DAG run adopts the one driver, watches it for its time, and succeeds with how far it has
    come; the driver is asked for nothing. The asset's event carries offsets and watermark.
    """
    stream.begin().commit_hour(0).commit_hour(1)
    operator = operator_of(stream, max_runtime="0.3 seconds", outlets=[DELAYS])
    told = context()
    with stream.driver(backlog={"numFilesOutstanding": 0}):
        first = deferral(operator, told)
        event = fire(first)
        document = operator.resume(told, event)
        again = context("run_2")
        second = deferral(operator_of(stream), again)
    extra = told["outlet_events"][DELAYS].extra

    assert ("due", "driver") == (event["run_state"], event["driver_id"])
    assert (RUN, "RUNNING", 1, 2, 30) == tuple(
        document[key] for key in ("run_id", "outcome", "attempts", "restarts", "rows_read")
    )
    query = document["queries"]["q"]
    assert (1, "1970-01-01T02:00:00.000Z") == (query["batch_id"], query["watermark"])
    assert [{"name": "flights", "end_offset": {"logOffset": 1}}] == query["sources"]
    position = {
        "batch": 1,
        "watermark": query["watermark"],
        "offsets": {"flights": {"logOffset": 1}},
        "versions": {},
    }
    assert {"run_id": RUN, "outcome": "RUNNING", "queries": {"q": position}} == extra
    assert (RUN, RUN) == (first.run_id, second.run_id)
    assert "driver" == second.driver_id
    assert [] == stream.requests()
    assert 2 == len(periods(stream))


def test_it_is_handed_over_by_a_worker_that_waits_itself(stream: Stream) -> None:
    """With ``deferrable=False`` it is the same."""
    stream.begin().commit_hour(0)
    operator = operator_of(stream, max_runtime=0.3, deferrable=False)
    with stream.driver():
        document = operator.execute(context())

    assert ("RUNNING", 0) == (document["outcome"], document["queries"]["q"]["batch_id"])


@pytest.mark.parametrize("outlives", [True, False])
def test_a_driver_that_ends_with_its_task_is_asked_to_end_before_it(
    stream: Stream, *, outlives: bool
) -> None:
    """
    In a pod of the KubernetesExecutor nothing is handed over: the driver ends by itself, with its
    lease released, and the next DAG run's task resumes the run. The report is the same.
    """
    stream.begin().commit_hour(0)
    stream.submit("here", process=identify_this())
    operator = operator_of(stream, max_runtime=0.3, deferrable=False, driver_outlives_task=outlives)
    ended = threading.Event()

    def drive() -> None:
        with stream.driver("here"):
            while not stream.cancels() and not ended.wait(0.05):
                pass

    driver = threading.Thread(target=drive)
    driver.start()
    wait_for("it drives", stream.run.attempt_count, within=10)
    document = operator.execute(context())
    lease = LeaseObserver(stream.storage, SystemClock()).look()[1]
    ended.set()
    driver.join()

    assert ("RUNNING", 0) == (document["outcome"], document["queries"]["q"]["batch_id"])
    assert ([] if outlives else ["here"]) == stream.cancels()
    assert outlives or lease is Liveness.FREE


def test_a_batch_that_no_reader_sees_yet_is_not_told(stream: Stream) -> None:
    """
    Spark has committed batch 1 and its sink has yet to publish it: the last one told is batch 0.
    """
    stream.begin().commit_hour(0).commit_hour(1, published=False)
    operator = operator_of(stream, max_runtime=0.1, deferrable=False)
    with stream.driver():
        document = operator.execute(context())

    assert 0 == document["queries"]["q"]["batch_id"]


def test_a_stream_without_a_batch_is_handed_over_without_a_position(stream: Stream) -> None:
    """Its input is silent, and it is well."""
    stream.begin()
    operator = operator_of(stream, max_runtime=0.1, deferrable=False)
    with stream.driver():
        query = operator.execute(context())["queries"]["q"]

    assert (None, None, []) == (query["batch_id"], query["watermark"], query["sources"])


def test_a_driver_is_not_handed_over_before_its_queries_have_begun(stream: Stream) -> None:
    """
    What the driver before it reported is not its own: one that comes up and dies, again and again,
    is nobody's success.
    """
    stream.begin().commit_hour(0)
    with stream.driver("before"):
        pass
    operator = operator_of(stream, max_runtime=0.05)
    with stream.lease("driver"):
        trigger = deferral(operator, context())
        with pytest.raises(asyncio.TimeoutError):
            fire(trigger, within=1.0)


def test_a_driver_that_was_asked_to_stop_is_waited_for(stream: Stream) -> None:
    """Somebody stops it when the time is over: the task succeeds with its final checkpoint."""
    stream.begin().commit_hour(0)
    operator = operator_of(stream, max_runtime=0.1)
    with stream.driver():
        trigger = deferral(operator, context())
        put_request(stream.storage, "stop", "driver", SystemClock(), run_id=RUN, token=1)
        with pytest.raises(asyncio.TimeoutError):
            fire(trigger, within=1.0)
        stream.finish("SUSPENDED")
    event = fire(trigger)

    assert "suspended" == event["run_state"]
    assert "SUSPENDED" == operator.resume(context(), event)["outcome"]


def test_a_driver_that_died_since_is_not_handed_over(stream: Stream) -> None:
    """
    Between the trigger's event and the worker the driver has died: the task fails, to be retried.
    """
    stream.begin().commit_hour(0)
    operator = operator_of(stream, max_runtime=0.1)
    with stream.driver():
        trigger = deferral(operator, context())
        event = fire(trigger)
    stream.end("driver", -9)

    with pytest.raises(SparkRunFailedError, match="exit code -9"):
        operator.resume(context(), event)


def test_a_driver_that_was_replaced_since_is_adopted(stream: Stream) -> None:
    """
    Somebody has started another driver in between, which has not begun its queries: it is watched.
    """
    stream.begin().commit_hour(0)
    operator = operator_of(stream, max_runtime=0.1)
    with stream.driver():
        event = fire(deferral(operator, context()))
    stream.submit("other", process=ELSEWHERE)
    with stream.lease("other"), pytest.raises(TaskDeferred) as raised:
        operator.resume(context(), event)

    assert "other" == raised.value.trigger.serialize()[1]["driver_id"]


def test_told_late_of_its_end_a_trigger_leaves_the_driver_alone(stream: Stream) -> None:
    """A triggerer that was paused tells an old trigger that it was killed, after the hand-over."""
    stream.begin().commit_hour(0)
    operator = operator_of(stream, max_runtime=0.1)
    with stream.driver():
        trigger = deferral(operator, context())
        operator.resume(context(), fire(trigger))
        asyncio.run(trigger.on_kill())

    assert [] == stream.requests()


# --- the time -----------------------------------------------------------------------------------


def test_the_time_is_that_of_the_first_try(stream: Stream) -> None:
    """
    A retry, and a triggerer that is restarted, go on with the time; a clear, which raises
    ``max_tries``, and another DAG run have one of their own.
    """
    stream.begin()
    operator = operator_of(stream)
    with stream.driver():
        tries = [deferral(operator, context()) for _ in range(2)]
        cleared = deferral(operator, context(max_tries=4))
        later = deferral(operator, context("run_2"))
    ends = [t.serialize()[1]["supervision"]["ends"] for t in [*tries, cleared, later]]

    assert ends[0] == ends[1]
    assert 3 == len(set(ends))
    assert [
        "flights-daily-run_1.3.json",
        "flights-daily-run_1.4.json",
        "flights-daily-run_2.3.json",
    ] == sorted(periods(stream))


def test_a_period_begins_once(stream: Stream) -> None:
    """Put again later, with another run, it stays what it was."""
    clock = FakeClock()
    period = Period(stream.directory, RUN, "task", 3, clock)
    period.put(RUN)
    clock.wall += dt.timedelta(minutes=10)
    period.put(f"{RUN}.2")

    assert dt.datetime(2026, 1, 1, 1, tzinfo=dt.timezone.utc) == period.ends(3600)
    assert RUN == period.run_id()


def test_what_cannot_be_submitted_leaves_no_trace(stream: Stream) -> None:
    """A missing entry file is said before the time begins."""
    with pytest.raises(AirflowFailException, match="there is no file"):
        operator_of(stream).execute(context())

    assert not stream.root.exists()


def test_a_retry_whose_time_is_over_hands_over_as_soon_as_it_may(stream: Stream) -> None:
    """The driver had died at the very end: the next one is handed over as soon as it is at work."""
    stream.begin().commit_hour(0)
    operator = operator_of(stream, max_runtime=0.05)
    with stream.driver():
        deferral(operator, context())
    with stream.driver("other"):
        stream.submit("other", process=ELSEWHERE)
        event = fire(deferral(operator, context()), within=5)

    assert ("due", "other") == (event["run_state"], event["driver_id"])


# --- which run ----------------------------------------------------------------------------------


def test_after_a_stop_the_next_dag_run_goes_on_with_a_run_of_its_own(stream: Stream) -> None:
    """
    A stopped run is over. The DAG run that had watched it succeeds with it, also when it is tried
    again; the next one begins its successor.
    """
    stream.begin()
    operator = operator_of(stream)
    with stream.driver():
        deferral(operator, context())
    stream.finish("SUSPENDED")

    assert "SUSPENDED" == operator.execute(context())["outcome"]
    assert f"{RUN}.2" == operator._decide(context("run_2"))


def test_a_run_that_was_undone_has_a_successor(stream: Stream) -> None:
    """A rewound run cannot be resumed, so the stream goes on under the next id, and the next."""
    operator = operator_of(stream)
    for run_id in (RUN, f"{RUN}.2"):
        rewind_run(stream.directory, run_id)

    assert f"{RUN}.3" == operator._decide(context())


def test_a_drained_stream_is_done_for_every_dag_run(stream: Stream) -> None:
    """Nothing is submitted for a job that has ended for good, whichever DAG run asks."""
    stream.begin().finish("FINISHED")

    assert ["FINISHED"] * 2 == [
        operator_of(stream).execute(context(dag_run))["outcome"] for dag_run in ("run_1", "run_2")
    ]


def test_a_given_run_id_is_the_streams(stream: Stream) -> None:
    """Two DAGs that are told the same one supervise the same run."""
    assert "flights" == operator_of(stream, run_id="flights")._decide(context())


# --- health -------------------------------------------------------------------------------------


def test_a_stream_that_does_not_get_on_is_ended_and_its_task_is_tried_again(
    stream: Stream,
) -> None:
    """
    A planned batch does not end: the driver is asked to end, the failure says why, and the retry
    waits for its end and submits another.
    """
    stream.begin().commit_hour(0).spark.plan(1)
    operator = operator_of(stream, progress_timeout=0.5)
    told = context()
    with stream.driver():
        event = fire(deferral(operator, told))
        with pytest.raises(SparkRunFailedError, match="NO_PROGRESS: batch 1 is planned"):
            operator.resume(told, event)
        cancels = stream.cancels()
        retry = deferral(operator, context())

    assert "unhealthy" == event["run_state"]
    assert ["driver"] == cancels
    failure = told["ti"].pushed["failure"]
    assert ("RECOVERABLE", "q", 1) == (failure["failure_class"], failure["query"], failure["batch"])
    assert retry.driver_id is None
    with pytest.raises(AirflowFailException, match="there is no file"):  # it would submit now
        operator.resume(context(), fire(retry))


def test_a_worker_that_waits_itself_ends_it_too(stream: Stream) -> None:
    """With ``deferrable=False`` it is the same; so it is without ``max_runtime``."""
    stream.begin().spark.plan(0)
    operator = operator_of(
        stream, run_id=RUN, max_runtime=None, progress_timeout=0.5, deferrable=False
    )
    with stream.driver(), pytest.raises(SparkRunFailedError, match="NO_PROGRESS"):
        operator.execute(context())

    assert ["driver"] == stream.cancels()


def test_a_stream_that_falls_behind_is_ended(stream: Stream) -> None:
    """More than the limit is unread, for longer than is allowed."""
    stream.begin().commit_hour(0)
    operator = operator_of(stream, max_lag={"maxOffsetsBehindLatest": 10}, max_lag_time=0.5)
    with stream.driver(backlog={"maxOffsetsBehindLatest": 11}):
        event = fire(deferral(operator, context()))

    assert "LAG: maxOffsetsBehindLatest is 11, and was over 10 for 0.5 seconds" in event["reason"]


def test_a_stream_whose_input_is_silent_is_left_alone(stream: Stream) -> None:
    """No batch for many times the silence that is allowed, and nothing to do."""
    stream.begin().commit_hour(0)
    operator = operator_of(stream, progress_timeout=0.6)
    with stream.driver(), pytest.raises(asyncio.TimeoutError):
        fire(deferral(operator, context()), within=2.0)


def test_a_driver_that_a_newer_task_watches_is_not_ended(stream: Stream) -> None:
    """
    Told that the driver does not get on, a task that no longer has the claim fails, and no more.
    """
    stream.begin().spark.plan(0)
    operator = operator_of(stream, progress_timeout=0.3)
    with stream.driver():
        event = fire(deferral(operator, context()))
        SparkStreamingHook().claim(stream.url, RUN)
        with pytest.raises(SparkRunFailedError, match="NO_PROGRESS"):
            operator.resume(context(), event)

    assert [] == stream.requests()


def test_a_driver_that_does_not_end_when_asked_fails_the_task(stream: Stream) -> None:
    """
    The retry waits for the end of a driver whose loop stands still: not for ever, and it names the
    machine on which a person has to end it.
    """
    stream.begin()
    operator = operator_of(stream, progress_timeout=0.5)
    with stream.driver():
        put_cancel(stream.storage, "driver", SystemClock())
        event = fire(deferral(operator, context()))
        with pytest.raises(AirflowException, match="was requested to end, and has not"):
            operator.resume(context(), event)


def test_a_trigger_of_a_supervised_run_survives_serialisation(stream: Stream) -> None:
    """Another triggerer goes on with the same limits and the same end."""
    stream.begin()
    operator = operator_of(stream, progress_timeout="2 minutes", max_lag={"numFilesOutstanding": 5})
    with stream.driver():
        arguments = deferral(operator, context()).serialize()[1]

    assert arguments == SparkStreamingTrigger(**arguments).serialize()[1]
    supervision = arguments["supervision"]
    assert (120.0, {"numFilesOutstanding": 5}, 300.0) == tuple(
        supervision[key] for key in ("progress_timeout_s", "lag", "lag_time_s")
    )
