"""Launcher ``livy``: its contract on a server of the tests, and answers that are not Livy's."""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
from typing import Any

import pytest

from airflow_provider.extensions.livy import launcher as livy
from airflow_provider.extensions.livy.launcher import LivyLauncher
from airflow_provider.runtime.api.launchers import Application, Handle, LaunchState
from airflow_provider.runtime.errors import (
    ConfigError,
    LauncherAwayError,
    SubmissionRefusedError,
    WrongAnswerError,
)
from airflow_provider.runtime.testing.launchers import RacingLauncherContract, a_token
from tests.contract.clusters import LivyCluster, livy_launcher
from tests.extensions.answering import NAME, PASSWORD, TOKEN, Service, check_wrong_answers
from tests.unit.support import FakeClock

pytestmark = pytest.mark.slow
BATCH = {"id": 7, "name": NAME, "state": "running", "appInfo": {"diagnostics": "queued"}}
PAGE = {"from": 0, "total": 1, "sessions": [BATCH]}
LOG = {"id": 7, "from": 0, "total": 1, "log": ["ValueError: x", "spark-stream: exit code 3"]}


def launcher_of(service: Service, clock: Any = None) -> LivyLauncher:
    launcher = livy_launcher(service.url, login="me", password=PASSWORD)
    return launcher if clock is None else LivyLauncher(launcher._options, launcher._hook, clock)


def handle_of(service: Service) -> Handle:
    location = {"server": f"livy {service.url}"}
    return Handle(driver_id=TOKEN, launcher="livy", id="7", location=location)


@pytest.fixture(scope="module")
def running():
    service = Service()
    yield service
    service.stop()


@pytest.fixture
def service(running):
    running.forget()
    return running


class TestLivy(RacingLauncherContract):
    """A server that refuses a second batch of a name."""

    @pytest.fixture
    def case(self, tmp_path):
        cluster = LivyCluster(tmp_path)
        yield cluster
        cluster.stop()


@pytest.mark.parametrize(
    "url",
    [
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
    """Anything else is refused, and a password in an address is not shown."""
    with pytest.raises(ConfigError, match="give an address such as") as raised:
        livy_launcher(url)
    assert "pw" not in str(raised.value)


def test_a_connection_has_a_host():
    """An empty one is refused, and named."""
    with pytest.raises(ConfigError, match="livy: has no host"):
        livy_launcher("")


def test_a_missing_library_names_the_extra(monkeypatch):
    """Without the provider of Livy the error says what to install."""
    monkeypatch.setitem(sys.modules, "airflow.providers.apache.livy", None)
    with pytest.raises(ConfigError, match=r"needs the extra 'livy': pip install"):
        livy_launcher("http://livy:8998")


def test_headers_of_the_connection_are_sent_and_our_options_are_not(service):
    """The provider's hook sends what the extra has as headers; what we read there is none."""
    service.answers = {"GET": PAGE}
    extra = {"X-Team": "streams", "launcher": {"queue": "night"}, "job-root": "/jobs"}
    livy_launcher(f"{service.url}/", login="me", extra=json.dumps(extra)).check()

    assert [("GET", "/batches?from=0&size=1")] == service.asked
    assert "streams" == service.headers["X-Team"]
    assert not {"launcher", "job-root"} & service.headers.keys()


def test_a_redirection_is_not_followed(service):
    """A login goes to no other server than the connection's."""
    service.answers = {"GET": PAGE}
    service.moved = "http://127.0.0.1:9/elsewhere"
    with pytest.raises(SubmissionRefusedError, match="answered 302"):
        launcher_of(service).check()


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
        driver_id=a_token(), launcher="livy", id="0", location={"server": "livy http://evil:1"}
    )
    status = cluster.open().poll(handle)
    with pytest.raises(SubmissionRefusedError, match="batch 0 is one of livy http://evil:1"):
        cluster.open().end(handle)
    forged = dataclasses.replace(handle, id="0/../../x", location={"server": f"livy {cluster.url}"})
    with pytest.raises(SubmissionRefusedError, match="is no number"):
        cluster.open().end(forged)
    cluster.stop()

    assert LaunchState.UNKNOWN is status.state


# --- answers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("get", "post", "says"),
    [
        ({"sessions": [], "total": 0}, {}, "POST batches: .*: id: expected a value"),
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
        launcher_of(service).submit(Application(arguments=()), TOKEN)

    assert isinstance(raised.value, LauncherAwayError)
    assert str(raised.value).startswith(f"livy {service.url}: ")
    assert 1 == len(str(raised.value).splitlines())
    assert PASSWORD not in str(raised.value)


def test_a_server_that_is_no_livy_is_refused_by_the_check(service):
    """Before anything is submitted the same answer is a mistake in the connection."""
    service.answers = {"GET": {"status": "ok"}}
    with pytest.raises(SubmissionRefusedError, match="total: .*; is it a Livy server"):
        launcher_of(service).check()


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
    """Nothing follows from such an answer; its reason names the server and the member."""
    service.answers = {"GET": {**BATCH, **LOG, **change}}
    status = launcher_of(service).poll(handle_of(service))

    assert LaunchState.UNKNOWN is status.state
    assert says in status.reason
    assert service.url in status.reason


def test_no_answer_of_livy_is_a_traceback(monkeypatch):
    """
    Whatever a part of an answer is replaced by, each call returns, or raises an error of ours.
    """
    launcher = livy_launcher("http://livy:1")
    handle = Handle(
        driver_id=TOKEN, launcher="livy", id="7", location={"server": "livy http://livy:1"}
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
    handle = launcher_of(service).submit(Application(arguments=()), TOKEN)

    assert "7" == handle.id
    assert ["GET", "POST"] == [method for method, _ in service.asked]

    monkeypatch.setattr(livy, "_MOST_PAGES", 5)
    service.answers["GET"] = {"total": 10**12, "sessions": others[:1]}
    with pytest.raises(WrongAnswerError, match="1000000000000 batches, and 5 in 5 answers"):
        launcher_of(service).submit(Application(arguments=()), TOKEN)


def test_an_answer_is_read_to_a_size_and_for_a_time(service, monkeypatch):
    """A long answer is not kept, and one that drips ends when a request must have ended."""
    service.answers = {"GET": {**PAGE, "more": "x" * 300_000}}
    clock = FakeClock()
    monkeypatch.setattr(clock, "monotonic", itertools.count(0, 10).__next__)
    with pytest.raises(LauncherAwayError, match="within 15 s, and no end"):
        launcher_of(service, clock).check()
    monkeypatch.setattr(livy, "_MOST_BYTES", 1000)
    with pytest.raises(ConfigError, match="bytes, more than 1000"):
        launcher_of(service).check()
