"""Decorator ``@task.spark_stream``: a function gives the job's parameters, where the task runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import DAG, task
from airflow.sdk.definitions.mappedoperator import MappedOperator
from airflow_names import DagSerialization, TaskDeferred
from handmade import RUN, TI, Job
from services import HERE, run_dag

from airflow_provider.airflow_versions import AirflowFailException
from airflow_provider.decorators.spark_stream import spark_stream_task
from airflow_provider.operators.extra_links import DRIVER_LINKS
from airflow_provider.operators.spark_streaming import SparkStreamingOperator
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.submissions import SubmissionRecord
from airflow_provider.runtime.testing.job_directories import a_run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("callable_outside_of_a_task")

JOB = "jobs.py:daily"


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collect the requests of drivers, none of which is started."""
    found: list[Any] = []

    def submit(_: Any, spec: Any, run_id: str, **__: Any) -> Any:
        found.append(spec)
        return SubmissionRecord(
            driver_id="driver", run_id=run_id, submitted="2026-01-01T00:00:00+00:00", log=None
        )

    monkeypatch.setattr("airflow_provider.hooks.spark_streaming.SparkStreamingHook.submit", submit)
    monkeypatch.setattr(
        "airflow_provider.hooks.spark_streaming.SparkStreamingHook.check", lambda *_, **__: None
    )
    return found


def operator_of(function: Any, *args: Any, job_dir: str = "/jobs/x", **arguments: Any) -> Any:
    """Return the operator that the decorator makes of a function in a DAG."""
    with DAG("flights", schedule=None):
        arguments = {"job": JOB, "job_dir": job_dir, "interval": None, **arguments}
        decorated = task.spark_stream(task_id="daily", **arguments)
        made: Any = decorated(function)(*args)
        return made.operator


def execute(operator: Any) -> None:
    with pytest.raises(TaskDeferred):
        operator.execute({"ti": TI, "ds": "2026-01-01"})


def test_airflow_finds_the_decorator() -> None:
    """By its name in the provider's information; it makes our operator, with its links."""

    def daily() -> None: ...

    operator: Any = operator_of(daily)

    assert ("daily", "@task.spark_stream") == (operator.task_id, operator.custom_operator_name)
    assert isinstance(operator, SparkStreamingOperator)
    assert DRIVER_LINKS == operator.operator_extra_links


def test_what_the_function_returns_is_added_to_the_parameters(
    submitted: list[Any], tmp_path: Path
) -> None:
    """It gets its arguments and what it names of the context, when a driver is submitted."""

    def daily(limit: int, ds: str = None) -> dict[str, Any]:  # type: ignore[assignment]  # noqa: RUF013 - Airflow's form
        return {"day": ds, "limit": limit}

    operator = operator_of(daily, 3, job_dir=f"{tmp_path}/job", params={"limit": 1, "key": "a"})
    assert {
        "limit": 1,
        "key": "a",
    } == operator.job_params  # nothing is called while a DAG is parsed
    execute(operator)

    assert [{"key": "a", "limit": 3, "day": "2026-01-01"}] == [spec.params for spec in submitted]
    assert operator.multiple_outputs is False  # whatever the annotation says of the parameters


def test_it_waits_in_the_triggerer_and_resumes(submitted: list[Any], tmp_path: Path) -> None:
    """As the operator: the trigger is that of the run, and another process continues."""
    calls = []

    def daily() -> None:
        calls.append(1)

    job = Job(tmp_path / "job")
    operator = operator_of(daily, job_dir=job.url)
    execute(operator)
    assert [{}] == [spec.params for spec in submitted]
    job.finish()

    final = operator_of(daily, job_dir=job.url).resume({"ti": TI}, {})

    assert "FINISHED" == final["outcome"]
    assert [1] == calls  # to take a result needs no parameters


