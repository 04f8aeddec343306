"""The contract of launchers on ``spark-submit``'s processes, on EMR Serverless, and on Livy."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.extensions.emr_serverless.launcher import (
    EmrOptions,
    EmrServerlessLauncher,
)
from airflow_provider.extensions.livy.launcher import LivyLauncher, LivyOptions
from airflow_provider.runtime.api.launchers import Handle, LaunchState
from airflow_provider.runtime.errors import (
    ConfigError,
    LauncherAwayError,
    SubmissionRefusedError,
)
from airflow_provider.runtime.testing.launchers import (
    LauncherContract,
    RacingLauncherContract,
    RemoteLauncherContract,
    a_token,
)
from tests.contract.clusters import (
    PROGRAM,
    LivyCluster,
    ThisMachine,
    an_application,
    serve_emr,
)
from tests.present import present

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


class TestSparkSubmit(LauncherContract):
    """Processes of this machine."""

    @pytest.fixture
    def case(self, tmp_path):
        return ThisMachine(tmp_path)


class TestLivy(RacingLauncherContract):
    """A server that refuses a second batch of a name."""

    @pytest.fixture
    def case(self, tmp_path):
        cluster = LivyCluster(tmp_path)
        yield cluster
        cluster.stop()


@pytest.fixture(scope="module")
def emr():
    cluster = serve_emr()
    yield cluster
    cluster.server.stop()


class TestEmrServerless(RemoteLauncherContract):
    """Moto, which ignores client tokens: only the real service decides between racing requests."""

    @pytest.fixture
    def case(self, emr):
        emr.new_application()
        yield emr
        emr.end_all()


class Service:
    """A service as the page's example asks it; its runs are processes of this machine.

    Args:
        folder: where they write.
        is_known: whether it knows who asks.
    """

    class RefusedError(Exception):
        pass

    def __init__(self, folder, started=None, *, is_known=True):
        self.folder, self.is_known = folder, is_known
        self.started: list[dict[str, Any]] = [] if started is None else started
        self.is_away = self.loses = False

    def answers(self):
        if self.is_away:
            raise ConnectionError("nobody listens")
        if not self.is_known:
            raise self.RefusedError("who are you")

    ping = answers

    def start(self, name, file, args, py_files, conf):
        self.answers()
        with (self.folder / f"{len(self.started)}.log").open("wb") as log:
            process = subprocess.Popen([sys.executable, file, *args], stderr=log)
        self.started.append({"id": str(len(self.started)), "name": name, "process": process})
        if self.loses:
            self.loses = False
            raise ConnectionError("the answer was lost")
        return self.started[-1]

    def runs(self):
        self.answers()
        return [self.run(each["id"]) for each in self.started]

    def run(self, number):
        self.answers()
        if int(number) >= len(self.started):
            return None
        code = self.started[int(number)]["process"].poll()
        state = "running" if code is None else "ended"
        return {**self.started[int(number)], "state": state, "exit_code": code}

    def cancel(self, number):
        self.answers()
        self.started[int(number)]["process"].kill()

    def log(self, number):
        self.answers()
        return (self.folder / f"{number}.log").read_text().splitlines()


class ServiceCase:
    secrets = ()

    def __init__(self, folder):
        self.folder, self.service = folder, Service(folder)
        page = (ROOT / "docs" / "launchers.md").read_text()
        code = re.search(r"```python\n([^`]*class MyLauncher:.*?)```", page, re.DOTALL)
        self.names: dict[str, Any] = {}
        exec(present(code)[1], self.names)  # noqa: S102 - the page's own example

    def open(self, service=None):
        return self.names["MyLauncher"](service or self.service, str(PROGRAM), "/no/runtime.zip")

    def open_as_stranger(self):
        return self.open(Service(self.folder, self.service.started, is_known=False))

    def application(self, exit_code):
        return an_application(exit_code)

    def runs(self):
        return len(self.service.started)

    def lose_reply(self):
        self.service.loses = True

    def go_away(self):
        self.service.is_away = True

    def come_back(self):
        self.service.is_away = False


class TestTheExampleOfThePage(RemoteLauncherContract):
    """What docs/launchers.md shows keeps the contract."""

    @pytest.fixture
    def case(self, tmp_path):
        case = ServiceCase(tmp_path)
        yield case
        for each in case.service.started:
            each["process"].kill()
            each["process"].wait()


# --- what only one of them can meet -----------------------------------------------------------


def test_moto_gives_two_runs_for_a_client_token(emr):
    """
    So a run that has the token as its name is looked for: without that look there would be two.
    """
    emr.new_application()
    client, token = emr.client("emr-serverless", emr.keys), a_token()
    launcher = emr.open()
    asked = launcher._request(emr.application(3), token, ["s3://b/runtime.zip"])
    ids = {client.start_job_run(**asked)["jobRunId"] for _ in range(2)}
    handle = launcher.submit(emr.application(3), token)
    emr.end_all()

    assert token == asked["clientToken"]
    assert 2 == len(ids) == emr.runs()
    assert handle.id in ids


def test_a_throttled_service_is_asked_again(emr):
    """
    Too many requests are no refusal.
    """
    emr.new_application()
    emr.server.disturb("throttled", 1, "GET")
    with pytest.raises(LauncherAwayError, match="429"):
        emr.open().check()
    emr.open().check()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"execution_role": "admin"}, "execution_role 'admin' is no ARN of a role"),
        ({"entry_point": "/x.py"}, "entry_point '/x.py' is no address in S3"),
        ({"runtime": ""}, "runtime '' is no address in S3"),
        ({"log_uri": "file:///logs"}, "log_uri 'file:///logs' is no address in S3"),
    ],
)
def test_options_of_emr_are_checked(emr, changes, said):
    """
    What the service would refuse in each try is refused before the first.
    """
    with pytest.raises(ConfigError, match=said):
        emr.open(**changes).check()


def test_an_ended_application_takes_no_driver(emr):
    """
    One that was stopped and does not start by itself, or is no application of Spark, is named.
    """
    client = emr.client("emr-serverless", emr.keys)
    named = {"releaseLabel": "emr-7.9.0", "clientToken": "t"}
    stopped = client.create_application(
        name="a", type="SPARK", autoStartConfiguration={"enabled": False}, **named
    )["applicationId"]
    client.stop_application(applicationId=stopped)
    hive = client.create_application(name="b", type="HIVE", **named)["applicationId"]

    with pytest.raises(SubmissionRefusedError, match=f"{stopped} is STOPPED; start it"):
        emr.open(application_id=stopped).check()
    with pytest.raises(ConfigError, match=f"{hive} is one of Hive; name one of Spark"):
        emr.open(application_id=hive).check()


def test_a_missing_library_names_the_extra(monkeypatch):
    """
    Without boto3 the error says what to install.
    """
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(ConfigError, match=r"needs the extra 'emr': pip install"):
        EmrServerlessLauncher(EmrOptions(application_id="a"), session={"region_name": "x"})


def test_a_missing_region_is_named(monkeypatch):
    """
    Neither the connection nor the environment says in which region the application is.
    """
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    with pytest.raises(ConfigError, match="region"):
        EmrServerlessLauncher(EmrOptions(application_id="a"))


@pytest.mark.parametrize(
    "url",
    [
        "livy:8998",
        "ftp://livy",
        "http://",
        "http://me:pw@livy:1",
        "http://me:p#w-pw@livy:8998",
        "http://me:p/w-pw@livy:8998",
        "http://me:p?w-pw@livy:8998",
        "http://me:w-pw@livy:port",
        "http://me:w-pw@",
    ],
)
def test_an_address_of_livy_is_one_of_http(url):
    """
    Anything else is refused, and a password in an address is not shown.
    """
    with pytest.raises(ConfigError, match="give an address such as") as raised:
        LivyLauncher(LivyOptions(), url)
    assert "pw" not in str(raised.value)


def test_a_server_that_is_no_livy_is_refused(emr):
    """
    What answers with something else than JSON objects, such as a page to log in, is named.
    """
    options = LivyOptions(entry_point="a.py", runtime="b.zip")
    with pytest.raises(ConfigError, match="livy http://127.0.0.1:"):
        LivyLauncher(options, emr.server.address).check()


def test_a_number_of_livys_is_used_again(tmp_path):
    """
    A server without recovery counts from 0 again: the batch of another token is not taken for ours.
    """
    first = LivyCluster(tmp_path / "first")
    handle = first.open().submit(first.application(3), a_token())
    first.stop()
    second = LivyCluster(tmp_path / "second")
    second.go_away()
    second.port = first.port
    second.come_back()
    other = second.open().submit(second.application(None), a_token())
    status = second.open().poll(handle)
    second.open().end(handle)
    state = second.open().poll(other).state
    second.stop()

    assert handle.id == other.id
    assert (LaunchState.GONE, LaunchState.RUNNING) == (status.state, state)


def test_a_handle_of_another_server_is_not_asked_for(tmp_path):
    """
    Who can write in a job directory cannot send a login elsewhere: the address is the connection's.
    """
    cluster = LivyCluster(tmp_path)
    handle = Handle(
        driver_id=a_token(), launcher="livy", id="0", place={"server": "livy http://evil:1"}
    )
    status = cluster.open().poll(handle)
    with pytest.raises(SubmissionRefusedError, match="batch 0 is one of livy http://evil:1"):
        cluster.open().end(handle)
    forged = dataclasses.replace(handle, id="0/../../x", place={"server": f"livy {cluster.url}"})
    with pytest.raises(SubmissionRefusedError, match="is no number"):
        cluster.open().end(forged)
    cluster.stop()

    assert LaunchState.UNKNOWN is status.state
