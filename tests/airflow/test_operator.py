"""The operator: what it makes of its arguments, and of what it finds in the job directory."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import errno
import inspect
import json
import shutil
import socket
import subprocess
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from airflow.sdk import DAG, Asset, Param, Variable
from airflow_names import DagSerialization, TaskDeferred, redact
from handmade import ELSEWHERE, LAUNCHER, RUN, TI, Job, ended_process
from services import wait_for

from airflow_provider.airflow_versions import AirflowException, AirflowFailException
from airflow_provider.hooks.job_memory import JobMemory
from airflow_provider.hooks.spark_streaming import SparkStreamingHook
from airflow_provider.hooks.submit_options import SubmitOptions
from airflow_provider.hooks.task_runs import RunOwner, current_run
from airflow_provider.operators.retry_policy import SparkRunFailedError
from airflow_provider.operators.spark_streaming import SparkStreamingOperator
from airflow_provider.runtime.api.sinks import key_of
from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.base.names import check_name, derive_run_id
from airflow_provider.runtime.base.typed_json import encode
from airflow_provider.runtime.errors import ConfigError, LeaseLostError, OutageError, redaction
from airflow_provider.runtime.errors.explanation import FailureClass
from airflow_provider.runtime.failures.messages import AFTER_A_TASK
from airflow_provider.runtime.failures.restart_strategy import Failover
from airflow_provider.runtime.jobdir.epochs import EpochRecords
from airflow_provider.runtime.jobdir.identity import add_predecessors, begin_identity
from airflow_provider.runtime.jobdir.layout import directory_at
from airflow_provider.runtime.jobdir.lease import acquire_lease
from airflow_provider.runtime.jobdir.query_reports import FinalQuery
from airflow_provider.runtime.jobdir.requests import put_cancel
from airflow_provider.runtime.jobdir.run_spec import RunSpec
from airflow_provider.runtime.testing.job_directories import (
    QUERY_ID,
    a_run,
    an_epoch,
    an_exit,
    rewind_run,
)
from tests.present import present

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from airflow_provider.runtime.jobdir.submissions import SubmissionRecord

pytestmark = pytest.mark.usefixtures("callable_outside_of_a_task")

JOB = "flights.jobs:daily"
MISSING = "/nowhere/jobs.py:daily"  # as soon as a driver is to be submitted, this is refused


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path / "job")


def operator_of(job: Job, **arguments: Any) -> SparkStreamingOperator:
    arguments = {"job": MISSING, "poll_interval": 0.05, **arguments}
    return SparkStreamingOperator(task_id="daily", job_dir=job.url, **arguments)


def context(**more: Any) -> Any:
    return {"ti": TI, **more}


def deferral(operator: SparkStreamingOperator) -> TaskDeferred:
    """Execute, and return the deferral that it must come to."""
    with pytest.raises(TaskDeferred) as raised:
        operator.execute(context())
    return raised.value


PARAMS_HAVE_A_SOURCE = pytest.mark.skipif(
    "source" not in inspect.signature(Param.__init__).parameters,
    reason="this version of Airflow does not tell whose a parameter is",
)


def in_dag(dag: DAG | None = None, **arguments: Any) -> SparkStreamingOperator:
    dag = dag or DAG("flights", schedule=None)
    arguments = {"job": JOB, "job_dir": "/jobs/flights", **arguments}
    return SparkStreamingOperator(task_id="daily", dag=dag, **arguments)


# --- when the DAG is parsed ---------------------------------------------------------------------


@pytest.mark.parametrize("program", [{"script": "/jobs/etl.py"}, {"sql": "/jobs/hours.sql"}])
def test_a_program_is_the_entry_of_its_run(program: dict[str, Any]) -> None:
    """A script's command line is a parameter of the run, and is templated as they are."""
    arguments = ["--day", "2026-01-01"]
    operator = in_dag(job=None, params={"args": arguments}, **program)

    request = operator._spec(RUN, context())

    assert ([*program.values()], {"args": arguments}) == ([request.entry], request.params)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"mode": "sometimes"}, "mode 'sometimes': use one of"),
        ({"until": "noon"}, "until 'noon': use one of 'end', 'available', 'stopped'"),
        ({"at_end": "stop"}, "at_end 'stop': use one of 'drain', 'suspend'"),
        ({"on_existing": "steal"}, "on_existing 'steal': use one of 'adopt', 'wait', 'fail'"),
        ({"on_kill": "shoot"}, "on_kill 'shoot': use one of 'stop', 'cancel', 'detach'"),
        ({"on_clear": "undo"}, "on_clear 'undo': use one of 'resume', 'replay'"),
        (
            {"on_clear": "replay", "replayable_runs": 0},
            "replayable_runs 0: a number of runs, at least the newest one",
        ),
        ({"script": "etl.py"}, "name one job: job='FILE.py:FUNC', script='FILE.py' or sql="),
        ({"job": None}, "name one job"),
        ({"job": None, "script": "etl.sql"}, "script='etl.sql': name a file that ends with .py"),
        ({"job": "flights.jobs"}, "entry 'flights.jobs': write FILE.py:FUNCTION"),
        ({"job": "flights.jobs:"}, "entry 'flights.jobs:': write FILE.py:FUNCTION"),
        ({"job": "jobs.py:not a name"}, "entry 'jobs.py:not a name': write FILE.py:FUNCTION"),
        ({"trigger": "soon"}, "trigger: 'soon' is not a duration"),
        ({"trigger": -1}, "trigger: -1 is not a duration"),
        ({"trigger": "1 month"}, "trigger: '1 month' is not a duration"),
        ({"defer_after": "soon"}, "defer_after: 'soon' is not a duration"),
        ({"target_batch_time": "soon"}, "target_batch_time: 'soon' is not a duration"),
        ({"poll_interval": 0}, "poll_interval 0: seconds between polls, more than 0"),
        ({"interval": "2026-01-01"}, "interval '2026-01-01': give a start and an end"),
        ({"interval": ["2026-01-01"]}, "interval ['2026-01-01']: give a start and an end"),
        ({"state_partitions": 5}, "state_partitions goes with a savepoint"),
        ({"state_partitions": 0, "from_savepoint": "/s"}, "partitions 0: state has from 1 to"),
        ({"executor_memory": "1.5g"}, "executor_memory '1.5g': a whole number with a unit"),
        ({"name": "x"}, "name: not taken, unlike by SparkSubmitOperator: the application's name"),
        ({"status_poll_interval": 1}, "status_poll_interval: not taken, unlike by SparkSubmitOp"),
    ],
)
def test_a_bad_argument_is_refused_when_the_dag_is_parsed(wrong: dict[str, Any], said: str) -> None:
    """The error names the argument, what it was, and what it may be."""
    with pytest.raises(ConfigError) as raised:
        in_dag(**wrong)

    assert said in str(raised.value)


