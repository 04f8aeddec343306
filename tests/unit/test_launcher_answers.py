"""Answers of Livy and EMR Serverless that are not what their documentation says: one line each."""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import json
import threading
import tracemalloc
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from airflow_provider.extensions.emr_serverless import gzip_tail
from airflow_provider.extensions.emr_serverless import launcher as emr_serverless
from airflow_provider.extensions.emr_serverless.launcher import (
    EmrOptions,
    EmrServerlessLauncher,
)
from airflow_provider.extensions.livy import launcher as livy
from airflow_provider.extensions.livy.launcher import LivyLauncher, LivyOptions
from airflow_provider.runtime.api.launchers import Application, Handle, LaunchState
from airflow_provider.runtime.control.spark_submit import WrongAnswerError
from airflow_provider.runtime.errors import (
    ConfigError,
    LauncherAwayError,
    SparkStreamError,
    SubmissionRefusedError,
)
from tests.unit.support import FakeClock

TOKEN, NAME, PASSWORD = "t", "spark-stream-t", "s3cr3t"
BATCH = {"id": 7, "name": NAME, "state": "running", "appInfo": {"diagnostics": "queued"}}
PAGE = {"from": 0, "total": 1, "sessions": [BATCH]}
LOG = {"id": 7, "from": 0, "total": 1, "log": ["ValueError: x", "spark-stream: exit code 3"]}
RUN = {"jobRunId": "j", "name": NAME, "state": "RUNNING", "stateDetails": "ExitCode: 3"}
JUNK: list[Any] = [None, True, -1, 5, 1e300, "x", [], ["x"], {}, {"a": 1}, [[]] * 2]
ROLE = "arn:aws:iam::123456789012:role/spark-stream"


class Service:
    """A service on a port of this machine, whose answers a test writes.

    Attributes:
        answers: by HTTP method, a value of JSON, bytes, or what makes one of the path.
        asked: method and path of each request.
    """

    def __init__(self):
        self.answers: dict[str, Any] = {}
        self.asked: list[tuple[str, str]] = []
        self.tag = '"1"'
        service = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def answer(self):
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                service.asked.append((self.command, self.path))
                if self.headers.get("If-None-Match") == service.tag:
                    return self.send(304, b"")
                found = service.answers[self.command]
                found = found(self.path) if callable(found) else found
                return self.send(
                    200, found if isinstance(found, bytes) else json.dumps(found).encode()
                )

            def send(self, status, body):
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("ETag", service.tag)
                self.end_headers()
                with contextlib.suppress(OSError):  # a client may have heard enough
                    self.wfile.write(body)

        for method in ("GET", "POST", "DELETE"):
            setattr(Handler, f"do_{method}", Handler.answer)
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def livy(self, clock=None):
        options = LivyOptions(entry_point="e", runtime="r")
        return LivyLauncher(options, self.url, user="me", password=PASSWORD, clock=clock)

    def emr(self):
        options = EmrOptions(
            application_id="a",
            execution_role=ROLE,
            entry_point="s3://b/e.py",
            runtime="s3://b/r.zip",
            log_uri="s3://b/logs",
        )
        keys = {"aws_access_key_id": "k", "aws_secret_access_key": PASSWORD, "region_name": "eu-1"}
        return EmrServerlessLauncher(options, session=keys, endpoint=self.url)

    def handle(self, kind="livy"):
        places = {"livy": {"server": f"livy {self.url}"}, "emr-serverless": {"application_id": "a"}}
        return Handle(driver_id=TOKEN, launcher=kind, id="7", place=places[kind])


@pytest.fixture(scope="module")
def running():
    service = Service()
    yield service
    service.server.shutdown()
    service.server.server_close()


@pytest.fixture
def service(running):
    running.answers, running.asked[:] = {}, []
    return running


def changed(value):
    """Yield a value of JSON with one of its parts replaced or left out, for each part and junk."""
    yield from JUNK
    for key in (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    ):
        for part in changed(value[key]):
            other = value.copy()
            other[key] = part
            yield other
        if isinstance(value, dict):
            yield {name: each for name, each in value.items() if name != key}


