"""The bootstrap's operator: what it finds, what it asks of a driver, and how it waits for one."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, Asset
from airflow_names import DagSerialization, TaskDeferred, import_string
from handmade import LAUNCHER, MISSING, TI, Job, OutletEvents, ended_process

from airflow_provider.airflow_versions import AirflowFailException
from airflow_provider.hooks.spark_streaming import SparkStreamingHook
from airflow_provider.operators.live_with_history import live_with_history
from airflow_provider.operators.retry_policy import SparkRunFailedError
from airflow_provider.operators.spark_bootstrap import SparkBootstrapOperator
from airflow_provider.operators.spark_streaming import SparkStreamingOperator
from airflow_provider.runtime.api.sinks import OpenFence
from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.base.host import identify_this
from airflow_provider.runtime.base.typed_json import encode
from airflow_provider.runtime.control.bootstrap_request import (
    LABEL,
    ORIGIN,
    RUN_ID,
    BootstrapSnapshot,
    BootstrapSpec,
    assess_bootstrap,
)
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.identity import BootstrapPurpose, begin_identity
from airflow_provider.runtime.jobdir.journal import RestorePlan
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.requests import is_leaving
from airflow_provider.runtime.observe.state import RunState
from airflow_provider.runtime.savepoints.catalog import Savepoint
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.savepoints.restores import Restores
from airflow_provider.runtime.savepoints.take import take_savepoint
from airflow_provider.runtime.testing.job_directories import a_final, a_run, a_submission, an_exit
from airflow_provider.triggers.spark_streaming import SparkStreamingTrigger
from tests.unit.support import EpochBench, FakeSink

pytestmark = pytest.mark.usefixtures("callable_outside_of_a_task")

HISTORY = {"input": "/archive"}


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Return the live job's directory, under whose task's run drivers are submitted."""
    return Job(tmp_path / "job")


def operator_of(live: Job, **arguments: Any) -> SparkBootstrapOperator:
    arguments = {"job": MISSING, "history_params": HISTORY, "poll_interval": 0.05, **arguments}
    return SparkBootstrapOperator(task_id="daily", job_dir=live.url, **arguments)


def scratch_of(job: Job) -> Job:
    """Return the job directory in which the history is read."""
    return Job(job.root / "bootstraps" / "bootstrap", RUN_ID)


def make(job: Job, url: str | None = None, digest: str | None = None) -> Savepoint:
    """Make a savepoint as a bootstrap of these parameters does."""
    other = job.root.parent / "other"
    if not other.exists():
        EpochBench(other, FakeSink()).begun().published(2)
    ask = BootstrapSpec(job_dir=job.url, entry=MISSING, params=HISTORY, to=url)
    return take_savepoint(
        job_source(str(other), SystemClock()),
        ask.target,
        origin=ORIGIN,
        labels={LABEL: digest or ask.digest},
        clock=SystemClock(),
    )


# --- when the DAG is parsed ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"output": "both"}, "output 'both': use one of 'discard', 'keep'"),
        ({"interval": "2026-01-01"}, "interval '2026-01-01': give a start and an end"),
        ({"live_params": {}}, "live_params is empty"),
        ({"on_kill": "shoot"}, "on_kill 'shoot': use one of 'cancel', 'detach'"),
        ({"job": "flights.jobs"}, "entry 'flights.jobs': write FILE.py:FUNCTION"),
        ({"poll_interval": 0}, "poll_interval 0: seconds between polls"),
    ],
)
def test_a_bad_argument_is_refused_when_the_dag_is_parsed(
    job: Job, wrong: dict[str, Any], said: str
) -> None:
    """The error names the argument, what it was, and what it may be."""
    with pytest.raises(ConfigError) as raised:
        operator_of(job, **wrong)

    assert said in str(raised.value)


def test_it_is_stored_with_its_dag() -> None:
    """Airflow serialises what is templated."""
    with DAG("flights", schedule=None) as dag:
        SparkBootstrapOperator(
            task_id="b", job="j:f", job_dir="/{{ slice.name }}", history_params=HISTORY
        )

    stored: Any = DagSerialization.from_dict(DagSerialization.to_dict(dag)).task_dict["b"]

    assert ("/{{ slice.name }}", HISTORY) == (stored.job_dir, stored.history_params)