def test_a_templated_job_is_not_judged_before_it_is_rendered() -> None:
    """The entry point may come from a template, which has no form yet when the DAG is parsed."""
    operator = in_dag(job="{{ var.value.job }}")

    assert "{{ var.value.job }}" == operator.job


def test_parsing_neither_looks_for_connections_nor_for_files() -> None:
    """A DAG with an unknown connection and a missing file parses: that is judged where it runs."""
    operator = in_dag(conn_id="nobody_knows", job=MISSING, job_dir="s3://bucket/job")

    assert ("nobody_knows", MISSING) == (operator.conn_id, operator.job)


@PARAMS_HAVE_A_SOURCE
def test_the_dags_params_are_not_the_jobs() -> None:
    """A job gets the operator's ``params`` only, although Airflow merges the DAG's into them."""
    dag = DAG("flights", schedule=None, params={"colour": "blue", "input": "/of/the/dag"})

    with_own = in_dag(dag, params={"input": "/in", "days": 3})
    without = SparkStreamingOperator(task_id="other", dag=dag, job=JOB, job_dir="/jobs")

    assert {"input": "/in", "days": 3} == with_own.job_params
    assert {} == without.job_params


def test_every_templated_field_is_an_attribute_and_is_rendered() -> None:
    """
    Job, folders, parameters, configuration, packages, connections, savepoint and interval take
    templates.
    """
    template = "{{ ds }}"
    names = "files jars driver_class_path exclude_packages keytab principal proxy_user"
    named: Any = {
        name: f"{name}-{template}"
        for name in (*names.split(), "properties_file", "storage_conn_id")
    }
    operator = in_dag(
        job="jobs.py:f_{{ ds_nodash }}",
        job_dir=f"/jobs/{template}",
        params={"input": f"/in/{template}"},
        secret_params={"password": f"s3cr3t-{template}"},
        run_id=f"run-{template}",
        interval=[template, "{{ tomorrow }}"],
        conf={"spark.app": template},
        py_files=f"{template}.py",
        packages=f"a:b:{template}",
        conn_id=f"spark_{template}",
        from_savepoint=f"/savepoints/{template}",
        replaces_job=f"job-{template}",
        env_vars={"DAY": template},
        launcher="livy",
        launcher_options={"queue": f"q-{template}"},
        **named,
    )

    values: Any = {"ds": "2026-01-01", "ds_nodash": "20260101", "tomorrow": "2026-01-02"}
    operator.render_template_fields(values, jinja_env=in_dag().get_template_env())

    rendered = {name: getattr(operator, name) for name in operator.template_fields}
    assert {
        "job": "jobs.py:f_20260101",
        "job_dir": "/jobs/2026-01-01",
        "job_params": {"input": "/in/2026-01-01"},
        "secret_params": {"password": "s3cr3t-2026-01-01"},
        "run_id": "run-2026-01-01",
        "interval": ["2026-01-01", "2026-01-02"],
        "conf": {"spark.app": "2026-01-01"},
        "py_files": "2026-01-01.py",
        "packages": "a:b:2026-01-01",
        "conn_id": "spark_2026-01-01",
        "from_savepoint": "/savepoints/2026-01-01",
        "replaces_job": "job-2026-01-01",
        "env_vars": {"DAY": "2026-01-01"},
        "launcher_options": {"queue": "q-2026-01-01"},
        **{name: f"{name}-2026-01-01" for name in named},
    } == rendered


def test_defaults_of_a_dag_reach_the_options_of_spark_submit() -> None:
    """``default_args`` are for both operators: what is not taken is passed over there."""
    dag = DAG("flights", schedule=None, default_args={"driver_memory": "3g", "name": "x"})

    assert "3g" == SubmitOptions.of(in_dag(dag)).driver_memory


def test_a_secret_parameter_is_masked_where_airflow_shows_arguments() -> None:
    """The page of rendered templates, which is stored, has stars in the place of its value."""
    shown = redact({"password": "s3cr3t"}, "secret_params")

    assert {"password": "***"} == shown
    with pytest.raises(ConfigError, match="'a' is given in the clear and as a secret"):
        in_dag(params={"a": "1"}, secret_params={"a": "2"})