def check_wrong_answers(launcher, handle, valid, answer_with):
    """Check that each call returns, or raises one line of ours, whatever a valid answer becomes."""
    tried, said = 0, []
    for answer in changed(valid):
        answer_with(answer)
        for act in (
            launcher.check,
            lambda: launcher.submit(Application(arguments=()), TOKEN),
            lambda: launcher.poll(handle),
            lambda: launcher.end(handle),
            lambda: launcher.log(handle),
        ):
            tried += 1
            try:
                act()
            except (ConfigError, LauncherAwayError) as error:
                said.append(str(error))

    assert 0 < len(said) < tried
    assert [] == [text for text in said if len(text.splitlines()) != 1]


# --- Livy ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("get", "post", "says"),
    [
        ({"sessions": [], "total": 0}, {}, "POST /batches: .*: id: expected a value"),
        ({"sessions": {"a": 1}, "total": 1}, BATCH, "sessions: expected a list"),
        ({"sessions": [BATCH], "total": None}, BATCH, "total: expected a whole number"),
        ({**PAGE, "sessions": [{"name": NAME, "state": "dead"}]}, BATCH, r"sessions\[0\].id: "),
        ([], BATCH, "expected an object, found a list"),
        (b"<html>", BATCH, "the answer is not JSON"),
        (b"[" * 60_000, BATCH, "too deep"),
    ],
)
def test_a_submission_to_a_server_that_is_not_understood_may_be_repeated(service, get, post, says):
    """
    The batch was perhaps made, so the error is that of a lost answer; it names server and member.
    """
    service.answers = {"GET": get, "POST": post}
    with pytest.raises(WrongAnswerError, match=says) as raised:
        service.livy().submit(Application(arguments=()), TOKEN)

    assert isinstance(raised.value, LauncherAwayError)
    assert str(raised.value).startswith(f"livy {service.url}: ")
    assert 1 == len(str(raised.value).splitlines())
    assert PASSWORD not in str(raised.value)


def test_a_server_that_is_no_livy_is_refused_by_the_check(service):
    """
    Before anything is submitted the same answer is a mistake in the connection.
    """
    service.answers = {"GET": {"status": "ok"}}
    with pytest.raises(SubmissionRefusedError, match="total: .*; is it a Livy server"):
        service.livy().check()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"state": ["dead"]}, "state: expected text, found a list"),
        ({"state": None}, "state: expected text, found null"),
        ({"appInfo": "x"}, "appInfo: "),
        ({"state": "dead", "from": None}, "from: expected a whole number"),
        ({"state": "dead", "log": 5}, "log: expected a list"),
        ({"state": "dead", "log": ["x"] * 10_001}, "log: expected at most 10000 of them"),
    ],
)
def test_a_batch_that_is_not_understood_is_unknown(service, change, says):
    """
    Nothing follows from such an answer; its reason names the server and the member.
    """
    service.answers = {"GET": {**BATCH, **LOG, **change}}
    status = service.livy().poll(service.handle())

    assert LaunchState.UNKNOWN is status.state
    assert says in status.reason
    assert service.url in status.reason


def test_no_answer_of_livy_is_a_traceback(monkeypatch):
    """
    Whatever a part of an answer is replaced by, each call returns, or raises an error of ours.
    """
    launcher = LivyLauncher(LivyOptions(entry_point="e", runtime="r"), "http://livy:1")
    handle = Handle(
        driver_id=TOKEN, launcher="livy", id="7", place={"server": "livy http://livy:1"}
    )
    valid = {**BATCH, **LOG, **PAGE, "state": "dead"}

    def answer_with(answer):
        monkeypatch.setattr(launcher, "_send", lambda *_: (200, json.dumps(answer)))

    check_wrong_answers(launcher, handle, valid, answer_with)


def test_a_server_that_always_has_one_more_batch_is_not_asked_for_ever(service, monkeypatch):
    """
    What there was at the first answer is looked through; a server that never shows it is wrong.
    """
    numbers = itertools.count()
    others = [{"id": n, "name": None, "state": "idle"} for n in range(100)]
    page = {"GET": lambda _: {"total": 100 + next(numbers), "sessions": others}}
    service.answers = {**page, "POST": BATCH}
    handle = service.livy().submit(Application(arguments=()), TOKEN)

    assert "7" == handle.id
    assert ["GET", "POST"] == [method for method, _ in service.asked]

    monkeypatch.setattr(livy, "_MOST_PAGES", 5)
    service.answers["GET"] = {"total": 10**12, "sessions": others[:1]}
    with pytest.raises(WrongAnswerError, match="1000000000000 batches, and 5 in 5 answers"):
        service.livy().submit(Application(arguments=()), TOKEN)


