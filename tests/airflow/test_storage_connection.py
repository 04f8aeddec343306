"""``storage_conn_id``: jobs in S3 by the keys of a connection alone, and where those keys are not."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import stat
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx
import psycopg2
import pytest
from airflow_names import TaskDeferred, import_string
from handmade import LAUNCHER, RUN, TI, Job
from psycopg2 import sql
from services import Airflow, wait_for

from airflow_provider.airflow_versions import AirflowFailException
from airflow_provider.hooks.spark_streaming import SparkStreamingHook
from airflow_provider.hooks.storage_connection import credentials_of
from airflow_provider.operators.spark_savepoint import SparkSavepointOperator
from airflow_provider.operators.spark_stop import SparkStopOperator
from airflow_provider.operators.spark_streaming import SparkStreamingOperator
from airflow_provider.plugins.service import StreamService
from airflow_provider.plugins.task_index import IndexedTask, TaskInstanceAddress
from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.storage.open import StoreCredentials, using
from airflow_provider.sensors.spark_watermark import SparkWatermarkSensor
from airflow_provider.triggers import polling
from airflow_provider.triggers.spark_streaming import SparkStreamingTrigger
from airflow_provider.triggers.stream_events import SparkFinalCheckpointTrigger
from tests.contract.conftest import BUCKET, StoreServer, forget_clients

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("callable_outside_of_a_task")

STAND_IN = f"""#!{sys.executable}
import json, os, sys
heard = {{"argv": sys.argv, "environ": dict(os.environ)}}
with open(os.environ["HEARD"], "w") as file:
    json.dump(heard, file)
"""


class Lake:
    """A store with S3's protocol that knows one user, and checks every signature.

    Attributes:
        key: of the user.
        secret: of the user.
    """

    def __init__(self, server: StoreServer) -> None:
        self.server = server
        boto3: Any = importlib.import_module("boto3")  # which has no types
        where: Any = {"endpoint_url": server.address, "region_name": "eu-central-1"}
        first: Any = {"aws_access_key_id": "first", "aws_secret_access_key": "first"}
        boto3.client("s3", **where, **first).create_bucket(
            Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"}
        )
        iam = boto3.client("iam", **where, **first)
        iam.create_user(UserName="airflow")
        all_of_s3 = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [all_of_s3]})
        iam.put_user_policy(UserName="airflow", PolicyName="all", PolicyDocument=policy)
        made = iam.create_access_key(UserName="airflow")["AccessKey"]
        self.key, self.secret = made["AccessKeyId"], made["SecretAccessKey"]
        server.ask("POST", "/moto-api/reset-auth", "0")  # from now on nobody else is let in

    def connection(self, **changes: Any) -> str:
        """Return the connection as Airflow's environment has it."""
        extra = {"endpoint_url": self.server.address, "region_name": "eu-central-1"}
        whole = {"conn_type": "aws", "login": self.key, "password": self.secret, "extra": extra}
        return json.dumps({**whole, **changes})

    def job(self, name: str) -> Job:
        """Return a job directory in the bucket."""
        url: Any = f"s3://{BUCKET}/jobs/{name}"
        return Job(url)

    def everything(self) -> str:
        """Return the content of every object, beside its key."""
        with using(credentials_of("lake", None)):
            storage = Job(f"s3://{BUCKET}").storage
            return "\n".join(
                f"{path} {storage.read(path).decode(errors='replace')}"
                for path, _ in storage.files()  # type: ignore[attr-defined]  # of objects
            )


@pytest.fixture(scope="module")
def server() -> Iterator[Lake]:
    server = StoreServer("s3", f"s3://{BUCKET}/jobs")
    yield Lake(server)
    server.stop()


