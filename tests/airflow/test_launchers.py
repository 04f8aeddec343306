"""Tasks whose drivers a cluster starts: a Livy server, and EMR Serverless by moto."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred
from airflow.sdk.module_loading import import_string
from handmade import RUN, TI, Job
from services import ROOT, wait_for

from airflow_provider.hooks.cluster import ClusterHook
from airflow_provider.hooks.launchers import LauncherChoice
from airflow_provider.operators.retry_policy import SparkRunFailedError
from airflow_provider.operators.spark_streaming import SparkStreamingOperator
from airflow_provider.plugins.run_views import RunViews
from airflow_provider.plugins.shared_reads import ObservedJobs
from airflow_provider.plugins.shown_run import ShownRun
from airflow_provider.runtime.api.launchers import Handle, LaunchState, LogPart
from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.base.retry import RetryPolicy
from airflow_provider.runtime.base.runtime_zip import write_package
from airflow_provider.runtime.cli.main import main
from airflow_provider.runtime.control import submit
from airflow_provider.runtime.errors import EXIT_OK, EXIT_USAGE, ConfigError
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.run_records import JobRecord
from airflow_provider.runtime.observe import observer
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.testing.job_directories import a_run, an_attempt
from airflow_provider.triggers import polling
from tests.contract.clusters import AT, BUCKET, PROGRAM, EmrCluster, LivyCluster, serve_emr
from tests.contract.conftest import forget_clients
from tests.present import present
from tests.unit.support import FakeClock, take_lease

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from airflow_provider.runtime.api.launchers import Launcher, LaunchStatus

pytestmark = pytest.mark.usefixtures("callable_outside_of_a_task")


BOTH = pytest.mark.parametrize("location", ["livy", "emr-serverless"], indirect=True)
"""On each cluster in any suite: what the launchers do themselves; the rest is the same for all."""


class Location:
    """A cluster, a job on it, and the connection to it.

    Args:
        cluster: runs drivers.
        job: the job directory, which both sides reach.
        kind: the launcher's.
        options: the operator's ``launcher_options``.
        connection: of id ``cluster``, as Airflow's environment has it.
    """

    def __init__(
        self,
        cluster: LivyCluster | EmrCluster,
        job: Job,
        kind: str,
        options: dict[str, str],
        connection: dict[str, Any],
    ) -> None:
        self.cluster, self.job, self.kind = cluster, job, kind
        self.options, self.connection = options, connection

    def operator(self, does: str, **arguments: Any) -> SparkStreamingOperator:
        chosen: dict[str, Any] = {
            "conn_id": "cluster",
            "launcher": self.kind,
            "launcher_options": self.options,
        }
        chosen = {**chosen, "job": f"jobs:{does}", "deferrable": False, "poll_interval": 0.1}
        arguments = {**chosen, **arguments}
        return SparkStreamingOperator(task_id="daily", job_dir=self.job.url, **arguments)

    def deferred(self, does: str, **arguments: Any) -> TaskDeferred:
        """Execute a task that waits in the triggerer."""
        operator = self.operator(does, deferrable=True, **arguments)
        with pytest.raises(TaskDeferred) as raised:
            operator.execute(context())
        return raised.value

    def status(self, state: LaunchState) -> LaunchStatus:
        """Wait until the run's last driver is in this state on the cluster."""
        launcher: Launcher = self.cluster.open()
        handle = present(self.job.run.handle_of(self.driver_id()))
        return wait_for(
            state.value,
            lambda: status if (status := launcher.poll(handle)).state is state else None,
            within=30,
        )

    def driver_id(self) -> str:
        return self.job.run.submissions()[-1].driver_id

    def is_empty(self) -> bool:
        """Tell whether nothing lies in the job directory."""
        return not self.job.storage.list("runs") and 0 == self.cluster.runs()

    def go(self) -> None:
        """Let a driver that holds back begin."""
        self.job.storage.put("go", b"")


