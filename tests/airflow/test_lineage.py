"""Lineage: what OpenLineage gets to know of a run, and what its Spark listener gets to know."""

from __future__ import annotations

import dataclasses
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import DAG
from handmade import RUN, TI, Job
from handmade_streams import Stream
from services import HERE, run_dag, wait_for

from airflow_provider.extensions.warm_drivers.matching import FixedSettings
from airflow_provider.operators.lineage import RowCheck, datasets_of_run
from airflow_provider.operators.spark_bootstrap import SparkBootstrapOperator
from airflow_provider.operators.spark_streaming import SparkStreamingOperator
from airflow_provider.runtime.api.sinks import Dataset
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.query_reports import FinalQuery, PublishedSink
from airflow_provider.runtime.jobdir.row_counts import RowCounts, RuleCount
from airflow_provider.runtime.jobdir.run_spec import RunSpec
from airflow_provider.runtime.testing.job_directories import a_final, a_progress, a_run, an_attempt

if TYPE_CHECKING:
    from collections.abc import Mapping

IN, ALSO = Dataset("file", "/in"), Dataset("s3://bucket", "in")
OUT = Dataset("postgres://db:5432", "shop.public.orders")
FLAGS = ("openlineage_inject_parent_job_info", "openlineage_inject_transport_info")


def said(*sources: Dataset, sink: str = "files:/out", out: Dataset = OUT) -> dict[str, Any]:
    """Return what a driver records of a query."""
    return {
        "sources": {f"s{n}": [source._asdict()] for n, source in enumerate(sources)},
        "sinks": {sink: [out._asdict()]},
    }


def ended(
    folder: Path,
    datasets: Mapping[str, Any],
    read: Mapping[str, int],
    row_counts: RowCounts | None = None,
    **final: Any,
) -> JobDirectory:
    """Make a job with one run that has ended."""
    job = Job(folder, "r1")
    job.run.put_record(a_run("r1", starting=dict.fromkeys(datasets, -1)))
    job.run.put_attempt(an_attempt(datasets=datasets))
    progress = {name: {"rows_read": rows} for name, rows in read.items()}
    rows = {"rows_read": sum(read.values()), **final}
    a_progress(queries=progress, rows_read=sum(read.values())).put(job.run.storage, "progress.json")
    queries = {
        name: FinalQuery(
            query_id=f"id-{name}",
            batch_id=1,
            sinks=(PublishedSink(name="files:/out", epoch=1, rows=3),),
            row_counts=row_counts or RowCounts(),
        )
        for name in datasets
    }
    job.run.put_final(dataclasses.replace(a_final("r1"), queries=queries, **rows))
    return JobDirectory(job.storage)


def test_a_run_has_the_rows_of_its_queries(tmp_path: Path) -> None:
    """A dataset that two queries read or write has the rows of both."""
    directory = ended(tmp_path, {"a": said(IN), "b": said(IN)}, {"a": 5, "b": 2})

    found = datasets_of_run(directory, "r1")

    assert ({IN: 7}, {OUT: 6}) == (found.inputs, found.outputs)


def test_each_query_has_the_checks_of_its_own_sources(tmp_path: Path) -> None:
    """Not only the first query of a run."""
    counts = RowCounts(rejected={"s0": RuleCount(5, 1, "count")})
    read = {"a": 5, "b": 2}
    directory = ended(tmp_path, {"a": said(IN), "b": said(ALSO)}, read, row_counts=counts)

    found = datasets_of_run(directory, "r1")

    records = [RowCheck("records of s0", 5, 1, "count")]
    assert {IN: records, ALSO: records} == found.checks


def test_rows_that_are_not_known_are_not_guessed(tmp_path: Path) -> None:
    """Those of one of several sources; those of a driver that died after its last report."""
    several = ended(tmp_path / "several", {"a": said(IN, ALSO), "b": said(IN)}, {"a": 5, "b": 2})
    stale = {"a": said(IN), "b": said(ALSO)}
    died = ended(tmp_path / "died", stale, {"a": 5, "b": 2}, rows_read=9)
    alone = ended(tmp_path / "alone", {"a": said(IN)}, {"a": 5}, rows_read=9)

    assert {IN: None, ALSO: None} == datasets_of_run(several, "r1").inputs
    assert {IN: None, ALSO: None} == datasets_of_run(died, "r1").inputs
    assert {IN: 9} == datasets_of_run(alone, "r1").inputs  # a run of one query: the final's own