def test_a_secret_that_is_also_given_in_the_clear_is_not_submitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The request is stored, and its digest stands on a command line."""
    monkeypatch.setattr(redaction, "_known", redaction.Secrets({}))
    value = "s3cr3t-4711"
    operator = in_dag(params={"url": f"db://me:{value}@x"}, secret_params={"password": value})
    submitted = Mock()

    with pytest.raises(ConfigError, match="params: has the value of .*'password'") as raised:
        operator._submit(submitted, "r1", {})

    assert ([], False) == (submitted.mock_calls, "4711" in str(raised.value))


def test_a_dag_with_the_operator_is_serialised() -> None:
    """The scheduler and the web server rebuild the DAG, with its templated fields, from JSON."""
    dag = DAG("flights", schedule=None)
    in_dag(dag, params={"input": "/in"}, conf={"spark.app": "{{ ds }}"}, trigger="10 seconds")

    document = json.loads(json.dumps(DagSerialization.serialize_dag(dag)))
    task: Any = DagSerialization.deserialize_dag(document).get_task("daily")

    assert "SparkStreamingOperator" == task.task_type
    assert {"input": "/in"} == task.job_params
    assert {"spark.app": "{{ ds }}"} == task.conf


def test_the_job_is_indexed_before_anything_else_is_done(job: Job) -> None:
    """
    The page finds the task's job by an XCom, also while it runs or is deferred, or was refused.
    """
    pushed = {}
    ti = SimpleNamespace(**vars(TI) | {"xcom_push": lambda key, value: pushed.update({key: value})})

    with pytest.raises(AirflowFailException):
        operator_of(job).execute(context(ti=ti))

    assert {"spark_stream": {"job_dir": job.url, "run_id": RUN}} == pushed


def test_the_links_lead_to_the_page_of_the_task_instance(job: Job) -> None:
    """They are relative to Airflow's address, and name the instance, never a path."""
    operator = operator_of(job)

    links = {
        link.name: link.get_link(operator, ti_key=TI) for link in operator.operator_extra_links
    }

    assert ["Driver log", "Savepoint", "Spark UI", "Stream"] == sorted(links)
    page = "plugin/spark-stream?dag_id=flights&run_id=run_1&task_id=daily&map_index=-1"
    assert f"{page}&tab=overview" == links["Stream"]
    assert all(link.startswith(page) and job.url not in link for link in links.values())


def test_mapped_tasks_have_runs_of_their_own(job: Job) -> None:
    """The map index is part of the derived run id, so that mapped tasks do not adopt each other."""
    mapped: Any = SimpleNamespace(**{**vars(TI), "map_index": 7})
    job.run_id = f"{RUN}-7"
    Job(job.root, f"{RUN}-7").finish()

    document = operator_of(job).execute({"ti": mapped})

    assert f"{RUN}-7" == document["run_id"]


# --- the derived run id -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "flights-daily-manual__2026-01-01T00:00:00+00:00",
        "flights-daily-scheduled__2026-01-01T00:00:00+00:00-3",
        "-dag-task-run",
        "_.+=-a",
        "daily/../../etc",
        "dag-täglich-run",
        "x" * 400,
    ],
)
def test_a_derived_run_id_is_a_valid_name_and_stays_the_same(text: str) -> None:
    """Whatever DAG, task and DAG run are called, each try finds the same folder."""
    run_id = derive_run_id(text)

    assert run_id == check_name(run_id, what="run id")
    assert run_id == derive_run_id(text)


def test_different_texts_have_different_run_ids() -> None:
    """What had to be replaced or cut off is told apart by a hash."""
    texts = ["a:b", "a_b", "a/b", "a b", "x" * 200, "x" * 201, "-a_b"]

    assert len(texts) == len({derive_run_id(text) for text in texts})


def test_a_plain_text_is_its_own_run_id() -> None:
    """Where nothing needs replacing, people find the run under the name they know."""
    assert "flights-daily-run_1" == derive_run_id("flights-daily-run_1")


# --- execute() decides from the job directory alone ---------------------------------------------


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"params": {"input": "/another"}}, "params={}.*'input': '/another'"),
        ({"mode": "batch"}, "mode='streaming' and is now requested with mode='batch'"),
        ({"from_savepoint": "/saved/s1"}, "from_savepoint=None.*'/saved/s1'"),
        ({"secret_params": {"password": "x"}}, r"secret_params=\[\].*\['password'\]"),
    ],
)
def test_a_finished_run_does_not_stand_for_another_one(
    job: Job, asked: dict[str, Any], says: str
) -> None:
    """
    A task that was cleared after its arguments had changed is told what differs, and is not green.
    """
    job.finish()

    with pytest.raises(AirflowFailException, match=says):
        operator_of(job, **asked).execute(context())


def test_a_finished_run_stands_for_another_dag_run_by_hand(job: Job) -> None:
    """The moment of a DAG run without data of its own is no other ask, as for a driver."""
    moments = [(f"2026-01-0{day}T00:00:00.000Z",) * 2 for day in (1, 2)]
    job.run.put_record(a_run(job.run_id, starting={}, params={}, interval=moments[0]))
    job.finish()

    assert "FINISHED" == operator_of(job, interval=moments[1]).execute(context())["outcome"]


def test_a_finished_run_is_done_at_once(job: Job) -> None:
    """Asked again, the task returns the final checkpoint and writes nothing."""
    final = job.finish()
    before = job.documents()

    document = operator_of(job).execute(context())

    assert final.to_dict() == document
    assert before == job.documents()


def test_a_final_checkpoint_that_is_not_true_fails_for_good(job: Job) -> None:
    """A final checkpoint whose batch is not in Spark's commit log makes no task green."""
    job.run.put_record(a_run(job.run_id, starting={"daily": -1}, params={}))
    final = job.finish().to_dict()
    final["queries"]["daily"]["batch_id"] = 3
    job.run.storage.put("final.json", json.dumps(final).encode())

    with pytest.raises(AirflowFailException) as raised:
        operator_of(job).execute(context())

    assert "says that query 'daily' committed batch 3" in str(raised.value)


def test_a_live_driver_of_the_run_is_adopted(job: Job) -> None:
    """The task waits for the driver that is there, with a claim of its own, and submits none."""
    job.submit("driver", process=ELSEWHERE, log=job.root / "driver.log")
    with job.lease("driver"):
        deferred = deferral(operator_of(job))

    assert "resume" == deferred.method_name
    assert {
        "v": 1,
        "job_dir": job.url,
        "run_id": RUN,
        "driver_id": "driver",
        "generation": 1,
        "launcher": LAUNCHER,
        "wait_for_foreign": False,
        "on_kill_policy": "stop",
        "poll_interval": 0.05,
        "log_path": f"{job.url}/driver.log",
        "log_offset": 0,
    } == deferred.trigger.serialize()[1]
    assert ["driver"] == [record.driver_id for record in job.run.submissions()]