def test_a_run_that_has_ended_is_compared_with_what_the_function_returns(tmp_path: Path) -> None:
    """The same parameters are the same run; others are refused, and nothing is started."""
    job = Job(tmp_path / "job")
    job.run.put_record(a_run(RUN, starting={}, params={"day": "2026-01-01"}))
    job.finish()
    context: Any = {"ti": TI, "ds": "2026-01-01"}

    def same(ds: str = None) -> dict[str, str]:  # type: ignore[assignment]  # noqa: RUF013 - Airflow's form
        return {"day": ds}

    final = operator_of(same, job_dir=job.url, run_id=RUN).execute(context)
    assert "FINISHED" == final["outcome"]
    with pytest.raises(AirflowFailException, match="params"):
        operator_of(lambda: {"day": "2026-01-02"}, job_dir=job.url, run_id=RUN).execute(context)


@pytest.mark.parametrize(
    ("returned", "wrong"),
    [
        (["a"], "has returned list; return the job's parameters by name, or None"),
        ("a=1", "has returned str"),
        ({"day": {1, 2}}, "parameter 'day': set"),
        ({"password": "x"}, "password"),
    ],
)
def test_what_are_no_parameters_is_refused(
    submitted: list[Any], tmp_path: Path, returned: Any, wrong: str
) -> None:
    """Before anything is written, and without a retry, which would get the same."""
    job_dir = tmp_path / "job"
    secret = {"password": "secret"}
    operator = operator_of(lambda: returned, job_dir=str(job_dir), secret_params=secret)

    with pytest.raises(AirflowFailException, match=wrong):
        operator.execute({"ti": TI})

    assert [] == submitted
    assert not job_dir.exists()


def test_a_coroutine_is_refused_when_the_dag_is_parsed() -> None:
    """Nobody would wait for what it returns."""

    async def daily() -> dict[str, Any]:
        return {}

    with pytest.raises(ConfigError, match="daily is async; write a plain function"):
        operator_of(daily)


def test_override_and_expand() -> None:
    """A task may have another name and options; mapped, each has arguments of its own."""
    with DAG("flights", schedule=None) as dag:

        @task.spark_stream(job=JOB, job_dir="/jobs/{{ ti.map_index }}", params={"key": "a"})
        def daily(region: str) -> Mapping[str, str]:
            return {"region": region}

        north: Any = daily.override(task_id="north", until="stopped")("n")
        daily.expand(region=["s", "w"])
    mapped = dag.get_task("daily")
    assert isinstance(mapped, MappedOperator)

    one = north.operator
    south: Any = mapped.unmap({"op_kwargs": {"region": "s"}})

    assert ("north", "stopped", ["n"]) == (one.task_id, one.run_options["until"], list(one.op_args))
    assert ({"key": "a"}, {"region": "s"}) == (south.job_params, south.op_kwargs)
    assert DRIVER_LINKS == mapped.operator_extra_links
    stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert {"north", "daily"} == set(stored.task_dict)


def test_the_typed_name_makes_the_same() -> None:
    """
    Airflow gives its decorators no types for those of providers: the function can be imported.
    """
    with DAG("flights", schedule=None):

        @spark_stream_task(job=JOB, job_dir="/jobs/x")
        def daily() -> None: ...

        made: Any = daily()

    assert "_SparkStreamDecoratedOperator" == type(made.operator).__name__


@pytest.mark.whole
def test_a_dag_passes_what_a_task_has_found(sqlite_airflow: dict[str, str], tmp_path: Path) -> None:
    """The arguments of the function are other tasks' results, and those of each mapped task."""
    for name in ("whole", "0", "1"):
        job = Job(tmp_path / name, "r1")
        params = {"days": 3} if name == "whole" else {"region": "ns"[int(name)], "days": 3}
        job.run.put_record(a_run("r1", starting={}, params=params))
        job.finish()
    environment = {**sqlite_airflow, "TEST_DATA": str(tmp_path)}

    run = run_dag(HERE / "dags" / "decorated.py", "decorated", environment)

    assert "success" == run["state"], run["log"]
    assert 3 == run["tasks"]["whole"]["value"]["rows_read"]