def test_a_run_that_goes_on_has_what_is_published(tmp_path: Path) -> None:
    """
    As it is when a stream is handed over, or has failed; a run without an attempt has nothing.
    """
    stream = Stream(tmp_path).begin().commit(0)
    assert ({}, {}) == (
        datasets_of_run(stream.directory, stream.run_id).inputs,
        datasets_of_run(stream.directory, stream.run_id).outputs,
    )
    stream.run.put_attempt(an_attempt(datasets={"q": said(IN)}))

    found = datasets_of_run(stream.directory, stream.run_id)

    assert ({IN: None}, [OUT]) == (found.inputs, list(found.outputs))


# --- facets -------------------------------------------------------------------------------------


def rendered(folder: Path, **arguments: Any) -> SparkStreamingOperator:
    """Return an operator after its templates are rendered, as when a listener asks it."""
    arguments = {"job": "jobs.py:daily", "run_id": "r1", **arguments}
    with DAG("flights", schedule=None):
        operator = SparkStreamingOperator(task_id="daily", job_dir=str(folder), **arguments)
    operator.render_template_fields({"ti": TI})
    return operator


def test_facets_name_datasets_and_rows(tmp_path: Path) -> None:
    """At the end of a task, whatever became of it, and at the start of one whose run is there."""
    pytest.importorskip("airflow.providers.openlineage")
    ended(tmp_path, {"a": said(IN)}, {"a": 5})
    operator = rendered(tmp_path)

    for lineage in (
        operator.get_openlineage_facets_on_start(),
        operator.get_openlineage_facets_on_complete(None),
        operator.get_openlineage_facets_on_failure(None),
    ):
        assert lineage is not None
        (read,), (written,) = lineage.inputs, lineage.outputs
        assert (IN, OUT) == ((read.namespace, read.name), (written.namespace, written.name))
        assert 5 == read.inputFacets["inputStatistics"].rowCount
        assert 3 == written.outputFacets["outputStatistics"].rowCount


def test_nothing_is_known_before_the_first_attempt(tmp_path: Path) -> None:
    """Then nothing of OpenLineage is needed either."""
    assert rendered(tmp_path / "new").get_openlineage_facets_on_start() is None
    with DAG("flights", schedule=None):
        unrendered = SparkStreamingOperator(task_id="x", job="j.py:f", job_dir=str(tmp_path))
    assert unrendered.get_openlineage_facets_on_complete(None) is None


# --- injection ----------------------------------------------------------------------------------


def command_of(operator: Any) -> list[str]:
    spec = RunSpec(job_dir="/jobs/x", entry="jobs.py:daily", run_id=RUN)
    hook = operator._hook()
    return list(hook._command(spec, RUN, "7f" * 16, "0" * 64, Path("/logs/driver.log")))