def test_a_driver_that_is_still_starting_is_adopted(job: Job) -> None:
    """A driver submitted by the last try, which has no lease yet, is waited for, too."""
    job.submit("driver", process=ELSEWHERE)

    deferred = deferral(operator_of(job))

    assert "driver" == deferred.trigger.driver_id


@pytest.mark.parametrize("left", ["nothing", "an intent", "a dead process", "an exit", "lost"])
def test_what_a_lost_driver_left_is_no_reason_to_wait(job: Job, left: str) -> None:
    """
    An intent without a process, a dead process, an exit, and a driver that the last try has waited
    for in vain: each try after it submits.
    """
    if left == "an intent":
        job.submit()
    if left == "a dead process":
        job.submit(process=ended_process())
    if left == "an exit":
        job.submit(process=ELSEWHERE)
        job.end("driver", 137)
    if left == "lost":
        job.submit(process=ELSEWHERE)
        lost = {"run_state": "failed", "driver_id": "driver", "lost": "driver", "waited_s": 601.0}
        with pytest.raises(SparkRunFailedError):
            operator_of(job).resume(context(), lost)

    with pytest.raises(AirflowFailException, match=r"there is no file /nowhere/jobs\.py"):
        operator_of(job).execute(context())


@pytest.mark.parametrize("hours", [-24, 24])
def test_a_starting_driver_is_adopted_whatever_its_workers_clock_says(job: Job, hours: int) -> None:
    """
    How long ago a driver was submitted by another machine's clock says nothing about its life.
    """
    job.submit(process=ELSEWHERE, ago_s=hours * 3600.0)

    assert "driver" == deferral(operator_of(job)).trigger.driver_id


def test_what_cannot_be_submitted_leaves_no_trace(job: Job) -> None:
    """A missing entry file is said before anything is written, the claim included."""
    with pytest.raises(AirflowFailException, match=r"there is no file /nowhere/jobs\.py"):
        operator_of(job).execute(context())

    assert not job.root.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"job_dir": "hdfs://name/job"}, "write webhdfs://namenode:9870/path"),
        ({"job_dir": "memory://job"}, "a driver cannot reach this process's memory"),
        ({"conn_id": "nobody_knows"}, "Airflow has no such connection"),
        ({"run_id": "../other"}, "run id '../other'"),
        ({"run_id": "manual__2026-01-01T00:00:00"}, "run id 'manual__2026-01-01T00:00:00'"),
    ],
)
def test_what_only_the_worker_can_judge_fails_for_good(
    job: Job, arguments: dict[str, Any], said: str
) -> None:
    """An unsupported job directory, an unknown connection and a bad run id are not retried."""
    operator = SparkStreamingOperator(
        task_id="daily", **{"job": JOB, "job_dir": job.url, **arguments}
    )

    with pytest.raises(AirflowFailException) as raised:
        operator.execute(context())

    assert said in str(raised.value)
    assert not job.root.exists()


def test_a_job_directory_of_a_newer_format_fails_for_good(job: Job) -> None:
    """What a newer version has written is refused before anything is added to it."""
    job.storage.put("identity.json", b'{"version": 99, "name": "daily", "created": "later"}')
    before = job.documents()

    with pytest.raises(AirflowFailException, match="format version 99 is newer than 2"):
        operator_of(job).execute(context())

    assert before == job.documents()


def test_another_runs_driver_is_an_error_that_names_it(job: Job) -> None:
    """By default a second run does not wait on a job directory that is in use, nor writes to it."""
    with job.lease("other", run_id="another"):
        before = [name for name in job.documents() if "heartbeats" not in name]
        with pytest.raises(AirflowFailException, match="run 'another' is running this job"):
            operator_of(job).execute(context())
        after = [name for name in job.documents() if "heartbeats" not in name]

    assert before == after


def test_another_runs_driver_can_be_waited_for(job: Job) -> None:
    """With ``on_existing="wait"`` the task waits for the other run's end, then submits its own."""
    operator = operator_of(job, on_existing="wait")
    with job.lease("other", run_id="another"):
        deferred = deferral(operator)
    event = {"run_state": "absent", "reason": "", "fatal": False, "driver_id": None}

    with pytest.raises(AirflowFailException, match="there is no file"):  # it would submit now
        operator.resume(context(), event)

    assert deferred.trigger.wait_for_foreign
    assert deferred.trigger.driver_id is None


def test_another_runs_driver_can_be_waited_for_in_a_worker(job: Job) -> None:
    """Not deferrable, ``on_existing="wait"`` waits all the same, then submits."""
    operator = operator_of(job, on_existing="wait", deferrable=False)
    with job.lease("other", run_id="another") as lease:
        threading.Timer(0.5, lease.release).start()
        with pytest.raises(AirflowFailException, match="there is no file"):
            operator.execute(context())


def test_a_driver_of_the_run_that_is_to_be_undone_is_stopped_and_waited_for(job: Job) -> None:
    """
    Cleared with ``on_clear="replay"`` while its driver works, the task stops that driver, which would
    only go on writing what is reverted, and submits another run's driver when it has ended.
    """
    operator = operator_of(job, on_clear="replay")
    ti: Any = SimpleNamespace(**vars(TI))
    with pytest.raises(AirflowFailException, match="there is no file"):
        operator.execute({"ti": ti})
    assert [] == job.storage.list(""), "refused before anything was written"
    RunOwner.of({"ti": ti}).put(job.run)
    job.run.put_record(a_run(job.run_id))
    job.submit("driver", process=ELSEWHERE)
    ti.max_tries = 1
    with job.lease("driver"), pytest.raises(TaskDeferred) as raised:
        operator.execute({"ti": ti})

    assert (f"{RUN}.r2", None) == (raised.value.trigger.run_id, raised.value.trigger.driver_id)
    assert ["driver"] == job.cancels()
    request = operator._spec(f"{RUN}.r2", context(ti=ti))
    assert (3, RUN) == (request.replayable_runs, request.replays)