@pytest.fixture(autouse=True)
def in_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask launchers often, and let triggers fire at once."""
    monkeypatch.setattr(observer, "LAUNCH_S", 0.1)
    monkeypatch.setattr(polling, "HOLD_S", 0.0)
    monkeypatch.setattr(submit, "AGAIN", RetryPolicy(first_s=0.1, failures=3))


@pytest.fixture(scope="module")
def emr() -> Iterator[EmrCluster]:
    cluster = serve_emr()
    yield cluster
    cluster.server.stop()


@pytest.fixture(params=["livy", pytest.param("emr-serverless", marks=pytest.mark.whole)])
def location(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Location]:
    made = livy_location(tmp_path) if request.param == "livy" else None
    if made is None:
        emr = request.getfixturevalue("emr")
        emr.new_application()
        made = emr_location(emr, request.node.name, monkeypatch)
    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", json.dumps(made.connection))
    yield made
    if isinstance(made.cluster, LivyCluster):
        made.cluster.stop()
    else:
        made.cluster.end_all()
        forget_clients()


def livy_location(tmp_path: Path) -> Location:
    cluster = LivyCluster(tmp_path)
    options = {"entry_point": str(PROGRAM), "runtime": "/no/runtime.zip"}
    login = {"login": cluster.user, "password": cluster.secrets[0]}
    where = {"conn_type": "livy", "host": "127.0.0.1", "port": cluster.port}
    return Location(cluster, Job(tmp_path / "job"), "livy", options, {**where, **login})


def emr_location(emr: EmrCluster, name: str, monkeypatch: pytest.MonkeyPatch) -> Location:
    """Return a location in the bucket, which the process reaches by its environment."""
    for variable, value in {
        "AWS_ACCESS_KEY_ID": emr.keys["aws_access_key_id"],
        "AWS_SECRET_ACCESS_KEY": emr.secrets[0],
        "AWS_DEFAULT_REGION": "eu-central-1",
        "AWS_ENDPOINT_URL": emr.server.address,
    }.items():
        monkeypatch.setenv(variable, value)
    forget_clients()
    url: Any = f"s3://{BUCKET}/jobs/{name.partition('[')[0]}"
    options = {k: v for k, v in vars(emr.options).items() if k != "execution_role"}
    connection = {
        "conn_type": "aws",
        "login": emr.keys["aws_access_key_id"],
        "password": emr.secrets[0],
        "extra": {
            "region_name": "eu-central-1",
            "endpoint_url": emr.server.address,
            "launcher": {"execution_role": emr.options.execution_role},
        },
    }
    return Location(emr, Job(url), "emr-serverless", options, connection)


def context() -> Any:
    return {"ti": SimpleNamespace(**vars(TI))}


def rebuilt(deferred: TaskDeferred) -> Any:
    """Return the trigger as another triggerer rebuilds it from what is stored."""
    classpath, stored = deferred.trigger.serialize()
    return import_string(classpath)(**json.loads(json.dumps(stored)))


def test_a_connection_is_tested_by_its_launcher(
    location: Location,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """
    The hook's own test and the command ask the cluster, and start nothing; the command also tries the
    folder of job directories.
    """
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")  # as the command sets it
    choice = LauncherChoice(location.kind, "cluster", location.options)
    found = ClusterHook(choice).test_connection()
    options = [f"--launcher-option={name}={value}" for name, value in location.options.items()]
    command = ["check-connection", "cluster", f"--launcher={location.kind}", *options]
    more = (("check-connection", "airflow_provider.cli.spark_stream"),)
    code = main([*command, f"--job-root={tmp_path}"], name="airflow spark-stream", more=more)
    told = capsys.readouterr().out
    monkeypatch.setenv(
        "AIRFLOW_CONN_CLUSTER", json.dumps({**location.connection, "password": "wr0ng"})
    )
    refused = ClusterHook(choice).test_connection()

    assert (True, f"{location.kind} answers, and takes drivers") == found
    said = told.splitlines()[-1]  # Amazon's hook has logged where it found credentials
    assert (EXIT_OK, f"{found[1]}; {tmp_path} puts if absent") == (code, said)
    assert EXIT_USAGE == main([*command[:2], "--launcher=yarn"], name="x", more=more)
    assert "launcher 'yarn': use one of" in capsys.readouterr().err
    assert not refused[0]
    assert "correct the connection's" in refused[1]
    assert location.is_empty()


# --- a whole task -----------------------------------------------------------------------------


@BOTH
def test_a_task_runs_on_a_cluster(location: Location) -> None:
    """A worker submits, waits, and returns the final checkpoint; the handle has no secret."""
    shown = location.operator("finish").execute(context())
    handle = present(location.job.run.handle_of(location.driver_id()))

    assert ("FINISHED", RUN) == (shown["outcome"], shown["run_id"])
    assert location.kind == handle.launcher
    assert location.cluster.secrets[0] not in str(handle)
    assert 1 == location.cluster.runs()


def test_a_triggerer_asks_the_launcher(location: Location) -> None:
    """What Airflow stores names the connection and no secret; a rebuilt trigger asks with it."""
    deferred = location.deferred("fail")
    trigger = rebuilt(deferred)

    async def wait() -> dict[str, Any]:
        event: Any = await anext(trigger.run())
        return event.payload

    event = asyncio.run(asyncio.wait_for(wait(), 60))
    with pytest.raises(SparkRunFailedError, match="exit code 3"):
        location.operator("fail").resume(context(), event)

    assert location.cluster.secrets[0] not in json.dumps(trigger.serialize())
    assert "failed" == event["run_state"]


@pytest.mark.parametrize(
    ("does", "code", "error"),
    [("fail", 3, SparkRunFailedError), ("refuse", 2, AirflowFailException)],
)
def test_a_failure_has_the_clusters_exit_code_and_reason(
    location: Location, does: str, code: int, error: type[AirflowException]
) -> None:
    """A driver that never had the lease fails the task in one line; a mistake fails it for good."""
    operator = location.operator(does)
    with pytest.raises(error) as raised:
        operator.execute(context())
    run_id = present(location.job.run.handle_of(location.driver_id())).id

    said = str(raised.value)
    assert f"{location.kind} {run_id}: ended, exit code {code}: " in said
    assert 1 == len(said.splitlines())
    if location.kind == "livy":
        assert "the input is not there" in said


def test_a_driver_that_dies_is_explained(location: Location) -> None:
    """Killed with the lease in its hand, a driver said nothing: its cluster says how it ended."""
    with pytest.raises(SparkRunFailedError, match=f"{location.kind} .*: ended"):
        location.operator("die").execute(context())

    again = location.operator("finish").execute(context())
    assert "FINISHED" == again["outcome"]
    assert 2 == location.cluster.runs()


# --- workers die, tasks are killed ------------------------------------------------------------


def test_a_killed_worker_is_followed_by_one_that_adopts(location: Location) -> None:
    """The next try finds the handle, and waits for that driver."""
    location.deferred("hold")
    first = location.driver_id()
    location.go()
    shown = location.operator("hold").execute(context())

    assert "FINISHED" == shown["outcome"]
    assert [first] == [each.driver_id for each in location.job.run.submissions()]
    assert 1 == location.cluster.runs()


@pytest.mark.long
def test_a_worker_killed_before_it_has_the_handle(location: Location) -> None:
    """A real process dies between the submission and the handle: the next try has the same run."""
    program = f"""