@pytest.fixture
def compat(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put known answers in the place of those that need a running task; give their module."""
    from airflow.providers.common.compat.openlineage.utils import spark

    def parent(conf: dict[str, Any], context: Any) -> dict[str, Any]:
        return {**conf, "spark.openlineage.parentRunId": context["ti"].run_id}

    def transport(conf: dict[str, Any], _: Any) -> dict[str, Any]:
        at = "spark.openlineage.transport"
        more = {
            f"{at}.url": "http://lineage:5000",
            f"{at}.timeoutInMillis": 5000,
            f"{at}.auth.apiKey": "secret",
            f"{at}.transports.other.headers.Authorization": "secret",
            f"{at}.transports.other.url": "http://user:secret@lineage",
        }
        return {**conf, **more}

    monkeypatch.setattr(spark, "inject_parent_job_information_into_spark_properties", parent)
    monkeypatch.setattr(spark, "inject_transport_information_into_spark_properties", transport)
    return spark


def test_a_driver_learns_its_parent_and_no_secret(
    compat: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is secret is left out of the command line, and the log says where it belongs."""
    command = command_of(rendered(tmp_path, **dict.fromkeys(FLAGS, True)))

    assert f"spark.openlineage.parentRunId={TI.run_id}" in command
    assert "spark.openlineage.transport.url=http://lineage:5000" in command
    assert "spark.openlineage.transport.timeoutInMillis=5000" in command
    assert "secret" not in " ".join(command)
    logged = capsys.readouterr().out
    assert "transport.auth.apiKey" in logged
    assert "conf/spark-defaults.conf" in logged
    assert ":secret" not in logged


def test_a_warm_driver_gets_the_task_as_parent(compat: Any, tmp_path: Path) -> None:
    """The parent is another one for each task: the run has it, and no driver is started with it."""
    spec = RunSpec(job_dir="/jobs/x", entry="jobs.py:daily", run_id=RUN)
    hooks: list[Any] = [
        rendered(tmp_path, warm=True, **flags)._hook() for flags in ({}, dict.fromkeys(FLAGS, True))
    ]
    asked = [hook._warm_settings(spec) for hook in hooks]

    fixed = [FixedSettings.of(each.master, each.conf, {}) for each in asked]
    assert fixed[0] == fixed[1]
    assert "spark.openlineage.parentRunId" not in asked[0].conf
    assert "spark.openlineage.parentRunId" in asked[1].conf


def test_airflows_configuration_says_so_for_all_tasks(
    monkeypatch: pytest.MonkeyPatch, compat: Any, tmp_path: Path
) -> None:
    """The names and defaults are those of SparkSubmitOperator; an argument wins."""
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__SPARK_INJECT_PARENT_JOB_INFO", "True")
    parent = f"spark.openlineage.parentRunId={TI.run_id}"

    assert parent in command_of(rendered(tmp_path))
    assert "transport" not in " ".join(command_of(rendered(tmp_path)))
    assert parent not in command_of(rendered(tmp_path, **dict.fromkeys(FLAGS, False)))
    with DAG("flights", schedule=None):
        bootstrap = SparkBootstrapOperator(
            task_id="b", job="j.py:f", job_dir="/jobs/x", history_params={"a": 1}
        )
    assert bootstrap.openlineage_inject_parent_job_info
    monkeypatch.delenv("AIRFLOW__OPENLINEAGE__SPARK_INJECT_PARENT_JOB_INFO")
    assert parent not in command_of(rendered(tmp_path))


def test_without_openlineages_provider_a_driver_starts_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Airflow's own replacement warns, and nothing is injected."""
    name = "airflow.providers.common.compat.openlineage.utils.spark"
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "airflow.providers.openlineage.utils.spark", None)
    command = command_of(rendered(tmp_path, **dict.fromkeys(FLAGS, True)))
    monkeypatch.delitem(sys.modules, name, raising=False)

    assert "openlineage" not in " ".join(command)


# --- a real task --------------------------------------------------------------------------------


@pytest.mark.whole
def test_a_deferred_task_emits_datasets_and_rows(
    sqlite_airflow: dict[str, str], tmp_path: Path
) -> None:
    """
    OpenLineage's own listener: START of a task that adopts a run, and COMPLETE when it has ended.
    """
    pytest.importorskip("airflow.providers.openlineage")
    stream = Stream(tmp_path / "job", "r1").begin().commit(0)
    stream.run.put_attempt(an_attempt(datasets={"q": said(IN)}))
    events = tmp_path / "events"
    transport = {"type": "file", "log_file_path": str(events), "append": True}
    environment = {
        **sqlite_airflow,
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport),
        "AIRFLOW__OPENLINEAGE__NAMESPACE": "tests",
        "TEST_DATA": str(tmp_path),
    }

    with ThreadPoolExecutor(1) as pool:
        with stream.lease():
            running = pool.submit(run_dag, HERE / "dags" / "adopting.py", "adopting", environment)
            claim = tmp_path / "job" / "runs" / "r1" / "claims" / "1.json"
            wait_for("it waits", lambda: claim.exists() or running.done(), within=120)
            stream.report()
            final = a_final("r1", outcome="SUSPENDED")
            stream.run.put_final(dataclasses.replace(final, job="daily", rows_read=30))
        run = running.result()

    assert "success" == run["state"], run["log"]
    seen = [json.loads(line) for line in events.read_text().splitlines()]
    mine = [each for each in seen if each["job"]["name"] == "adopting.daily"]
    assert ["START", "START", "COMPLETE"] == [each["eventType"] for each in mine], run["log"]
    for event in mine:
        (read,), (written,) = event["inputs"], event["outputs"]
        assert IN == (read["namespace"], read["name"])
        assert OUT == (written["namespace"], written["name"])
    assert 30 == mine[-1]["inputs"][0]["inputFacets"]["inputStatistics"]["rowCount"]
    assert 3 == mine[-1]["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"]
