"""Survival of a driver when its task's process ends: what is found, decided, and done."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from airflow_names import TaskDeferred
from handmade import ELSEWHERE, TI, Job
from services import wait_for

from airflow_provider.hooks.spark_streaming import SparkStreamingHook
from airflow_provider.operators.awaited_driver import AwaitedDriver, DriverHome
from airflow_provider.operators.driver_survival import (
    TASK_VARIABLES,
    Survival,
    WorkerFacts,
    decide_here,
    decide_survival,
    describe_survival,
)
from airflow_provider.operators.retry_policy import SparkRunFailedError
from airflow_provider.operators.spark_streaming import SparkStreamingOperator
from airflow_provider.operators.worker_wait import await_driver_end
from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.control.launcher import record_exit
from airflow_provider.runtime.control.submitted_process import SubmittedProcess
from airflow_provider.runtime.testing.job_directories import a_submission
from tests.present import present

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from airflow_provider.runtime.jobdir.submissions import SubmissionRecord

pytestmark = pytest.mark.usefixtures("callable_outside_of_a_task")

HERE, SUBMITTED, AWAY = DriverHome.HERE, DriverHome.SUBMITTED, DriverHome.ELSEWHERE
OUTLIVES, ONCE, ENDS = Survival.OUTLIVES, Survival.ONCE_SUBMITTED, Survival.ENDS
CELERY = ("python", "/usr/bin/airflow", "celery", "worker")
SCHEDULER = ("python", "/usr/bin/airflow", "scheduler")
ONE_TASK = ("python", "-m", "airflow.sdk.execution_time.execute_workload", "--json-string", "{}")
INIT = ("/usr/bin/dumb-init", "--", "/entrypoint")


def container(*commands: tuple[str, ...], is_first: bool = False) -> WorkerFacts:
    return WorkerFacts((*commands, INIT), is_container=True, is_first=is_first)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (WorkerFacts(), OUTLIVES),
        (WorkerFacts((CELERY,)), OUTLIVES),
        (WorkerFacts((ONE_TASK,)), OUTLIVES),
        (WorkerFacts((CELERY,), ("AIRFLOW_IS_K8S_EXECUTOR_POD",)), ENDS),
        (container(SCHEDULER), OUTLIVES),
        (container(("airflow scheduler -- LocalExecutor",)), OUTLIVES),
        (container(("python", "/bin/airflow", "standalone")), OUTLIVES),
        (container(SCHEDULER, is_first=True), ENDS),
        (container(CELERY), ENDS),
        (container(("[celeryd: celery@a:MainProcess] -active- (worker)",)), ENDS),
        (container(("python", "/bin/airflow", "edge", "worker")), ENDS),
        (container(ONE_TASK), ENDS),
        (container(("airflow supervisor: flights.daily",)), ENDS),
        (container(("python", "-c", "scheduler")), ENDS),
        (container((), ("",)), ENDS),
    ],
)
def test_a_driver_of_this_machine_outlives_a_task_where_no_container_ends(
    facts: WorkerFacts, expected: Survival
) -> None:
    """The table of the decision; on a cluster it is the submission that would end."""
    submitted = {OUTLIVES: OUTLIVES, ENDS: ONCE}[expected]

    assert expected is decide_survival(facts, HERE).survival
    assert submitted is decide_survival(facts, SUBMITTED).survival
    assert OUTLIVES is decide_survival(facts, AWAY).survival


@pytest.mark.parametrize("name", sorted(TASK_VARIABLES))
def test_an_executor_says_by_a_variable_that_it_starts_a_worker_for_each_task(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The facts have its name, and the line in the log says it."""
    facts = WorkerFacts.read({name: "True"})
    decision = decide_survival(facts, HERE)

    assert (name,) == facts.variables
    assert ENDS is decision.survival
    assert f"{TASK_VARIABLES[name]}: {name}" in describe_survival(decision)
    monkeypatch.setenv(name, "True")
    assert (name,) == WorkerFacts.read().variables