@pytest.fixture
def lake(server: Lake, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    """Return the store; the process's own credentials are those of somebody else."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "else")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of somebody else")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.server.address)
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", server.connection())
    monkeypatch.setenv("AIRFLOW_CONN_MISTYPED", server.connection(login="another"))
    monkeypatch.setattr(polling, "HOLD_S", 0.0)  # nobody's worker has to be noticed here
    forget_clients()
    yield server
    forget_clients()


@pytest.fixture
def finished(lake: Lake, request: pytest.FixtureRequest) -> Job:
    """Return a job in the bucket whose run has its final checkpoint."""
    with using(credentials_of("lake", None)):
        job = lake.job(request.node.name.partition("[")[0])
        job.finish()
    return job


def context_of(pushed: dict[str, Any]) -> Any:
    """Return a task's context; what it pushes is in *pushed*."""
    push = {"xcom_push": lambda key, value: pushed.update({key: value})}
    return {"ti": SimpleNamespace(**vars(TI) | push | {"max_tries": 0}), "run_id": "run_1"}


def rebuilt(deferred: TaskDeferred) -> Any:
    """Return the trigger as another triggerer rebuilds it from what is stored."""
    classpath, stored = deferred.trigger.serialize()
    return import_string(classpath)(**json.loads(json.dumps(stored)))


def stored(*of: Any) -> str:
    """Return what Airflow stores: rendered fields of operators, arguments of triggers, XComs."""
    texts = []
    for each in of:
        fields = getattr(each, "template_fields", None)
        shown = {name: getattr(each, name) for name in fields} if fields else each
        texts.append(repr(shown.serialize() if hasattr(shown, "serialize") else shown))
    return "\n".join(texts)


def events_of(trigger: Any) -> list[Any]:
    """Return all events of a trigger, run to its end."""

    async def collect() -> list[Any]:
        return [event async for event in trigger.run()]

    return asyncio.run(asyncio.wait_for(collect(), 20))


def everything_in(airflow: Airflow) -> Iterator[tuple[str, str]]:
    """Yield all rows of each table of Airflow's database, as text."""
    url = airflow.environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].replace("+psycopg2", "")
    with contextlib.closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema='public'"
        )
        for (table,) in cursor.fetchall():
            cursor.execute(sql.SQL("SELECT t::text FROM {} t").format(sql.Identifier(table)))
            yield table, str(cursor.fetchall())


def index_of(job: Job, conn_id: str | None) -> IndexedTask:
    where = TaskInstanceAddress(dag_id="flights", run_id="run_1", task_id="daily", map_index=-1)
    return IndexedTask(where, "success", job.url, conn_id)


@pytest.mark.slow
def test_a_task_reads_and_writes_its_job_by_the_connection_alone(lake: Lake, finished: Job) -> None:
    """
    A run that has ended is found and verified; the task stores the connection's id and no more.
    """
    pushed: dict[str, Any] = {}
    operator = SparkStreamingOperator(
        task_id="daily", job="jobs.py:daily", job_dir=finished.url, storage_conn_id="lake"
    )

    shown = operator.execute(context_of(pushed))

    assert "FINISHED" == shown["outcome"]
    assert "lake" in stored(operator)
    assert lake.secret not in stored(operator, pushed, shown) + lake.everything()


@pytest.mark.long
def test_a_driver_gets_the_keys_through_its_environment_and_nowhere_else(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """
    In the standard variables, in place of the worker's own; launcher and driver need no more. No
    document, log, command line, trigger or XCom has the secret.
    """
    program = tmp_path / "spark3-submit"
    program.write_text(STAND_IN)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HEARD", str(tmp_path / "heard.json"))
    spark = {"conn_type": "spark", "host": "local[1]", "extra": {"spark-binary": "spark3-submit"}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(spark))
    entry = tmp_path / "jobs.py"
    entry.touch()
    pushed: dict[str, Any] = {}
    with using(credentials_of("lake", None)):
        job = lake.job("driven")
    operator = SparkStreamingOperator(
        task_id="daily", job=f"{entry}:daily", job_dir=job.url, storage_conn_id="lake"
    )

    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(context_of(pushed))
    with using(credentials_of("lake", None)):
        (record,) = job.run.submissions()
        wait_for("the exit", lambda: job.run.exit_of(record.driver_id), within=60)
    (event,) = events_of(rebuilt(deferred.value))

    heard = json.loads((tmp_path / "heard.json").read_text())
    environ = {name: heard["environ"].get(name) for name in heard["environ"] if "AWS_" in name}
    assert {
        "AWS_ACCESS_KEY_ID": lake.key,
        "AWS_SECRET_ACCESS_KEY": lake.secret,
        "AWS_REGION": "eu-central-1",
        "AWS_DEFAULT_REGION": "eu-central-1",
        "AWS_ENDPOINT_URL": lake.server.address,
        "AWS_ENDPOINT_URL_S3": lake.server.address,
    } == environ
    assert "exit code 0" in event.payload["reason"]
    output = capfd.readouterr()
    files = [str(path.read_bytes()) for path in tmp_path.rglob("*.log")]
    seen = [stored(operator, deferred.value.trigger, pushed, event.payload), str(heard["argv"])]
    assert [] == [
        text
        for text in (*seen, *files, output.out, output.err, lake.everything())
        if lake.secret in text
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("conn_id", "is_well"), [("lake", True), ("mistyped", False)])
def test_a_connection_is_checked_with_the_keys_that_its_tasks_use(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, conn_id: str, *, is_well: bool
) -> None:
    """The folder of jobs is tried with the connection of Airflow's configuration, as for a task."""
    monkeypatch.setenv("AIRFLOW__SPARK_STREAM__STORAGE_CONN_ID", conn_id)
    spark = {"conn_type": "spark", "host": "local[1]", "extra": {"job-root": f"s3://{BUCKET}/jobs"}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(spark))

    found, text = SparkStreamingHook().test_connection()

    assert is_well == found, text
    assert ("puts if absent" in text) == is_well
    assert lake.secret not in text + lake.everything()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("classpath", "own", "said"),
    [
        ("spark_streaming.SparkStreamingTrigger",
         {"run_id": RUN, "driver_id": None, "generation": 1, "launcher": LAUNCHER},
         "'run_state': 'finished'"),
        ("spark_watermark.SparkWatermarkTrigger", {"up_to_ms": 0}, "{'complete': {}}"),
        ("spark_stop.SparkStopTrigger",
         {"request_id": "r", "run_id": RUN, "token": 1, "timeout_s": 5}, "ended without an answer"),
    ],
)  # fmt: skip
def test_a_trigger_looks_the_connection_up_by_its_id(
    lake: Lake, finished: Job, classpath: str, own: dict[str, Any], said: str
) -> None:
    """That of a run, of a sensor and of a stop: each waits without the keys among its arguments."""
    kind = import_string(f"airflow_provider.triggers.{classpath}")
    path, kept = kind(job_dir=finished.url, storage_conn_id="lake", **own).serialize()

    (event,) = events_of(import_string(path)(**json.loads(json.dumps(kept))))

    assert "lake" == kept["storage_conn_id"]
    assert said in repr(event.payload)
    assert lake.secret not in repr(kept) + repr(event.payload)


