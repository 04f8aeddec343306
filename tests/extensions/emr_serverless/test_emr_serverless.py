"""Launcher ``emr-serverless``: its contract on moto, wrong answers, and the driver's log."""

from __future__ import annotations

import gzip
import io
import os
import sys
import tracemalloc
from typing import Any

import psutil
import pytest

from airflow_provider.extensions.emr_serverless import launcher as emr_serverless
from airflow_provider.extensions.emr_serverless.launcher import EmrServerlessLauncher
from airflow_provider.runtime.api.launchers import Application, Handle
from airflow_provider.runtime.errors import (
    ConfigError,
    LauncherAwayError,
    SparkStreamError,
    SubmissionRefusedError,
    WrongAnswerError,
)
from airflow_provider.runtime.testing.launchers import RemoteLauncherContract, a_token
from tests.contract.clusters import emr_launcher, serve_emr
from tests.extensions.answering import NAME, PASSWORD, TOKEN, Service, check_wrong_answers

RUN = {"jobRunId": "j", "name": NAME, "state": "RUNNING", "stateDetails": "ExitCode: 3"}
pytestmark = pytest.mark.slow
ROLE = "arn:aws:iam::123456789012:role/spark-stream"
HANDLE = Handle(
    driver_id=TOKEN, launcher="emr-serverless", id="7", location={"application_id": "a"}
)
OPTIONS = {
    "application_id": "a",
    "execution_role": ROLE,
    "entry_point": "s3://b/e.py",
    "runtime": "s3://b/r.zip",
    "log_uri": "s3://b/logs",
}


def launcher_of(service: Service, **extra: Any) -> EmrServerlessLauncher:
    where = {"region_name": "eu-1", "endpoint_url": service.url}
    return emr_launcher(OPTIONS, "k", PASSWORD, extra={**where, **extra})


@pytest.fixture(scope="module")
def running():
    service = Service()
    yield service
    service.stop()


@pytest.fixture
def service(running):
    running.forget()
    return running


@pytest.fixture(scope="module")
def emr():
    cluster = serve_emr()
    yield cluster
    cluster.server.stop()


@pytest.mark.long
class TestEmrServerless(RemoteLauncherContract):
    """Moto, which ignores client tokens: only the real service decides between racing requests."""

    @pytest.fixture
    def case(self, emr):
        emr.new_application()
        yield emr
        emr.end_all()


def test_moto_gives_two_runs_for_a_client_token(emr):
    """
    So a run that has the token as its name is looked for: without that look there would be two.
    """
    emr.new_application()
    client, token = emr.client("emr-serverless", emr.keys), a_token()
    launcher = emr.open()
    asked = launcher._request(emr.application(3), token)
    ids = {client.start_job_run(**asked)["jobRunId"] for _ in range(2)}
    handle = launcher.submit(emr.application(3), token)
    emr.end_all()

    assert token == asked["clientToken"]
    assert 2 == len(ids) == emr.runs()
    assert handle.id in ids


def test_a_throttled_service_is_asked_again(emr):
    """Too many requests are no refusal."""
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
    """What the service would refuse in each try is refused before the first."""
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
    """Without the provider of Amazon the error says what to install."""
    monkeypatch.setitem(sys.modules, "airflow.providers.amazon", None)
    with pytest.raises(ConfigError, match=r"needs the extra 'emr': pip install"):
        emr_launcher(OPTIONS, extra={})


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({}, "region.; complete the connection"),
        (
            {"profile_name": "nobody"},
            "profile .nobody. could not be found; complete the connection",
        ),
        ({"region_name": "x", "endpoint_url": "no address"}, "Invalid endpoint: no address; corr"),
        ({"role_arn": ROLE, "assume_role_method": "x", "region_name": "x"}, "assume_role_method"),
        ({"region_name": "x"}, "Unable to locate credentials; complete the connection"),
    ],
    ids=lambda each: "" if isinstance(each, str) else "-".join(each),
)
def test_what_is_wrong_with_a_connection_is_said(monkeypatch, tmp_path, extra, said):
    """Region, profile, role and keys are the connection's, or the machine's."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=said) as raised:
        emr_launcher(OPTIONS, extra=extra).check()
    assert 1 == len(str(raised.value).splitlines())


def test_a_role_of_the_connection_is_assumed(service):
    """Its credentials sign the requests, as everywhere in Airflow."""
    service.answers = {"POST": ASSUMED, "GET": APPLICATION}
    sts = {"sts": {"endpoint_url": service.url}}
    launcher_of(service, role_arn=ROLE, external_id="x", service_config=sts).check()

    assert [("POST", "/"), ("GET", "/applications/a")] == service.asked
    assert "Credential=ASIAOFTHEROLE/" in service.headers["Authorization"]


# --- answers ------------------------------------------------------------------------------------


ASSUMED = b"""<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult>
<Credentials><AccessKeyId>ASIAOFTHEROLE</AccessKeyId><SecretAccessKey>s3cr3t-too</SecretAccessKey>
<SessionToken>t0ken</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration></Credentials>
</AssumeRoleResult></AssumeRoleResponse>"""
APPLICATION = {"application": {"type": "Spark", "state": "STARTED", "autoStartConfiguration": {}}}


@pytest.mark.parametrize(
    ("answer", "act", "says"),
    [
        ({}, "check", "get_application: .*application: expected a value"),
        ({"application": {"type": 5, "state": "x"}}, "check", "application.type: expected text"),
        (b"[" * 60_000, "check", "get_application: "),
        ({"jobRuns": [{"name": NAME}]}, "submit", r"jobRuns\[0\].id: expected a value"),
        ({"jobRuns": [{"createdAt": "soon"}]}, "submit", "list_job_runs: not an answer"),
        ({"jobRun": {"name": NAME}}, "end", "jobRun.state: expected a value"),
    ],
)
def test_an_answer_of_emr_that_is_not_understood_is_one_line(service, answer, act, says):
    """It names the application, the operation and the member, and says no more than no answer."""
    service.answers = {"GET": answer}
    launcher, handle = launcher_of(service), HANDLE
    acts = {
        "check": launcher.check,
        "submit": lambda: launcher.submit(Application(arguments=()), TOKEN),
        "end": lambda: launcher.end(handle),
    }
    with pytest.raises(LauncherAwayError, match=says) as raised:
        acts[act]()

    assert str(raised.value).startswith("emr-serverless application a: ")
    assert 1 == len(str(raised.value).splitlines())


@pytest.mark.long
def test_no_answer_of_emr_is_a_traceback(service):
    """Whatever a part of an answer is replaced by, boto3's own troubles with it included."""
    launcher, handle = launcher_of(service), HANDLE
    valid = {**APPLICATION, "jobRun": RUN, "jobRuns": [{**RUN, "id": "j"}]}

    def answer_with(answer):
        service.answers = {"GET": answer, "POST": {"jobRunId": "j"}, "DELETE": {}}

    check_wrong_answers(launcher, handle, valid, answer_with)