def test_a_result_that_no_try_has_returned_is_not_replayed(job: Job) -> None:
    """
    The worker died and the driver ended the run well, after which later runs have built on it: a
    clear verifies the run and is green; only after that does another clear replay it.
    """
    operator = operator_of(job, on_clear="replay")
    ti: Any = SimpleNamespace(**vars(TI))
    RunOwner.of({"ti": ti}).put(job.run)
    job.finish("SUSPENDED")
    ti.max_tries = 1

    results = [operator.execute(context(ti=ti))["outcome"] for _ in range(2)]

    assert ["SUSPENDED"] * 2 == results
    assert [RUN] == job.storage.list("runs")
    ti.max_tries = 2
    with pytest.raises(AirflowFailException, match="there is no file"):  # it would submit now
        operator.execute(context(ti=ti))
    assert f"{RUN}.r2" == current_run(job.url, RUN).run_id


def test_a_replay_undoes_later_runs_whose_tasks_were_cleared_too(job: Job) -> None:
    """With one that Airflow will not execute again it is refused, and the error names that one."""
    operator = operator_of(job, on_clear="replay")
    states: dict[str, Any] = {"run_2": {"daily": None}, "run_3": {"daily": "queued"}}
    ti: Any = SimpleNamespace(**vars(TI), get_task_states=lambda **_: states)
    RunOwner.of({"ti": ti}).put(job.run)
    job.spark.begin()
    for number, run_id in enumerate((RUN, "second", "third")):
        run = job.directory.run(run_id)
        run.put_record(a_run(run_id, token=number + 1, starting={"q": number - 1}))
        later: Any = SimpleNamespace(**{**vars(TI), "run_id": f"run_{number + 1}"})
        RunOwner.of({"ti": later}).put(run)
        put_published(job, number, run_id)
    ti.max_tries = 1

    operator._decide(context(ti=ti))

    assert operator._spec(f"{RUN}.r2", context(ti=ti)).with_later
    states["run_2"] = {"daily": "success"}
    with pytest.raises(ConfigError, match=r"have built on it: run_2\. Clear this task with"):
        operator._decide(context(ti=ti))


def put_published(job: Job, epoch: int, run_id: str) -> None:
    """Put a published epoch of a run."""
    job.spark.plan(epoch).commit(epoch)
    record = dataclasses.replace(an_epoch(epoch), run_id=run_id)
    EpochRecords(job.directory.committables("q"), QUERY_ID).put_published(record)


@pytest.mark.parametrize("spoil", ["damaged", "rewound", "other options"])
def test_an_ended_run_without_a_valid_result_is_replayed(job: Job, spoil: str) -> None:
    """One that was rewound, of which records are gone, or that had other parameters."""
    arguments = {"params": {"day": 2}} if spoil == "other options" else {}
    operator = operator_of(job, on_clear="replay", **arguments)
    ti: Any = SimpleNamespace(**vars(TI))
    RunOwner.of({"ti": ti}).put(job.run)
    job.finish("SUSPENDED")
    if spoil == "damaged":
        query = FinalQuery(query_id="gone", batch_id=3, sinks=())
        final = dataclasses.replace(present(job.run.final()), queries={"daily": query})
        job.storage.put(f"runs/{RUN}/final.json", json.dumps(final.to_dict()).encode())
    elif spoil == "rewound":
        rewind_run(job.directory, RUN)
    ti.max_tries = 1

    with pytest.raises(AirflowFailException, match="there is no file"):  # it would submit now
        operator.execute(context(ti=ti))
    assert f"{RUN}.r2" == current_run(job.url, RUN).run_id


def test_a_live_driver_can_be_an_error(job: Job) -> None:
    """With ``on_existing="fail"`` a driver of the same run is not adopted."""
    job.submit("driver", process=ELSEWHERE)
    with (
        job.lease("driver"),
        pytest.raises(AirflowFailException, match="driver driver of this run is alive"),
    ):
        operator_of(job, on_existing="fail").execute(context())


def test_a_driver_that_was_asked_to_stop_is_not_adopted(job: Job) -> None:
    """
    Cleared while deferred, the task waits for the end of the driver that the clear has stopped,
    and submits anew instead of failing with it.
    """
    job.submit("driver", process=ELSEWHERE)
    operator = operator_of(job)
    with job.lease("driver"):
        put_cancel(job.storage, "driver", SystemClock())
        deferred = deferral(operator)
    job.attempt("driver", "CANCELLED")
    job.end("driver", 3)
    event = {"run_state": "failed", "reason": "cancelled", "fatal": False, "driver_id": None}

    with pytest.raises(AirflowFailException, match="there is no file"):  # it would submit now
        operator.resume(context(), event)

    assert deferred.trigger.driver_id is None


class NoStore:
    """A task_state_store that cannot be had, as when its service is away."""

    def __getattr__(self, name: str) -> Any:
        raise ConnectionError(f"task_state_store: no {name}")


STORES = {
    "empty": {},
    "right": {"handle": {"run_id": RUN, "driver_id": "driver", "generation": 1}},
    "stale": {"handle": {"run_id": "another", "driver_id": "long ago", "generation": 99}},
    "gone": NoStore(),
}