@pytest.mark.slow
def test_a_watcher_looks_the_connection_up_by_its_id(lake: Lake, finished: Job) -> None:
    """Without it the job cannot be read, and with it there is the run that has ended."""
    refused = SparkFinalCheckpointTrigger(finished.url, from_start=True)
    watcher = SparkFinalCheckpointTrigger(finished.url, from_start=True, storage_conn_id="lake")
    path, kept = watcher.serialize()
    rebuilt = import_string(path)(**json.loads(json.dumps(kept)))

    assert refused._first() is None
    (step,) = rebuilt._next(rebuilt._first())
    assert RUN == step.payload["run_id"]
    assert "lake" == kept["storage_conn_id"]


@pytest.mark.slow
def test_other_tasks_open_their_job_by_the_connection(lake: Lake, finished: Job) -> None:
    """
    The sensor, the stop and the savepoint: what they say of the job shows that they have read it.
    """
    where: Any = {"job_dir": finished.url, "storage_conn_id": "lake"}
    sensor = SparkWatermarkSensor(task_id="s", up_to="2026-01-01T00:00:00Z", **where)
    stop = SparkStopOperator(task_id="t", **where)
    savepoint = SparkSavepointOperator(task_id="p", name="first", **where)

    assert sensor.execute(context_of({})) is not None
    with pytest.raises(AirflowFailException, match="is FINISHED"):
        stop.execute(context_of({}))
    with pytest.raises(AirflowFailException, match="so there is nothing to save"):
        savepoint.execute(context_of({}))


@pytest.mark.slow
def test_a_wrong_key_is_one_error_that_names_the_connection(lake: Lake, finished: Job) -> None:
    """A person sees which connection to correct, in the task's log and on the page."""
    sensor = SparkWatermarkSensor(
        task_id="s",
        job_dir=finished.url,
        up_to="2026-01-01T00:00:00Z",
        storage_conn_id="mistyped",
        deferrable=False,
    )
    service = StreamService(SystemClock())

    with pytest.raises(PermissionError, match="check storage_conn_id 'mistyped'") as raised:
        sensor.poke(context_of({}))
    (row,) = asyncio.run(service.list_jobs([index_of(finished, "mistyped")])).jobs

    assert "check storage_conn_id 'mistyped'" in str(row.reason)
    assert lake.secret not in f"{raised.value}{row}"