def test_a_service_that_always_has_another_page_is_not_asked_for_ever(service, monkeypatch):
    """A listing that does not end is a wrong answer, and no run is started."""
    monkeypatch.setattr(emr_serverless, "_MOST_PAGES", 5)
    service.answers = {"GET": {"jobRuns": [], "nextToken": "again"}}
    with pytest.raises(WrongAnswerError, match="list_job_runs: no end after 5 answers"):
        launcher_of(service).submit(Application(arguments=()), TOKEN)

    assert ["GET"] * 5 == [method for method, _ in service.asked]


# --- the driver's log ---------------------------------------------------------------------------


def packed(*texts):
    return b"".join(map(gzip.compress, texts))


@pytest.mark.parametrize(
    ("data", "begin", "end"),
    [
        (packed(b"one\ntwo\n"), 0, b"one\ntwo\n"),
        (packed(b"one\n", b"two\n") + b"\0" * 600, 0, b"one\ntwo\n"),
        (packed(b""), 0, b""),
        (b"", 0, b""),
        (packed(b"".join(b"%06d\n" % n for n in range(2000)))[:-8], 13_950, None),
        (packed(b"x" * 100 + b"y" * 50), 100, b"y" * 50),
    ],
    ids=["one stream", "two, and zeros", "empty", "nothing", "without its end", "long"],
)
def test_of_a_compressed_text_the_end_is_kept(data, begin, end):
    """Of one stream or several, also when the writer has not come to the end of it."""
    tail = emr_serverless.gzip_tail(io.BytesIO(data), kept_bytes=50)

    assert (begin, True) == (tail.begin, tail.is_whole)
    assert end is None or end == tail.data


def test_a_log_is_read_with_little_memory_and_once(service):
    """
    60 MB of text in 60 KB: the last lines come, the memory stays, and what has not changed is not
    sent again.
    """
    last = b"ValueError: the last line\n"
    text = io.BytesIO()
    with gzip.GzipFile(fileobj=text, mode="wb", compresslevel=6) as file:
        for _ in range(6):
            file.write(b"x" * 9_999_999 + b"\n")
        file.write(last)
    service.answers = {"GET": text.getvalue()}
    launcher, handle = launcher_of(service), HANDLE
    launcher._open_client("s3")  # boto3 reads its own files once
    tracemalloc.start()
    part = launcher.log(handle)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    again, later = launcher.log(handle), launcher.log(handle, part.offset)

    assert part.lines[-1] == last.decode().strip()
    assert 6 * 10_000_000 + len(last) == part.offset
    assert peak < 12 << 20
    assert (part, ()) == (again, later.lines)
    service.tag, service.answers = '"2"', {"GET": packed(b"short\n")}
    assert ("short",) == launcher.log(handle).lines


def test_a_log_is_decompressed_up_to_a_limit(monkeypatch):
    """Some megabytes can be terabytes of text: past the limit the part says where it has ended."""
    data = packed(b"a line\n" * 1_000_000)
    tail = emr_serverless.gzip_tail(io.BytesIO(data), kept_bytes=70, most_text_bytes=2_000_000)
    lines, end = tail.lines_from(0)

    assert not tail.is_whole
    assert {"a line"} == set(lines)
    assert 2_000_000 <= end <= 3_200_000


def test_a_log_that_is_no_gzip_is_one_line(service):
    """Whoever writes into the bucket of logs ends no task, and keeps no connection open."""
    service.answers = {"GET": b"plain text\n"}
    before = connections_to(service)
    with pytest.raises(SparkStreamError, match="get_object: .*Not a gzipped file") as raised:
        launcher_of(service).log(HANDLE)

    assert 1 == len(str(raised.value).splitlines())
    assert connections_to(service) <= before


def connections_to(service):
    return {
        each.laddr
        for each in psutil.Process().net_connections()
        if each.raddr and each.raddr.port == service.server.server_port
    }


def test_lines_are_counted_from_where_the_caller_is():
    """What was cut off begins with a whole line, and a line that is being written waits."""
    tail = emr_serverless.Tail(4, b"ef\nghi\njk", is_whole=True)

    assert (("ghi",), 11) == tail.lines_from(0)
    assert (("ef", "ghi"), 11) == tail.lines_from(4)
    assert (("ghi",), 11) == tail.lines_from(7)
    assert ((), 11) == tail.lines_from(11)
    assert ((), 99) == tail.lines_from(99)