import sys
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests" / "airflow")!r}]
from airflow_provider.hooks.cluster import ClusterHook
from airflow_provider.hooks.launchers import LauncherChoice
from airflow_provider.runtime.jobdir.run_spec import RunSpec
choice = LauncherChoice({location.kind!r}, "cluster", {location.options!r})
spec = RunSpec(job_dir={location.job.url!r}, entry="jobs:hold", run_id={RUN!r})
ClusterHook(choice).submit(spec, {RUN!r})
"""
    environment = {**os.environ, "SPARK_STREAM_FAILPOINT": "launch.submitted"}
    died = subprocess.run([sys.executable, "-c", program], env=environment, check=False)
    first = location.driver_id()
    left = location.cluster.runs(), location.job.run.handle_of(first)
    operator = location.operator("hold", interval=None, deferrable=True)
    with pytest.raises(TaskDeferred):
        operator.execute(context())
    same = [each.driver_id for each in location.job.run.submissions()]
    location.go()
    shown = location.operator("hold", interval=None).execute(context())

    assert 137 == died.returncode
    assert (1, None) == left
    assert [first] == same
    assert "FINISHED" == shown["outcome"]
    assert 1 == location.cluster.runs()


def test_a_killed_task_ends_a_driver_that_has_not_come_up(location: Location) -> None:
    """
    A worker's ``on_kill`` asks the driver to end, and its cluster to end it, which is at once.
    """
    operator = location.operator("hold", deferrable=True)
    with pytest.raises(TaskDeferred):
        operator.execute(context())
    operator.on_kill()

    handle = present(location.job.run.handle_of(location.driver_id()))
    wait_for("its end", lambda: location.cluster.open().poll(handle).is_over, within=30)
    assert [location.driver_id()] == location.job.cancels()


def test_a_killed_trigger_ends_a_driver_that_has_not_come_up(location: Location) -> None:
    """A deferred task is killed by its triggerer, which has nothing but what Airflow has stored."""
    trigger = rebuilt(location.deferred("hold"))
    location.status(LaunchState.RUNNING)

    async def kill() -> None:
        task = asyncio.create_task(anext(trigger.run()))
        while trigger._id is None:
            await asyncio.sleep(0.05)
        await trigger.on_kill()
        task.cancel()

    asyncio.run(asyncio.wait_for(kill(), 60))
    handle = present(location.job.run.handle_of(location.driver_id()))
    assert wait_for("its end", lambda: location.cluster.open().poll(handle).is_over, within=30)


def test_a_driver_that_never_comes_up_is_ended(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the wait for the lease has timed out, the cluster does not go on with it."""
    monkeypatch.setattr(observer, "START_TIMEOUT_S", 1.0)
    with pytest.raises(SparkRunFailedError, match="has not taken the lease.*: running"):
        location.operator("hold").execute(context())

    handle = present(location.job.run.handle_of(location.driver_id()))
    assert wait_for("its end", lambda: location.cluster.open().poll(handle).is_over, within=30)
    assert 1.0 < (present(location.job.run.end_of(location.driver_id())).waited_s or 0)