def test_what_the_user_says_is_right() -> None:
    """Of a driver on this machine, or one that a process of this machine submits."""
    pod, host = container(ONE_TASK, is_first=True), WorkerFacts()

    assert OUTLIVES is decide_survival(pod, HERE, said=True).survival
    assert OUTLIVES is decide_survival(pod, SUBMITTED, said=True).survival
    assert ENDS is decide_survival(host, HERE, said=False).survival
    assert ONCE is decide_survival(host, SUBMITTED, said=False).survival
    assert OUTLIVES is decide_survival(host, AWAY, said=False).survival
    line = describe_survival(decide_survival(host, HERE, said=False))
    assert "does not defer" in line
    assert "(driver_outlives_task is False)" in line


def test_the_operator_wins_over_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker's configuration counts where the operator says nothing."""
    name = "AIRFLOW__SPARK_STREAM__DRIVER_OUTLIVES_TASK"

    monkeypatch.setenv(name, "False")
    assert [ENDS, OUTLIVES] == [decide_here(HERE, said=each).survival for each in (None, True)]
    monkeypatch.setenv(name, "True")
    assert [OUTLIVES, ENDS] == [decide_here(HERE, said=each).survival for each in (None, False)]
    monkeypatch.delenv(name)
    assert decide_survival(WorkerFacts.read(), HERE) == decide_here(HERE, said=None)


def test_this_process_and_its_ancestors_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their command lines, the nearest first; a pod is seen also in the node's own namespace."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    here = WorkerFacts.read()

    assert tuple(sys.orig_argv) == here.commands[0]
    assert len(here.commands) > 1
    assert WorkerFacts.read({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}).is_container


READ = (
    "from airflow_provider.operators.driver_survival import *;"
    "facts = WorkerFacts.read({}); import json;"
    "print(json.dumps([facts.is_container, facts.is_first]))"
)


@pytest.mark.slow
@pytest.mark.skipif(
    subprocess.run(["unshare", "--pid", "--fork", "true"], check=False, capture_output=True).returncode != 0,
    reason="needs the right to make a PID namespace",
)  # fmt: skip
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ([sys.executable, "-c", READ], [True, True]),
        (["sh", "-c", f'{sys.executable} -c "$0"; true', READ], [True, True]),
        (["sh", "-c", f'sh -c "{sys.executable} -c \\"\\$0\\"; true" "$0"; true', READ], [True, False]),
    ],
)  # fmt: skip
def test_a_process_sees_that_its_namespace_ends_with_it(
    command: list[str], expected: list[bool]
) -> None:
    """As the first process of a real namespace, as its child, and further below."""
    unshare = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    done = subprocess.run(
        [*unshare, *command], env={**os.environ}, capture_output=True, text=True, check=True
    )

    assert expected == json.loads(done.stdout.splitlines()[-1])


# --- what the operator does ---------------------------------------------------------------------


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path / "job")


def operator_of(job: Job, **arguments: Any) -> SparkStreamingOperator:
    arguments = {"job": "/nowhere/jobs.py:daily", "poll_interval": 0.05, **arguments}
    return SparkStreamingOperator(task_id="daily", job_dir=job.url, **arguments)


def a_live_driver(job: Job, *, is_remote: bool = False) -> SubmissionRecord:
    """Submit a driver from this process, which looks after it."""
    job.begin("daily")
    record = dataclasses.replace(
        a_submission(), driver_id="d1", run_id=job.run_id, is_remote=is_remote
    )
    job.run.put_submission(record)
    assert SubmittedProcess(job.run, "d1", beats=False).enter()
    return record


def test_a_driver_that_another_machine_has_is_not_touched_by_this_process(job: Job) -> None:
    """So a task that adopts it defers, whatever ends with the task; one of this machine counts."""
    here = a_live_driver(job)
    job.submit("d2", process=ELSEWHERE)
    there = present(job.run.submissions()[-1])
    remote = dataclasses.replace(here, is_remote=True)
    livy = dataclasses.replace(remote, launcher="livy")

    assert [HERE, AWAY] == [AwaitedDriver.found(each, job.run).home for each in (here, there)]
    assert HERE is AwaitedDriver.of(there).home
    assert [SUBMITTED, AWAY] == [AwaitedDriver.found(each, job.run).home for each in (remote, livy)]
    assert AWAY is AwaitedDriver().home
    assert HERE is AwaitedDriver.found(dataclasses.replace(here, driver_id="d3"), job.run).home