def test_an_answer_is_read_to_a_size_and_for_a_time(service, monkeypatch):
    """
    A long answer is not kept, and one that drips ends when a request must have ended.
    """
    service.answers = {"GET": {**PAGE, "more": "x" * 300_000}}
    clock = FakeClock()
    monkeypatch.setattr(clock, "monotonic", itertools.count(0, 10).__next__)
    with pytest.raises(LauncherAwayError, match="within 15 s, and no end"):
        service.livy(clock).check()
    monkeypatch.setattr(livy, "_MOST_BYTES", 1000)
    with pytest.raises(ConfigError, match="bytes, more than 1000"):
        service.livy().check()


# --- EMR Serverless -----------------------------------------------------------------------------


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
    """
    It names the application, the operation and the member, and says no more than no answer.
    """
    service.answers = {"GET": answer}
    launcher, handle = service.emr(), service.handle("emr-serverless")
    acts = {
        "check": launcher.check,
        "submit": lambda: launcher.submit(Application(arguments=()), TOKEN),
        "end": lambda: launcher.end(handle),
    }
    with pytest.raises(LauncherAwayError, match=says) as raised:
        acts[act]()

    assert str(raised.value).startswith("emr-serverless application a: ")
    assert 1 == len(str(raised.value).splitlines())


def test_no_answer_of_emr_is_a_traceback(service):
    """
    Whatever a part of an answer is replaced by, boto3's own troubles with it included.
    """
    launcher, handle = service.emr(), service.handle("emr-serverless")
    valid = {**APPLICATION, "jobRun": RUN, "jobRuns": [{**RUN, "id": "j"}]}

    def answer_with(answer):
        service.answers = {"GET": answer, "POST": {"jobRunId": "j"}, "DELETE": {}}

    check_wrong_answers(launcher, handle, valid, answer_with)


def test_a_service_that_always_has_another_page_is_not_asked_for_ever(service, monkeypatch):
    """
    A listing that does not end is a wrong answer, and no run is started.
    """
    monkeypatch.setattr(emr_serverless, "_MOST_PAGES", 5)
    service.answers = {"GET": {"jobRuns": [], "nextToken": "again"}}
    with pytest.raises(WrongAnswerError, match="list_job_runs: no end after 5 answers"):
        service.emr().submit(Application(arguments=()), TOKEN)

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
    """
    Of one stream or several, also when the writer has not come to the end of it.
    """
    tail = gzip_tail.gzip_tail(io.BytesIO(data), kept_bytes=50)

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
    launcher, handle = service.emr(), service.handle("emr-serverless")
    launcher.poll(handle)  # boto3 reads its own files once
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
    """
    Some megabytes can be terabytes of text: past the limit the part says where it has ended.
    """
    data = packed(b"a line\n" * 1_000_000)
    tail = gzip_tail.gzip_tail(io.BytesIO(data), kept_bytes=70, most_text_bytes=2_000_000)
    lines, end = tail.lines_from(0)

    assert not tail.is_whole
    assert {"a line"} == set(lines)
    assert 2_000_000 <= end <= 3_200_000


def test_a_log_that_is_no_gzip_is_one_line(service):
    """
    Whoever writes into the bucket of logs ends no task.
    """
    service.answers = {"GET": b"plain text\n"}
    with pytest.raises(SparkStreamError, match="get_object: .*incorrect header") as raised:
        service.emr().log(service.handle("emr-serverless"))

    assert 1 == len(str(raised.value).splitlines())


def test_lines_are_counted_from_where_the_caller_is():
    """
    What was cut off begins with a whole line, and a line that is being written waits.
    """
    tail = gzip_tail.Tail(4, b"ef\nghi\njk", is_whole=True)

    assert (("ghi",), 11) == tail.lines_from(0)
    assert (("ef", "ghi"), 11) == tail.lines_from(4)
    assert (("ghi",), 11) == tail.lines_from(7)
    assert ((), 11) == tail.lines_from(11)
    assert ((), 99) == tail.lines_from(99)
