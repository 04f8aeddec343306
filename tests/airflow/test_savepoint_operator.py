"""The savepoint operator: a savepoint per run, a retry that finds it, assets, retention."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, Asset
from airflow_names import DagSerialization
from handmade import OutletEvents

from airflow_provider.airflow_versions import AirflowFailException, AirflowSkipException
from airflow_provider.hooks.job_memory import JobMemory
from airflow_provider.operators.spark_savepoint import SparkSavepointOperator
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.run_records import JobRecord
from airflow_provider.runtime.savepoints.catalog import find_savepoints, open_savepoint
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.testing.job_directories import identified
from tests.unit.savepoint_refusals import TAKES, Case, make, rights, tree

pytestmark = pytest.mark.usefixtures("callable_outside_of_a_task")


@pytest.fixture
def job_dir(tmp_path: Path) -> str:
    """Return a job directory whose one query has committed a batch with Spark's own sink."""
    storage = LocalStorage(str(tmp_path / "job"))
    JobDirectory(identified(storage)).put_job(JobRecord(name="job", created="now"))
    checkpoint = JobDirectory(storage).checkpoint("q")
    checkpoint.put("metadata", b'{"id":"7d0f2a34-5f5e-4c0e-9f0a-1f4f2f1c9b11"}')
    checkpoint.put("offsets/0", b'v1\n{"batchWatermarkMs":0,"conf":{}}\n{"rows":1}')
    checkpoint.put("commits/0", b'v1\n{"nextBatchWatermarkMs":0}')
    return storage.url


def context(run_id: str = "run_1", **more: Any) -> Any:
    ti = SimpleNamespace(dag_id="flights", task_id="save", run_id=run_id, map_index=-1)
    return {"ti": ti, "run_id": run_id, **more}


def save(job_dir: str | None, run_id: str = "run_1", **arguments: Any) -> dict[str, Any]:
    operator = SparkSavepointOperator(
        task_id="save", **{"job_dir": job_dir, "name": run_id, **arguments}
    )
    return operator.execute(context(run_id))


def names(job_dir: str) -> list[str]:
    return [s.folder for s in find_savepoints(LocalStorage(job_dir).at("savepoints"))[0]]


def test_a_savepoint_is_taken_and_told(job_dir: str) -> None:
    """It lies among the job's, and XCom says where, of which batch, and that it is whole."""
    told = save(job_dir, labels={"team": "flights"})

    savepoint = open_savepoint(told["url"])
    assert f"{job_dir}/savepoints/run_1" == told["url"]
    assert ("periodic", "flights") == (savepoint.record.origin, savepoint.record.labels["team"])
    assert {"q": {"batch": 0, "watermark": "1970-01-01T00:00:00.000Z"}} == told["queries"]
    assert told["aligned"]


def test_a_retry_finds_what_an_earlier_try_has_taken(job_dir: str) -> None:
    """A worker may die after the savepoint is complete: the next try takes no second one."""
    first = save(job_dir)

    assert first == save(job_dir)
    assert ["run_1"] == names(job_dir)


def test_a_name_of_somebody_else_fails_for_good(job_dir: str) -> None:
    """Another run's savepoint is not taken for one's own."""
    save(job_dir, "run_1")

    with pytest.raises(AirflowFailException, match="there is a savepoint of this name"):
        save(job_dir, "run_2", name="run_1")


def test_each_outlet_is_told(job_dir: str) -> None:
    """Whoever is scheduled by the asset reads the savepoint's address from its event."""
    asset = Asset("flights-savepoint")
    events = OutletEvents(asset)
    operator = SparkSavepointOperator(task_id="save", job_dir=job_dir, name="s", outlets=[asset])

    told = operator.execute(context(outlet_events=events))

    assert told == events[asset].extra


def test_retention_keeps_the_newest(job_dir: str) -> None:
    """Each run disposes of what is too much; what a person has taken stays."""
    save(job_dir, "by_hand", origin="manual")
    for run in range(4):
        save(job_dir, f"run_{run}", retain={"keep": 2})

    assert ["by_hand", "run_2", "run_3"] == names(job_dir)


