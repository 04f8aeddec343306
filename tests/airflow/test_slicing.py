"""The slice in Airflow: its timetables, its templates, and tasks of backfills."""

from __future__ import annotations

import datetime as dt
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import DAG
from handmade import TI, Job

from airflow_provider.airflow_versions import AirflowFailException
from airflow_provider.operators.spark_bootstrap import SparkBootstrapOperator
from airflow_provider.operators.spark_savepoint import SparkSavepointOperator
from airflow_provider.operators.spark_stop import SparkStopOperator
from airflow_provider.operators.spark_streaming import SparkStreamingOperator
from airflow_provider.runtime.base.host import identify_this
from airflow_provider.runtime.jobdir.submissions import RunOwnerRecord

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("callable_outside_of_a_task")

ROOT = Path(__file__).resolve().parents[2]
UTC = dt.timezone.utc
START = dt.datetime(2026, 5, 1, tzinfo=UTC)
END = dt.datetime(2026, 5, 2, tzinfo=UTC)
NAME = "20260501T000000Z-20260502T000000Z"


def context(run_type: str = "scheduled", **more: Any) -> Any:
    dag_run = SimpleNamespace(run_type=run_type, conf=None, run_id="run_1")
    times = {"data_interval_start": START, "data_interval_end": END}
    return {"ti": TI, "run_id": "run_1", "dag_run": dag_run, **times, **more}


# --- templates ----------------------------------------------------------------------------------


def streaming(**arguments: Any) -> SparkStreamingOperator:
    return SparkStreamingOperator(task_id="t", job="j:f", params=None, **arguments)


@pytest.mark.parametrize(
    "operator",
    [
        streaming(job_dir="/j/{{ slice.name }}"),
        SparkSavepointOperator(task_id="t", job_dir="/j/{{ slice.name }}"),
        SparkStopOperator(task_id="t", job_dir="/j/{{ slice }}"),
        SparkBootstrapOperator(
            task_id="t", job="j:f", job_dir="/j/{{ slice.name }}", history_params={}
        ),
    ],
)
def test_templates_of_every_operator_know_the_slice(operator: Any) -> None:
    """By its name, or as a text."""
    operator.render_template_fields(context())

    assert f"/j/{NAME}" == operator.job_dir


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ slice.start | ds }}", "2026-05-01"),
        ("{{ slice.start | ds_nodash }}", "20260501"),
        ("{{ slice.start | ts }}", "2026-05-01T00:00:00+00:00"),
        ("{{ slice.end | ts_nodash }}", "20260502T000000"),
        ("{{ slice.start.strftime('%Y/%m') }}", "2026/05"),
        ("{{ slice.start }}", "2026-05-01 00:00:00+00:00"),
    ],
)
def test_a_template_formats_the_times_of_a_slice(template: str, expected: str) -> None:
    """
    They are datetimes: Airflow's filters, and ``strftime``, write them as the documentation says.
    """
    operator = SparkStreamingOperator(
        task_id="t", job="j:f", job_dir="/j", params={"day": template}
    )

    operator.render_template_fields(context())

    assert {"day": expected} == operator.job_params


def test_the_example_reads_the_folder_of_the_first_day_of_its_slice() -> None:
    """The DAG of backfills formats ``slice.start`` in a parameter of the job."""
    example = runpy.run_path(str(ROOT / "dags" / "flights_backfill.py"))
    operator = example["flights_backfill"]().get_task("daily_delays")

    operator.render_template_fields(context())

    assert f"{example['SLICES']}/{NAME}/input/2026-05-01" == operator.job_params["input"]


def test_templates_of_a_mapped_operator_know_the_slice() -> None:
    """Airflow renders those in another way."""
    given: Any = [{"job_dir": "/j/{{ slice.name }}"}]
    with DAG("flights", schedule=None) as dag:
        mapped = SparkSavepointOperator.partial(task_id="t").expand_kwargs(given)
    ti = SimpleNamespace(**vars(TI) | {"map_index": 0, "is_mapped": True})
    names = context(ti=ti, dag=dag)

    mapped.render_template_fields(names)

    assert f"/j/{NAME}" == names["task"].job_dir


def test_a_template_without_a_slice_needs_none() -> None:
    """Only who asks for one is told that there is none, and not to try again."""
    none: dict[str, Any] = {"data_interval_start": None, "data_interval_end": None}
    operator = streaming(job_dir="/j/{{ run_id }}")
    operator.render_template_fields(context(**none))
    assert "/j/run_1" == operator.job_dir

    operator = streaming(job_dir="/j/{{ slice.name }}")
    with pytest.raises(AirflowFailException, match="run 'run_1': its slice is not known"):
        operator.render_template_fields(context(**none))


# --- what a job is told -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({}, ["2026-05-01T00:00:00+00:00", "2026-05-02T00:00:00+00:00"]),
        ({"data_interval_end": START}, ["2026-05-01T00:00:00+00:00"] * 2),
        ({"data_interval_start": None}, None),
        ({"partition_key": "eu"}, None),
        (
            {
                "data_interval_start": None,
                "dag_run": SimpleNamespace(
                    conf={"interval_start": "2026-01-01", "interval_end": "2026-02-01"}
                ),
            },
            ["2026-01-01T00:00:00+00:00", "2026-02-01T00:00:00+00:00"],
        ),
    ],
)
def test_the_interval_of_a_run_is_that_of_its_slice(
    facts: dict[str, Any], told: list[str] | None
) -> None:
    """Of a run without a slice it is what Airflow says, also if that is empty."""
    assert told == streaming(job_dir="/j")._interval(context(**facts))


# --- backfills ----------------------------------------------------------------------------------

EVERY = [
    lambda job_dir: streaming(job_dir=job_dir),
    lambda job_dir: SparkBootstrapOperator(
        task_id="t", job="j:f", job_dir=job_dir, history_params={}
    ),
    lambda job_dir: SparkSavepointOperator(task_id="t", job_dir=job_dir),
    lambda job_dir: SparkStopOperator(task_id="t", job_dir=job_dir),
]


@pytest.mark.parametrize("make", EVERY)
def test_no_operator_touches_a_live_job_in_a_backfill(
    tmp_path: Path, make: Callable[[str], Any]
) -> None:
    """
    Told by an address without a template, and by what has run where a template leads; not a byte
    is written, and another try would not help.
    """
    live = Job(tmp_path / "live", "live")
    live.submit(process=identify_this())
    before = live.documents()
    for job_dir, said in (
        (live.url, "every run of this task uses this job directory"),
        ("{{ dag_run.where }}", "'live' was not begun by a DAG run's slice"),
    ):
        operator = make(job_dir)
        names = context("backfill")
        names["dag_run"].where = live.url
        operator.render_template_fields(names)
        with pytest.raises(AirflowFailException, match=said):
            operator.execute(names)

    assert before == live.documents()


def test_a_run_says_who_has_begun_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its driver is submitted, and once."""
    job = Job(tmp_path / "job", "t")
    operator = streaming(job_dir=job.url, run_id="t")
    operator.job = "/nowhere/jobs.py:daily"
    monkeypatch.setattr(operator, "_check", lambda *_: None)  # so that the submission refuses it
    for run_type in ("scheduled", "manual"):
        with pytest.raises(AirflowFailException, match="there is no file"):
            operator.execute(context(run_type))

    assert (
        RunOwnerRecord(
            dag_id="flights", dag_run_id="run_1", run_type="scheduled", slice=NAME, max_tries=0
        )
    ) == RunOwnerRecord.read(job.run.storage, "owner.json")