def outcome(operator: SparkStreamingOperator, store: Any) -> Any:
    """Return what ``execute()`` comes to with this store."""
    try:
        return operator.execute(context(task_state_store=store))
    except TaskDeferred as deferred:
        told = deferred.trigger.serialize()[1]
        return {name: value for name, value in told.items() if name != "generation"}
    except AirflowFailException as error:
        return str(error)


@pytest.mark.parametrize(
    "state",
    ["nothing", "intent", "starting", "alive", "leaving", "dead", "failed", "done", "another's"],
)
def test_what_airflow_has_stored_decides_nothing(job: Job, state: str) -> None:
    """
    With a task_state_store that is empty, right, of another run and driver, or cannot be had, each
    state of the job directory has the same outcome.
    """
    with contextlib.ExitStack() as held:
        if state not in {"nothing", "done", "another's"}:
            job.submit(process=None if state == "intent" else ELSEWHERE)
        if state in {"alive", "leaving"}:
            held.enter_context(job.lease("driver"))
        if state == "leaving":
            put_cancel(job.storage, "driver", SystemClock())
        if state == "dead":
            held.enter_context(job.lease("driver", owner=ended_process()))
        if state == "failed":
            job.end("driver", 3)
        if state == "done":
            job.finish()
        if state == "another's":
            held.enter_context(job.lease("other", run_id="another"))

        outcomes = {name: outcome(operator_of(job), store) for name, store in STORES.items()}

    assert [outcomes["empty"]] * len(STORES) == list(outcomes.values())
    assert {
        "starting": "driver",
        "alive": "driver",
        "leaving": None,
    }.get(state, "-") == (
        outcomes["empty"].get("driver_id", "-") if isinstance(outcomes["empty"], dict) else "-"
    )


def test_a_run_that_was_undone_is_not_done(job: Job) -> None:
    """The final checkpoint of a run that the job went back before makes no task green."""
    job.finish()
    rewind_run(job.directory, RUN)

    with pytest.raises(AirflowFailException, match=f"run '{RUN}' no longer counts"):
        operator_of(job).execute(context())


def test_a_job_directory_that_is_away_for_a_moment_costs_no_try(job: Job) -> None:
    """A task that waits in a worker bears an outage as the triggerer does."""
    job.submit("driver", process=ELSEWHERE)
    away = job.root.parent / "unmounted"
    operator = operator_of(job, deferrable=False)

    def disturb() -> None:
        wait_for(
            "the task waits", (job.root / "runs" / RUN / "claims" / "1.json").exists, within=10
        )
        job.root.rename(away)
        with pytest.raises(FileNotFoundError):
            operator._watcher(RUN, "driver").assess()
        away.rename(job.root)
        job.finish()

    threading.Thread(target=disturb).start()

    assert "FINISHED" == operator.execute(context())["outcome"]


# --- the end of the wait ------------------------------------------------------------------------


def test_the_event_is_not_believed_without_the_final_checkpoint(job: Job) -> None:
    """An event that says done makes no task green: the final checkpoint does."""
    event = {"run_state": "finished", "reason": "", "fatal": False, "driver_id": "driver"}

    with pytest.raises(AirflowException, match="the driver ended without a final checkpoint"):
        operator_of(job).resume(context(), event)


def test_a_final_checkpoint_outweighs_an_event(job: Job) -> None:
    """A driver that died after its final checkpoint has done all: the task is green."""
    final = job.finish()
    event = {"run_state": "failed", "reason": "killed", "fatal": True, "driver_id": "driver"}

    assert final.to_dict() == operator_of(job).resume(context(), event)


@pytest.mark.parametrize(
    ("fatal", "error"), [(False, SparkRunFailedError), (True, AirflowFailException)]
)
def test_a_failure_is_retried_unless_it_is_for_good(
    job: Job,
    fatal: bool,  # noqa: FBT001 - a parameter of the test
    error: type[Exception],
) -> None:
    """The reason is the task's error, and only a failure for good forbids the retry."""
    event = {
        "run_state": "failed",
        "reason": "no space left",
        "fatal": fatal,
        "driver_id": "driver",
    }

    with pytest.raises(AirflowException, match="no space left") as raised:
        operator_of(job).resume(context(), event)

    assert error is type(raised.value)


def test_the_failure_that_the_driver_has_recorded_goes_to_xcom(job: Job) -> None:
    """
    Callbacks and downstream tasks read class, host and root cause, and need not parse an error.
    """
    failure = {"failure_class": "ENVIRONMENT", "reason": "no space left", "host": "worker-7"}
    event = {"run_state": "failed", "reason": "no", "driver_id": "driver", "failure": failure}
    pushed = {}
    ti = SimpleNamespace(**vars(TI) | {"xcom_push": lambda key, value: pushed.update({key: value})})

    with pytest.raises(SparkRunFailedError) as raised:
        operator_of(job).resume(context(ti=ti), event)

    assert {"failure": failure} == pushed
    assert failure == raised.value.failure


def test_restarts_and_types_are_listed_when_the_dag_is_parsed() -> None:
    """A wrong listing is an import error of the DAG; a right one reaches the driver."""
    operator = in_dag(
        fails_as={"jobs.BadRow": "data-missing"}, restart={"type": "fixed-delay"}, failover="full"
    )

    request = operator._spec(RUN, context())
    assert "fixed-delay(attempts=1, delay=1.0)" == request.restart
    assert Failover.FULL is request.failover
    assert {"jobs.BadRow": "DATA_MISSING"} == request.fails_as
    with pytest.raises(ConfigError, match="there is no strategy 'sometimes'"):
        in_dag(restart="sometimes")
    with pytest.raises(ConfigError, match="failover 'all': use one of 'region', 'full'"):
        in_dag(failover="all")
    with pytest.raises(ConfigError, match="there is no class 'FATAL'"):
        in_dag(fails_as={"jobs.BadRow": "FATAL"})