# --- what is refused, before anything is written ----------------------------------------------


def refused(location: Location, **arguments: Any) -> str:
    """Return the error with which a task fails for good, having written nothing."""
    with pytest.raises(AirflowFailException) as raised:
        location.operator("finish", **arguments).execute(context())
    assert location.is_empty()
    assert 1 == len(str(raised.value).splitlines())
    assert location.cluster.secrets[0] not in str(raised.value)
    return str(raised.value)


def test_an_unknown_connection_is_refused(location: Location) -> None:
    """The error names it."""
    assert "conn_id 'nobody': Airflow has no such connection" in refused(location, conn_id="nobody")


def test_a_connection_of_another_type_is_refused(location: Location) -> None:
    """A Spark connection is for ``spark-submit``."""
    said = refused(location, conn_id="spark_default")

    assert f"is of type 'spark'; launcher '{location.kind}' needs '" in said


def test_a_forgotten_launcher_is_named(location: Location) -> None:
    """The connection of a service is not taken for a master of Spark."""
    said = refused(location, launcher=None, launcher_options=None, job="jobs:finish")

    assert f"give launcher='{location.kind}' for it" in said


@BOTH
def test_wrong_credentials_are_refused(location: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says which service refuses, and what to correct."""
    wrong = json.dumps({**location.connection, "password": "wr0ng"})
    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", wrong)
    said = refused(location)

    assert "correct the connection's" in said
    assert "wr0ng" not in said


def test_a_wrong_application_is_refused(emr: EmrCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """An application that is not there, or none, is named before anything is written."""
    emr.new_application()
    location = emr_location(emr, "wrong_application", monkeypatch)
    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", json.dumps(location.connection))
    wrong = {**location.options, "application_id": "00nobody"}

    said = refused(location, launcher_options=wrong)
    assert "application 00nobody: get_application: ResourceNotFoundException" in said
    assert "correct application_id" in said
    none = {k: v for k, v in location.options.items() if k != "application_id"}
    assert "application_id is not given" in refused(location, launcher_options=none)
    no_zip = {**location.options, "runtime": "/here/runtime.zip"}
    assert "runtime '/here/runtime.zip' is no address in S3" in refused(
        location, launcher_options=no_zip
    )
    forget_clients()


@BOTH
def test_a_server_that_is_away_is_worth_a_retry(location: Location) -> None:
    """The task fails in one line, and may be tried again; nothing was written."""
    if location.kind == "livy":
        location.cluster.go_away()
    else:  # the store of the job directory is the same server
        location.connection["extra"]["service_config"] = {
            "emr-serverless": {"endpoint_url": "http://127.0.0.1:9"}
        }
        os.environ["AIRFLOW_CONN_CLUSTER"] = json.dumps(location.connection)
    with pytest.raises(SparkRunFailedError, match="does not answer") as raised:
        location.operator("finish").execute(context())
    if location.kind == "livy":
        location.cluster.come_back()

    assert 1 == len(str(raised.value).splitlines())
    assert location.is_empty()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"env_vars": {"A": "b"}}, "env_vars: the environment of a driver on"),
        ({"secret_params": {"a": "b"}}, "secret_params: the environment of a driver on"),
        ({"deploy_mode": "cluster"}, "deploy_mode: is for spark-submit"),
        ({"keytab": "/k"}, "keytab: is for spark-submit"),
        ({"conf": {"spark.remote": "sc://x"}}, "requests Spark Connect"),
    ],
)
def test_what_a_cluster_cannot_have_is_refused(
    location: Location, arguments: dict[str, Any], said: str
) -> None:
    """Secrets of this machine and options of ``spark-submit`` have no way there."""
    assert said in refused(location, **arguments)


def test_a_file_of_this_machine_is_refused(location: Location) -> None:
    """The job's own file has to be where the cluster reads it."""
    operator = location.operator("finish")
    operator.job = "/here/jobs.py:finish"
    with pytest.raises(AirflowFailException, match="a cluster cannot read that file; upload it"):
        operator.execute(context())
    assert location.is_empty()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"launcher": "yarn"}, "launcher 'yarn': use one of 'spark-submit', 'emr-serverless'"),
        ({"launcher_options": {"a": "b"}}, "launcher_options: spark-submit takes none"),
        (
            {"launcher": "livy", "launcher_options": {"password": "x"}},
            "livy takes texts, of entry_point, runtime, proxy_user, queue",
        ),
        ({"launcher": "livy", "warm": True}, "warm: warm drivers are for spark-submit"),
    ],
)
def test_a_bad_launcher_is_refused_when_the_dag_is_parsed(
    arguments: dict[str, Any], said: str
) -> None:
    """The error names the argument, and what it may be."""
    with pytest.raises(ConfigError) as raised:
        SparkStreamingOperator(task_id="t", job="jobs:daily", job_dir="/jobs", **arguments)

    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("choice", "kind"),
    [
        (LauncherChoice.of("livy", "cluster", {"queue": "night"}), "livy"),
        (LauncherChoice.of("spark-submit", "spark_default"), "spark-submit"),
        (LauncherChoice.of(None, "spark_default", {}), "spark-submit"),
    ],
)
def test_a_choice_is_the_same_in_another_process(choice: LauncherChoice, kind: str) -> None:
    """What a trigger stores is what the task has said, in one form for each launcher."""
    stored = json.loads(json.dumps(choice.to_dict()))

    assert choice == LauncherChoice.from_dict(stored)
    assert {"kind", "conn_id", "options"} == stored.keys()
    assert kind == stored["kind"]