def test_history_and_the_live_job_in_one_group() -> None:
    """Both have what the state depends on; what is about one task alone stays with that one."""
    with DAG("flights", schedule=None) as dag:
        live_with_history(
            "daily",
            job="j:f",
            job_dir="/job",
            history_params=HISTORY,
            params={"input": "/landing"},
            history={"keep_positions": ["flights"], "retries": 7},
            until="stopped",
            conf={"a": "1"},
            retries=3,
            on_kill="stop",
            trigger_rule="all_done",
            outlets=[Asset("daily")],
        )

    history, live = dag.get_task("daily.history"), dag.get_task("daily.live")
    assert isinstance(history, SparkBootstrapOperator)
    assert isinstance(live, SparkStreamingOperator)
    assert history.downstream_task_ids == {"daily.live"}
    assert history.live_params == live.job_params == {"input": "/landing"}
    assert history.conf == live.conf == {"a": "1"}
    assert (history.keep_positions, history.retries, live.retries) == (["flights"], 7, 3)
    assert (history.on_kill_policy, live.on_kill_policy) == ("cancel", "stop")
    assert (history.trigger_rule, live.trigger_rule) == ("all_done", "all_success")
    assert (history.outlets, len(live.outlets)) == ([], 1)
    assert live.from_savepoint == "{{ ti.xcom_pull(task_ids='daily.history')['url'] }}"
    assert "daily" in dag.task_group_dict


@pytest.mark.parametrize("name", ["from_savepoint", "task_id"])
def test_what_the_group_gives_itself_is_refused(name: str) -> None:
    """The savepoint is that of the history, the names are fixed."""
    arguments: dict[str, Any] = {"history_params": {}, "params": {}, name: "x"}
    with DAG("flights", schedule=None), pytest.raises(ConfigError, match=f"{name}: live_with"):
        live_with_history("daily", job="j:f", job_dir="/job", **arguments)


def test_a_driver_receives_all_that_was_requested(job: Job) -> None:
    """As a request to bootstrap, with parameters of any kind, and names of the secret ones."""
    operator = operator_of(
        job,
        history_params={"b": 2, "a": "{{ params.a }}"},
        live_params={"a": "now"},
        secret_params={"password": "s3cr3t"},
        savepoint="/s/first",
        output="keep",
        keep_positions=["table"],
        interval=["2026-01-01", "{{ params.end }}"],
    )
    operator.render_template_fields({"params": {"a": "x=y z", "end": "2026-02-01"}})

    request = operator._spec()
    written = encode(request)

    assert {
        "params": {"a": "x=y z", "b": 2},
        "live_params": {"a": "now"},
        "secret_params": {"password": "SPARK_STREAM_SECRET_1"},
        "to": "/s/first",
        "output": "keep",
        "kept": ["table"],
        "interval": ["2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"],
    }.items() <= written.items()
    sent = dataclasses.replace(request, driver_id="d1")
    job.run.put_submission(sent.inside(a_submission("d1")))
    assert sent == BootstrapSpec.receive(job.run.storage, "d1", sent.sha256())


# --- what it finds ------------------------------------------------------------------------------


def test_a_savepoint_that_was_made_of_the_same_is_the_result(job: Job) -> None:
    """
    No driver is submitted; XCom and the outlets get the same, and leavings of a driver that died at
    its very end are removed.
    """
    made = make(job)
    left = scratch_of(job)
    left.storage.put("job.json", b"{}")
    outlet = Asset("state")
    events: Any = OutletEvents(outlet)
    operator = operator_of(job, outlets=[outlet])

    told = operator.execute({"ti": TI, "outlet_events": events})

    assert (made.url, "bootstrap") == (told["url"], told["name"])
    assert 1 == told["queries"]["q"]["batch"]
    assert told == events[outlet].extra
    assert ["savepoints"] == sorted(path.name for path in job.root.iterdir())


def test_a_savepoint_of_something_else_is_an_error(job: Job) -> None:
    """Another try would find it again."""
    make(job, digest="other")

    with pytest.raises(AirflowFailException, match="made of something else; choose another one"):
        operator_of(job).execute({"ti": TI})


@pytest.mark.parametrize("begun", ["a run", "a restore"])
def test_a_job_that_has_begun_is_an_error(job: Job, entry: str, begun: str) -> None:
    """Before anything is written; a restore may have been cut short before it has copied a file."""
    if begun == "a run":
        JobDirectory(job.storage).run("live").put_record(a_run("live"))
    else:
        plan = RestorePlan("/s", "now", {})
        Restores(JobDirectory(job.storage)).begin(OpenFence(), "2026-01-01T00:00:00.000Z", plan)
    before = job.documents()

    with pytest.raises(AirflowFailException, match="the job has begun already"):
        operator_of(job, job=entry).execute({"ti": TI})

    assert before == job.documents()


def test_another_history_that_was_not_read_to_its_end_is_an_error(job: Job, entry: str) -> None:
    """Before anything is written."""
    other = BootstrapPurpose(f"{job.url}/savepoints/bootstrap", "other")
    begin_identity(scratch_of(job).storage, SystemClock(), bootstrap=other)
    before = job.documents()

    with pytest.raises(AirflowFailException, match="began at .* for .* with other parameters"):
        operator_of(job, job=entry).execute({"ti": TI})

    assert before == job.documents()