def test_retention_is_of_what_the_task_takes(job_dir: str, tmp_path: Path) -> None:
    """
    Beside its savepoints lie those of another task, and the job itself: they stay as they are.
    """
    to = str(tmp_path)
    files = {path: path.read_bytes() for path in Path(job_dir).rglob("*") if path.is_file()}
    save(job_dir, "daily", to=to, labels={"series": "daily"})
    for run in range(3):
        save(job_dir, f"run_{2 - run}", to=to, retain={"keep": 1, "max_age": "0 seconds"})

    assert ["daily", "run_0"] == [s.folder for s in find_savepoints(LocalStorage(to))[0]]
    assert {"daily", "flights.save"} == {
        s.record.labels["series"] for s in find_savepoints(LocalStorage(to))[0]
    }
    assert files == {path: path.read_bytes() for path in files}


def test_a_checkpoint_of_other_origin(job_dir: str, tmp_path: Path) -> None:
    """Any Spark query's will do; its savepoints lie where they are told to."""
    told = save(
        None,
        checkpoint=f"{job_dir}/queries/q/checkpoint",
        to=str(tmp_path / "elsewhere"),
        aligned_timeout=0,
    )

    assert str(tmp_path / "elsewhere/run_1") == told["url"]


def test_a_lost_job_directory_fails_and_is_not_skipped(tmp_path: Path) -> None:
    """
    One that is not mounted looks as if its stream had not begun; Airflow remembers that it has.
    """
    job_dir = tmp_path / "job"
    JobMemory(str(job_dir)).begin()
    shutil.rmtree(job_dir)

    with pytest.raises(AirflowFailException, match="emptied, replaced, or is not mounted"):
        save(str(job_dir))
    assert not job_dir.exists()


@pytest.mark.parametrize("case", TAKES.values(), ids=TAKES)
def test_what_cannot_be_saved_fails_for_good(case: Case) -> None:
    """
    A retry does not make it good: the task fails with what the command line would say. A savepoint
    DAG that begins before its stream is skipped.
    """
    root = Path(tempfile.mkdtemp(prefix="refusals-"))  # pytest's own is root's alone
    case.spoil(make(root))
    before = tree(root)
    location = str(root / case.source.lstrip("/"))
    what: dict[str, Any] = {"job_dir": location}
    if case.source.startswith("/"):
        what = {"job_dir": None, "checkpoint": location, "to": str(root)}

    expected = AirflowSkipException if case is TAKES["no job"] else AirflowFailException
    with pytest.raises(expected) as failed, rights(root, case.mode):
        save(what.pop("job_dir"), "s1", aligned_timeout=0, **what)

    assert case.words == tuple(word for word in case.words if word in str(failed.value))
    assert before == tree(root)
    shutil.rmtree(root)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"job_dir": None}, "give either job_dir or checkpoint"),
        ({"checkpoint": "/there"}, "give either job_dir or checkpoint"),
        ({"job_dir": None, "checkpoint": "/there"}, "give to: the folder"),
        ({"origin": "nightly"}, "origin 'nightly': use one of"),
        ({"aligned_timeout": "soon"}, "aligned_timeout: 'soon' is not a duration"),
        ({"retain": {}}, "a number to keep, a greatest age, or both"),
        ({"retain": {"keep": 0}}, "keep=0"),
        ({"retain": {"days": 7}}, "retain: 'days' is not known; use keep and max_age"),
    ],
)
def test_a_bad_argument_is_refused_when_the_dag_is_parsed(wrong: dict[str, Any], said: str) -> None:
    """The error names the argument, and what it may be."""
    with pytest.raises(ConfigError, match=said):
        SparkSavepointOperator(task_id="save", **{"job_dir": "/jobs/flights", **wrong})


def test_the_operator_can_be_serialised() -> None:
    """The scheduler sees the DAG through Airflow's serialisation."""
    with DAG("flights", schedule=None) as dag:
        SparkSavepointOperator(task_id="save", job_dir="/jobs/flights", retain={"keep": 3})

    assert ["save"] == [
        task["__var"]["task_id"] for task in DagSerialization.to_dict(dag)["dag"]["tasks"]
    ]