def test_waiting_in_a_worker_ends_with_the_drivers_failure(job: Job) -> None:
    """Not deferrable, the task fails with what the driver said, exit code 0 included."""
    job.submit("driver", process=ELSEWHERE)
    with job.lease("driver") as lease:
        threading.Timer(0.3, lease.release).start()
        job.end("driver", 0, "bye")
        with pytest.raises(AirflowException) as raised:
            operator_of(job, deferrable=False).execute(context())

    said = "RECOVERABLE: the driver ended with exit code 0 and left no final checkpoint (bye)"
    assert str(raised.value).startswith(said)
    assert str(raised.value).endswith(f"Next: {AFTER_A_TASK[FailureClass.RECOVERABLE]}")


def test_a_job_directory_on_a_full_disk_is_an_environment_failure(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task's error has class, machine, path and the next step, as that of a driver has."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/jobs/a/x.json")

    monkeypatch.setattr(SparkStreamingHook, "check", lambda *_, **__: None)
    monkeypatch.setattr(SparkStreamingHook, "submit", full)
    with pytest.raises(SparkRunFailedError) as raised:
        operator_of(job).execute(context())

    failed = present(raised.value.failure)
    assert ("ENVIRONMENT", socket.gethostname()) == (failed["failure_class"], failed["host"])
    said = f"ENVIRONMENT: on {socket.gethostname()}: /jobs/a/x.json: No space left on device; make"
    assert str(raised.value).startswith(said)
    assert str(raised.value).endswith(f"Next: {AFTER_A_TASK[FailureClass.ENVIRONMENT]}")


@pytest.mark.parametrize(
    ("policy", "asked"), [("stop", ["stop"]), ("cancel", ["cancel"]), ("detach", [])]
)
def test_killed_in_a_worker_it_does_with_the_driver_as_it_was_told(
    job: Job, policy: str, asked: list[str]
) -> None:
    """``on_kill`` of a task that holds a worker asks its driver to end, or lets it go on."""
    job.submit("driver", process=ELSEWHERE)
    operator = operator_of(job, on_kill=policy)
    with job.lease("driver"):
        deferral(operator)
        operator.on_kill()

        assert asked == [request.kind for request in job.requests()]


def test_killed_before_it_did_anything_it_asks_nobody(job: Job) -> None:
    """A task killed before ``execute()`` has claimed the run stops no driver."""
    with job.lease("driver"):
        operator_of(job).on_kill()

        assert [] == job.cancels()


def test_killed_while_it_submits_a_driver_it_asks_that_one(job: Job, tmp_path: Path) -> None:
    """
    Airflow lets ``execute()`` go on after ``on_kill``, for some seconds: what it submits then is asked
    to end like any other driver of the task.
    """

    class KilledInBetween(SparkStreamingOperator):
        def _submit(self, *args: Any) -> SubmissionRecord:
            self.on_kill()
            job.submit("driver")
            return job.run.submissions()[-1]

    entry = tmp_path / "jobs.py"
    entry.write_text("def daily(ctx): ...\n")

    with pytest.raises(TaskDeferred):
        KilledInBetween(task_id="daily", job_dir=job.url, job=f"{entry}:daily").execute(context())

    assert ["driver"] == job.cancels()


# --- what the driver is told --------------------------------------------------------------------


def requested(operator: SparkStreamingOperator, **more: Any) -> dict[str, Any]:
    """Return what is requested of a driver beyond the job, its directory and the run."""
    request = operator._spec(RUN, context(**more))
    plain = RunSpec(job_dir=request.job_dir, entry=request.entry, run_id=RUN)
    values, left_out = encode(request), encode(plain)
    return {name: value for name, value in values.items() if value != left_out[name]}


def test_a_driver_receives_all_that_was_requested() -> None:
    """Mode, parameters of any kind, end and interval are members of the request."""
    operator = in_dag(
        params={"b": 2, "a": ["x=y z", None]},
        until="stopped",
        trigger="1 minute",
        target_batch_time="5 s",
        interval=None,
    )

    assert {
        "params": {"a": ["x=y z", None], "b": 2},
        "until": "stopped",
        "trigger_s": 60.0,
        "target_batch_s": 5.0,
    } == requested(operator)
    with pytest.raises(ConfigError, match=r"parameter 'a': tuple \(1, 2\) is not a value of JSON"):
        in_dag(params={"a": (1, 2)})


def test_a_job_begins_from_a_savepoint() -> None:
    """Its address is a template; one that renders to nothing begins from the beginning."""
    given: dict[str, Any] = {
        "from_savepoint": "{{ params.s }}",
        "state_partitions": 5,
        "allow_non_restored_state": True,
    }
    operator = in_dag(**given, interval=None)
    operator.render_template_fields({"params": {"s": "/saved/s1"}})

    assert {**given, "from_savepoint": "/saved/s1"} == requested(operator)

    operator = in_dag(**given, interval=None)
    operator.render_template_fields({"params": {"s": ""}})
    assert {"allow_non_restored_state": True} == requested(operator)


def test_the_runs_data_interval_is_passed_on_when_there_is_one() -> None:
    """A scheduled run's interval reaches the job; a manual run without one has none."""
    start = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
    end = start + dt.timedelta(days=1)
    operator = in_dag(at_end="suspend")

    assert {
        "at_end": "suspend",
        "interval": ["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"],
    } == requested(operator, data_interval_start=start, data_interval_end=end)
    assert {"at_end": "suspend"} == requested(operator)


def test_an_interval_of_ones_own_replaces_the_runs() -> None:
    """``interval`` gives start and end, whatever the DAG run's are."""
    operator = in_dag(interval=["2026-01-01", "2026-02-01"])
    start = dt.datetime(2026, 5, 1, tzinfo=dt.timezone.utc)

    assert {"interval": ["2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"]} == requested(
        operator, data_interval_start=start, data_interval_end=start
    )


# --- before it defers ---------------------------------------------------------------------------


def test_a_worker_that_waits_first_ends_a_short_run_itself(job: Job) -> None:
    """What ends in time needs no triggerer; what takes longer is deferred then."""
    job.submit(process=ELSEWHERE)
    with job.lease():
        deferred = deferral(operator_of(job, defer_after=0.2))
        ending = threading.Timer(0.3, job.finish)
        ending.start()
        shown = operator_of(job, defer_after="1 minute").execute(context())
        ending.join()

    assert "resume" == deferred.method_name
    assert "FINISHED" == shown["outcome"]


@pytest.mark.parametrize("from_trigger", [True, False])
@pytest.mark.parametrize("more", [{}, {"do_xcom_push": False}, {"outlets": [Asset("a")]}])
def test_a_task_ends_from_the_trigger_where_nothing_is_lost(
    job: Job, *, from_trigger: bool, more: dict[str, Any]
) -> None:
    """A task with outlets, whose events only a worker makes, or without XCom, ends in a worker."""
    job.submit(process=ELSEWHERE)
    with job.lease():
        deferred = deferral(operator_of(job, end_from_trigger=from_trigger, **more))

    asked = deferred.trigger.serialize()[1].get("end_from_trigger", False)
    assert (from_trigger and not more) == asked


# --- the job directory's identity ----------------------------------------------------------------


def remembered(job: Job) -> None:
    """Let Airflow remember the job, and let its driver run."""
    job.submit(process=ELSEWHERE)
    with job.lease("driver"):
        deferral(operator_of(job))


def test_a_directory_that_was_emptied_is_refused_by_each_later_try(job: Job) -> None:
    """
    A task that has begun a job there submits no driver into a bare folder; mounted again, or with a
    word that a new job replaces the lost one, it goes on.
    """
    remembered(job)
    job.root.rename(job.root.parent / "away")
    job.root.mkdir()

    for _ in range(2):
        with pytest.raises(AirflowFailException, match="has no identity.json.* Mount or restore"):
            operator_of(job).execute(context())
    assert [] == [*job.root.iterdir()]

    with pytest.raises(AirflowFailException, match="there is no file /nowhere/jobs.py"):
        operator_of(job, replaces_job="0" * 15).execute(context())

    job.root.rmdir()
    (job.root.parent / "away").rename(job.root)
    with job.lease("driver"):
        assert "driver" == deferral(operator_of(job)).trigger.driver_id


def test_another_jobs_directory_at_the_address_is_refused(job: Job) -> None:
    """It has an identity, and not the one that was begun there; one that follows it is taken."""
    remembered(job)
    shutil.rmtree(job.root)
    begin_identity(job.storage, SystemClock())

    with pytest.raises(
        AirflowFailException, match="has the identity 0{15}, and this directory has"
    ):
        operator_of(job).execute(context())

    add_predecessors(job.storage, ["0" * 15], "a savepoint", SystemClock())
    with pytest.raises(AirflowFailException, match="there is no file /nowhere/jobs.py"):
        operator_of(job).execute(context())


def test_a_driver_whose_directory_is_gone_is_not_judged_by_what_is_there(job: Job) -> None:
    """
    The task says that the directory is missing, and may be tried again; nothing is written there.
    """
    remembered(job)
    shutil.rmtree(job.root)
    event = {
        "run_state": "FAILED",
        "reason": "the driver ended",
        "driver_id": "driver",
        "lost": "x",
    }

    with pytest.raises(SparkRunFailedError, match="has no identity.json: it was emptied"):
        operator_of(job).resume(context(), event)
    assert not job.root.exists()


def test_a_memory_that_airflow_has_not_stored_stops_the_task(job: Job, monkeypatch) -> None:
    """Before 3.3 Airflow logs a refused write of a variable and returns, as if it were stored."""
    monkeypatch.setattr(Variable, "set", lambda *_, **__: None)

    with pytest.raises(OutageError, match="Airflow did not store the variable spark_stream_job"):
        JobMemory(job.url).begin()


def test_a_job_that_has_finished_is_not_remembered(job: Job) -> None:
    """No run may go on there, so a variable of Airflow's would stay for ever."""
    remembered(job)
    before = Variable.get(f"spark_stream_job.{key_of(job.url)}", None)
    job.finish()

    operator_of(job).execute(context())

    assert before is not None
    assert Variable.get(f"spark_stream_job.{key_of(job.url)}", None) is None


@contextlib.contextmanager
def mounted(folder: Path, at: Path) -> Iterator[None]:
    """Mount a folder of this machine at another location, as a filesystem of its own."""
    at.mkdir(exist_ok=True)
    done = subprocess.run(["mount", "--bind", folder, at], check=False, capture_output=True)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", at], check=True)


def test_an_unmounted_directory_is_refused_and_a_mounted_one_goes_on(tmp_path: Path) -> None:
    """
    On a real mount: while it is away tasks, drivers and launchers write nothing below the bare mount
    point, and each try is refused; mounted again, the next try adopts the driver.
    """
    real, mount = tmp_path / "real", tmp_path / "mount"
    real.mkdir()
    with mounted(real, mount):
        job = Job(mount / "job")
        remembered(job)
        launcher = directory_at(job.url).run(RUN)
        lease = acquire_lease(
            directory_at(job.url).storage,
            run_id=RUN,
            driver_id="driver",
            owner=ELSEWHERE,
            clock=SystemClock(),
        )

    with pytest.raises(FileNotFoundError, match="is not mounted"):
        launcher.put_end("driver", an_exit(5))
    with pytest.raises(LeaseLostError, match="is not there any more"):
        lease.check()
    for _ in range(2):
        with pytest.raises(AirflowFailException, match="has no identity.json.* is not mounted"):
            operator_of(job).execute(context())
    assert [] == [*mount.iterdir()]

    with mounted(real, mount):
        assert "driver" == deferral(operator_of(job)).trigger.driver_id
    lease.release()