def test_a_task_waits_itself_where_its_driver_would_end_with_it(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says so once, and returns the final checkpoint without a deferral."""
    a_live_driver(job)
    operator = operator_of(job, driver_outlives_task=False)
    ending = threading.Timer(0.5, job.finish)
    ending.start()

    result = operator.execute({"ti": TI})

    assert "FINISHED" == result["outcome"]
    assert 1 == capsys.readouterr().out.count("This task does not defer, it waits itself")


def test_a_task_defers_where_its_driver_outlives_it(job: Job) -> None:
    """The same driver of this machine, where the user says that the worker stays."""
    a_live_driver(job)

    with pytest.raises(TaskDeferred) as raised:
        operator_of(job, driver_outlives_task=True).execute({"ti": TI})

    assert "d1" == raised.value.trigger.driver_id


@contextlib.contextmanager
def driver_that_can_be_asked(job: Job, *, ends: bool = True) -> Iterator[threading.Event]:
    """Hold the lease as a driver does until it is asked to end; give its end."""
    a_live_driver(job)
    released, over = threading.Event(), threading.Event()

    def drive() -> None:
        with job.lease("d1"):
            while not over.wait(0.05):
                if ends and job.requests():
                    break
        released.set()

    driver = threading.Thread(target=drive, daemon=True)
    driver.start()
    wait_for("the driver has its lease", lambda: [*job.root.glob("leases/*.json")], within=10)
    yield released
    over.set()
    driver.join()


def reconciled(job: Job, **arguments: Any) -> tuple[SparkStreamingOperator, threading.Thread]:
    """Return an operator whose task waits in a thread, with a claim on the run."""
    operator = operator_of(job, **arguments)

    def wait() -> None:
        with contextlib.suppress(SparkRunFailedError):
            operator.execute({"ti": TI})

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    wait_for("it waits", lambda: operator._claimed is not None, within=20)
    return operator, waiting


@pytest.mark.parametrize("outlives", [False, True])
def test_a_killed_task_sees_its_driver_end_where_that_would_be_killed_with_it(
    job: Job, *, outlives: bool
) -> None:
    """So the lease is released, and the next try need not wait for silence."""
    with driver_that_can_be_asked(job) as released:
        operator, waiting = reconciled(
            job, driver_outlives_task=outlives, on_kill="cancel", deferrable=False
        )
        expected = OUTLIVES if outlives else ENDS
        wait_for("it has decided", lambda: operator._survival is expected, within=10)
        operator.on_kill()
        has_ended = released.is_set()
        waiting.join(60)

    assert ["d1"] == job.cancels()
    assert has_ended or outlives
    assert not waiting.is_alive()


def test_a_driver_that_does_not_end_is_not_waited_for_beyond_the_time(job: Job) -> None:
    """Airflow kills the task then, and with it the driver."""
    with driver_that_can_be_asked(job, ends=False):
        watcher = SparkStreamingHook().watcher(job.url, job.run_id)
        clock = SystemClock()
        began = clock.monotonic()

        assert not await_driver_end(watcher, clock, within_s=0.5)
        assert 0.5 <= clock.monotonic() - began < 5

    assert await_driver_end(watcher, clock, within_s=0.0)


@pytest.mark.parametrize("is_given", [True, False])
def test_a_task_defers_only_when_the_cluster_has_its_driver(job: Job, *, is_given: bool) -> None:
    """In a pod that ends with the task: until then `spark-submit` would end with it, too."""
    a_live_driver(job, is_remote=True)
    operator = operator_of(job, driver_outlives_task=False)
    deferred: list[Any] = []

    def execute() -> None:
        with contextlib.suppress(SparkRunFailedError):
            try:
                operator.execute({"ti": TI})
            except TaskDeferred as error:
                deferred.append(error.trigger.driver_id)

    waiting = threading.Thread(target=execute, daemon=True)
    waiting.start()
    wait_for("it has decided", lambda: operator._survival is ONCE, within=20)
    waiting.join(0.5)
    before = [*deferred]
    with (job.root / "driver.log").open("w+b") as log:
        record_exit(job.run, "d1", 0 if is_given else 1, log, is_given=is_given)
    waiting.join(30)

    assert [] == before
    assert (["d1"] if is_given else []) == deferred