# --- what people see --------------------------------------------------------------------------


def test_the_page_shows_the_handle_and_the_reason(location: Location, tmp_path: Path) -> None:
    """
    Runs and failures have the launcher's line, for a driver that could not say anything itself.
    """
    with pytest.raises(SparkRunFailedError):
        location.operator("fail").execute(context())
    directory = JobDirectory(location.job.storage)
    directory.put_job(JobRecord(name="daily", created=AT))
    location.job.run.put_record(a_run(RUN, starting={}, params={}))
    attempt = an_attempt(driver_id=location.driver_id())
    location.job.run.put_attempt(attempt)  # as if it had begun, and was killed
    with take_lease(location.job.storage, FakeClock(), run_id=RUN, driver_id=location.driver_id()):
        pass
    views = RunViews(ObservedJobs(SystemClock()), tmp_path)
    handle = present(location.job.run.handle_of(location.driver_id()))
    run = ShownRun(location.job.url, location.job.url)
    shown = views.read(run, location.job.url).runs[0]
    cause = views.failures(run).failures[0]

    assert present(shown.launch).startswith(f"{location.kind} {handle.id}: ended, exit code 3")
    assert "the driver ended with exit code 3" == cause.reason
    assert cause.failure.root_cause == shown.launch
    log = views.log(location.job.url, location.job.url, RUN, location.driver_id())
    assert f"its log is on {location.kind} {handle.id}" == log.problem