@pytest.mark.slow
def test_a_kill_asks_airflow_for_nothing(
    lake: Lake, finished: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Who is killed may just be talking to Airflow, or Airflow may be going away: task and trigger go
    on with the keys that they have.
    """
    where: Any = {"job_dir": finished.url, "storage_conn_id": "lake"}
    operator = SparkStreamingOperator(task_id="daily", job="jobs.py:daily", **where)
    trigger = SparkStreamingTrigger(
        run_id=RUN, driver_id=None, generation=1, launcher=LAUNCHER, **where
    )
    events_of(trigger)
    with using(credentials_of("lake", None)):
        claim = operator._hook().claim(finished.url, RUN)
        operator._claimed = (RUN, claim)
        monkeypatch.delenv("AIRFLOW_CONN_LAKE")
        operator.on_kill()

    asyncio.run(trigger.on_kill())
    with pytest.raises(AirflowFailException, match="no such connection"):
        operator.on_kill()


@pytest.mark.whole
@pytest.mark.timeout(300)
def test_airflows_processes_open_the_job_by_the_id_alone(
    lake: Lake, airflow_services: Airflow
) -> None:
    """
    Worker, triggerer and API server, each with the connection from Airflow's database; neither
    there nor in a log is the key in the clear.
    """
    airflow = airflow_services
    connection = json.loads(lake.connection())
    connection.update(connection_id="lake", extra=json.dumps(connection["extra"]))
    airflow.call("POST", "/connections", **connection)
    run_id = airflow.trigger("lake")
    airflow.follow("lake", run_id, "complete", until=("deferred", "failed"), within=60)

    with using(credentials_of("lake", None)):
        job = lake.job("lake")
        job.finish()
    states = airflow.follow("lake", run_id, "complete", until=("success", "failed"), within=60)
    page = f"{airflow.environment['AIRFLOW__API__PORT']}/spark-stream/api/dags/lake/runs"
    answer = httpx.get(
        f"http://127.0.0.1:{page}/{quote(run_id, safe='')}/tasks/complete/-1/runs",
        headers={"Authorization": f"Bearer {airflow.token}"},
        trust_env=False,
        timeout=30,
    )

    assert "success" == states[-1], airflow.logs("lake", run_id, "complete")
    assert [RUN] == [run["run_id"] for run in answer.json()["runs"]]
    logs = [path for path in airflow.home.rglob("*.log") if path.is_file()]
    assert [] == [path for path in logs if lake.secret in path.read_text(errors="replace")]
    assert [] == [table for table, text in everything_in(airflow) if lake.secret in text]


@pytest.mark.slow
def test_the_page_opens_a_job_as_its_task_does(
    lake: Lake, finished: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    With the connection that the task names, else with that of Airflow's configuration; what one
    task may read is not shown to another one that names nothing.
    """
    service = StreamService(SystemClock(), limit_s=20)

    def state(conn_id: str | None) -> str | None:
        (row,) = asyncio.run(service.list_jobs([index_of(finished, conn_id)])).jobs
        return row.state

    def runs(conn_id: str | None) -> Any:
        task = index_of(finished, conn_id)
        return asyncio.run(service.read_run(task, lambda run: service.runs.read(run, run.job_dir)))

    assert "finished" == state("lake")
    assert [RUN] == [run.run_id for run in runs("lake").runs]
    with pytest.raises(Exception, match="cannot be read: .*check the credentials"):
        runs(None)
    monkeypatch.setenv("AIRFLOW__SPARK_STREAM__STORAGE_CONN_ID", "lake")
    again = StreamService(SystemClock(), limit_s=20)
    (row,) = asyncio.run(again.list_jobs([index_of(finished, None)])).jobs
    assert "finished" == row.state


@pytest.mark.parametrize(
    ("connection", "said"),
    [
        (None, "Airflow has no such connection; add one of type aws"),
        ({"conn_type": "google_cloud_platform"}, "is of type 'google_cloud_platform', and only"),
        ({"conn_type": "aws"}, "has no keys; its login is the access key's id"),
        ({"conn_type": "aws", "login": "a"}, "has no keys"),
        (
            {"conn_type": "aws", "login": "a", "password": "b", "extra": {"role_arn": "arn:x"}},
            "its extra has 'role_arn', which is not taken: a stream outlives",
        ),
    ],
)
def test_a_connection_that_cannot_be_taken_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, connection: Any, said: str
) -> None:
    """The task fails for good with one line, before anything is written."""
    if connection is not None:
        monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(connection))
    operator = SparkStreamingOperator(
        task_id="daily", job="j.py:f", job_dir=str(tmp_path / "job"), storage_conn_id="store"
    )

    with pytest.raises(ConfigError, match=f"^storage_conn_id 'store': {said}"):
        credentials_of("store", None)
    with pytest.raises(AirflowFailException, match="^storage_conn_id 'store': "):
        operator.execute(context_of({}))
    assert not (tmp_path / "job").exists()


def test_the_default_connection_is_for_jobs_in_s3_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job on a disk needs none, so that a wrong default is no error there."""
    monkeypatch.setenv("AIRFLOW__SPARK_STREAM__STORAGE_CONN_ID", "nobody_knows")

    assert credentials_of(None, "/jobs/flights") is None
    assert credentials_of(None, None) is None
    assert credentials_of("", "gs://bucket/job") is None
    with pytest.raises(ConfigError, match="storage_conn_id 'nobody_knows': Airflow has no such"):
        credentials_of(None, "s3a://bucket/job")


def test_keys_are_not_shown_by_accident() -> None:
    """Whoever prints credentials sees neither secret nor token."""
    given = {"secret": "s3cr3t", "token": "t0k3n"}
    made = StoreCredentials(named="x", key="AKIA", **given)

    assert "AKIA" in repr(made)
    assert "s3cr3t" not in f"{made!r}{made}"
    assert "t0k3n" not in f"{made!r}{made}"