def test_a_driver_that_reads_the_history_is_adopted(job: Job) -> None:
    """Its lease is the scratch directory's; the trigger is told what it waits for, and where."""
    scratch = scratch_of(job)
    job.submit("driver", process=identify_this())
    with scratch.lease("driver"), pytest.raises(TaskDeferred) as raised:
        operator_of(job).execute({"ti": TI})
    trigger = raised.value.trigger
    assert isinstance(trigger, SparkStreamingTrigger)
    classpath, arguments = trigger.serialize()

    assert ("driver", f"{job.url}/savepoints/bootstrap") == (
        trigger.driver_id,
        arguments["request"]["target"],
    )
    assert arguments == import_string(classpath)(**arguments).serialize()[1]


def test_a_kill_asks_the_driver_where_it_listens(job: Job) -> None:
    """In the scratch directory; an older claim asks nobody."""
    scratch = scratch_of(job)
    job.submit("driver", process=identify_this())
    operator = operator_of(job)
    with scratch.lease("driver"):
        with pytest.raises(TaskDeferred) as raised:
            operator.execute({"ti": TI})
        operator_of(job)._hook().claim(job.url, job.run_id)
        asyncio.run(raised.value.trigger.on_kill())
        assert not is_leaving(scratch.storage, "driver")
        with pytest.raises(TaskDeferred) as raised:
            operator.execute({"ti": TI})
        asyncio.run(raised.value.trigger.on_kill())

        assert is_leaving(scratch.storage, "driver")
        with pytest.raises(TaskDeferred) as raised:
            operator.execute({"ti": TI})
    assert None is raised.value.trigger.driver_id  # a later try waits for its end


def test_a_driver_that_failed(job: Job) -> None:
    """Its own words are the error; one that no retry helps is told from one that a retry may."""
    scratch = scratch_of(job)
    job.submit("driver", process=ended_process())
    operator = operator_of(job, deferrable=False)
    trigger = SparkStreamingTrigger(
        job.url, job.run_id, "driver", 1, request=operator._awaited(), launcher=LAUNCHER
    )

    job.end("driver", 2, "spark-stream: error: history has no row for it")
    event = asyncio.run(trigger._wait())
    assert (RunState.FAILED, True) == (event.run_state, event.fatal)
    assert "history has no row for it" in event.reason
    with pytest.raises(AirflowFailException, match="history has no row"):
        operator.resume({"ti": TI}, vars(event) | {"driver_id": "driver"})

    job.end(job.submit("next", process=ended_process()), 3)
    scratch.attempt("next", "FAILED", {"condition": "C", "reason": "the disk is full"})
    trigger = SparkStreamingTrigger(
        job.url, job.run_id, "next", 2, request=operator._awaited(), launcher=LAUNCHER
    )
    event = asyncio.run(trigger._wait())
    pushed: dict[str, Any] = {}
    ti: Any = SimpleNamespace(
        **vars(TI) | {"xcom_push": lambda key, value: pushed.update({key: value})}
    )
    with pytest.raises(SparkRunFailedError, match="C: the disk is full"):
        operator.resume({"ti": ti}, vars(event) | {"driver_id": "next"})
    assert "the disk is full" == pushed["failure"]["reason"]


# --- how it stands ------------------------------------------------------------------------------


def view(**changed: Any) -> BootstrapSnapshot:
    return BootstrapSnapshot(**{"submission": a_submission("d1"), **changed})


@pytest.mark.parametrize(
    ("changed", "run_state"),
    [
        ({"made": True, "exit": an_exit(3)}, RunState.FINISHED),
        ({"submission": None}, RunState.ABSENT),
        ({"submission": None, "has_read": True}, RunState.ABSENT),
        ({"submission": None, "has_read": True, "reader_gone": False}, RunState.RUNNING),
        ({}, RunState.STARTING),
        ({"has_read": True}, RunState.RUNNING),
        ({"has_read": True, "exit": an_exit(3)}, RunState.FAILED),
        ({"has_read": True, "submission_gone": True}, RunState.FAILED),
        ({"exit": an_exit(0)}, RunState.FAILED),
    ],
)
def test_how_a_bootstrap_stands(changed: dict[str, Any], run_state: RunState) -> None:
    """
    Only the savepoint is its end. A driver that has read everything has no lease any more, and is
    at work as long as its process is.
    """
    assert run_state is assess_bootstrap(view(**changed)).run_state


def test_a_driver_at_its_end_whose_machine_is_gone(job: Job) -> None:
    """It has given its lease up and takes the savepoint: silence for an hour ends the wait."""
    scratch = scratch_of(job)
    job.submit("driver", process=dataclasses.replace(identify_this(), space="another"))
    with scratch.lease("driver"):
        scratch.run.put_final(a_final(RUN_ID))
    request = operator_of(job)._awaited()
    clock = SteppedClock()

    watcher = SparkStreamingHook(clock=clock).watcher(
        job.url, job.run_id, "driver", request=request
    )
    run_states = []
    for _ in range(3):
        run_states.append(watcher.assess().run_state)
        clock.now_s += 3000.0

    assert [RunState.RUNNING, RunState.RUNNING, RunState.FAILED] == run_states


class SteppedClock(SystemClock):
    """The machine's time of day, and seconds that a test lets pass."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s