# --- with Spark -------------------------------------------------------------------------------


JOBS = """
import airflow_provider
from airflow_provider.runtime import files

def copy(ctx):
    assert ".zip" in airflow_provider.__file__, airflow_provider.__file__
    read = ctx.read("words", format="text", path=ctx.params["input"], bounded=True)
    ctx.write("out", read, to=files(ctx.params["output"], format="json"))

def broken(ctx):
    raise ValueError("no such table")
"""


@pytest.mark.spark
@pytest.mark.whole
def test_a_cluster_that_has_only_spark_runs_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    What ``spark-stream package`` writes is all that a driver needs there, beside the job's own file.
    """
    location = livy_location(tmp_path)
    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", json.dumps(location.connection))
    package = write_package(tmp_path / "runtime.zip", replaces=False)
    jobs = tmp_path / "word_jobs.py"
    jobs.write_text(JOBS)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "words.txt").write_text("one\ntwo\nthree\n")
    location.options = {
        "entry_point": str(package.application),
        "runtime": str(package.runtime),
    }
    params = {"input": str(tmp_path / "in"), "output": str(tmp_path / "out")}
    conf = {"spark.ui.enabled": "false", "spark.driver.bindAddress": "127.0.0.1"}
    operator = location.operator("copy", params=params, conf=conf)
    operator.job = f"file://{jobs}:copy"
    broken = location.operator("broken", conf=conf, run_id="broken")
    broken.job, broken.job_dir = f"file://{jobs}:broken", str(tmp_path / "broken")
    try:
        shown = operator.execute(context())
        with pytest.raises(AirflowException) as raised:
            broken.execute(context())
    finally:
        assert isinstance(location.cluster, LivyCluster)
        location.cluster.stop()

    assert ("FINISHED", 3) == (shown["outcome"], shown["rows_read"])
    texts = [file.read_text() for file in (tmp_path / "out").glob("*.json")]
    written = [json.loads(line) for text in texts for line in text.splitlines()]
    assert ["one", "three", "two"] == sorted(row["value"] for row in written)
    assert "no such table" in str(raised.value)


def test_a_log_that_never_ends_is_read_to_a_limit(tmp_path: Path) -> None:
    """
    A service that always has one more line is not asked for ever; one that has no more, once more.
    """
    asked: list[int] = []

    def log(_handle: Handle, offset: int) -> LogPart:
        asked.append(offset)
        return LogPart((f"line {offset}",), min(offset + 1, last))

    run = JobDirectory(LocalStorage(str(tmp_path))).run("r1")
    run.put_handle(Handle(driver_id="d1", launcher="livy", id="7", location={}))
    hook = ClusterHook(LauncherChoice("livy", "cluster", {}))
    hook.__dict__["launcher"] = SimpleNamespace(log=log)
    last = 10**9
    lines = hook.last_lines(str(tmp_path), "r1", "d1")
    last = 2
    few = hook.last_lines(str(tmp_path), "r1", "d1")

    assert 200 + 3 == len(asked)
    assert (40, "line 199") == (len(lines), lines[-1])
    assert ["line 0", "line 1", "line 2"] == few
