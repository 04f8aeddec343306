"""Handing a run over, over real sockets: it is taken once, or starts cold, and its exit code arrives."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_provider.extensions.warm_drivers.channel import RUNS_SOCKET, listen, receive, send
from airflow_provider.extensions.warm_drivers.client import (
    GO,
    READY,
    Handover,
    hand_over,
    run_in_pool,
    submit_to_pool,
)
from airflow_provider.extensions.warm_drivers.matching import FixedSettings
from airflow_provider.runtime.errors import EXIT_RETRY
from airflow_provider.runtime.jobdir.run_spec import RunSpec
from tests.extensions.warm_drivers.conftest import FIXED, LIMIT_S, RUN
from tests.present import present

SUBMISSION = ("/job", "run", "driver")


@contextmanager
def a_driver(folder: Path, does: Callable[[socket.socket], object]) -> Iterator[None]:
    """Accept one client, and do something with it."""
    with listen(folder / RUNS_SOCKET) as listener:

        def serve() -> None:
            with listener.accept()[0] as channel:
                does(channel)

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join()


def says_free(channel: socket.socket) -> None:
    send(channel, {"free": True, "pid": 1})


def takes(channel: socket.socket) -> None:
    says_free(channel)
    receive(channel)
    send(channel, READY)
    assert GO == receive(channel)


# --- the run ------------------------------------------------------------------------------------


def test_a_run_is_handed_over_with_its_open_files(idle, given):
    """The driver has the command, and writes to the very files that the client has opened."""
    read, write = os.pipe()
    taken = given(files=(write,))
    os.close(write)

    _, handover, files = idle.taken()
    os.write(files[0], b"from the driver")

    assert RUN == handover
    assert os.getpid() == taken.pid
    assert b"from the driver" == os.read(read, 64)
    os.close(read)


def test_a_large_environment_arrives_whole(idle, given):
    """A message may be larger than what a socket takes at once."""
    large = dataclasses.replace(RUN, environment={"LARGE": "x" * (1 << 20)})

    given(large)

    assert large == idle.taken()[1]


@pytest.mark.parametrize("submission", [None, SUBMISSION])
def test_a_run_is_the_same_after_its_way(submission):
    """What the driver reads is what the client has written."""
    run = dataclasses.replace(RUN, submission=submission)

    assert run == Handover.from_dict(json.loads(json.dumps(run.to_dict())))


@pytest.fixture
def own_signals() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.fixture
def pool(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the folder this process's pool, and the settings of its driver."""
    monkeypatch.setenv("SPARK_STREAM_WARM_DRIVERS", str(folder))
    monkeypatch.setattr(FixedSettings, "of", lambda *_: FIXED)
    return folder


@pytest.mark.usefixtures("pool", "own_signals")
def test_a_command_is_what_a_process_would_have(idle, monkeypatch, tmp_path):
    """
    Environment and working directory are those of the client; its signals are passed on, and it
    ends with the driver's exit code.
    """
    monkeypatch.setenv("GREETING", "hello")
    monkeypatch.chdir(tmp_path)
    got: list[object] = []
    before = signal.getsignal(signal.SIGTERM)

    def serve() -> None:
        channel, handover, files = idle.taken()
        got.extend([handover, len(files)])
        while signal.getsignal(signal.SIGTERM) is before:
            time.sleep(0.001)
        signal.pthread_kill(present(threading.main_thread().ident), signal.SIGTERM)
        got.append(receive(channel))
        send(channel, {"exit": 4})

    thread = threading.Thread(target=serve)
    thread.start()
    spec = RunSpec(job_dir="/job", entry="a:b", params={}, master="local[2]", conf={"spark.a": "1"})
    assert 4 == run_in_pool(spec, ["run", "/job"])
    thread.join()
    expected = dataclasses.replace(
        RUN,
        arguments=("run", "/job"),
        environment=dict(os.environ),
        folder=str(tmp_path),
        conf={"spark.a": "1"},
    )
    assert [expected, 3, {"signal": signal.SIGTERM}] == got


@pytest.mark.usefixtures("pool")
def test_without_a_pool_a_command_starts_cold(folder, caplog):
    """The log says why."""
    spec = RunSpec(job_dir="/job", entry="a:b", params={})

    assert run_in_pool(spec, []) is None
    assert f"no warm driver: there is no driver pool in {folder}; starting one" in caplog.text


@pytest.mark.usefixtures("pool")
def test_a_submission_leaves_its_run(idle, tmp_path):
    """
    It returns as soon as a driver has the run, which reads nothing and writes to the driver's log.
    """
    environ = {"GREETING": "hello"}
    with (tmp_path / "log").open("wb") as output:
        assert not submit_to_pool(
            ["run"], SUBMISSION, output, master="local[2]", conf={}, environment=environ
        )
    channel, handover, files = idle.taken()
    os.write(files[1], b"to output, ")
    os.write(files[2], b"to errors")

    assert (SUBMISSION, environ) == (handover.submission, handover.environment)
    assert b"" == os.read(files[0], 1)
    assert "to output, to errors" == (tmp_path / "log").read_text()
    assert receive(channel) is None


@pytest.mark.usefixtures("pool")
def test_without_a_pool_a_submission_says_why(folder, tmp_path):
    """Its caller then starts a driver of its own."""
    with (tmp_path / "log").open("wb") as output:
        reason = submit_to_pool([], SUBMISSION, output, master="yarn", conf={}, environment={})

    assert f"there is no driver pool in {folder}" == reason


# --- no driver takes it -------------------------------------------------------------------------


def test_without_a_pool_a_run_starts_cold(folder):
    """There is no folder, no socket, or a socket that a killed pool has left."""
    assert hand_over(folder / "none", RUN, ()) == f"there is no driver pool in {folder}/none"
    assert hand_over(folder, RUN, ()) == f"there is no driver pool in {folder}"
    listen(folder / RUNS_SOCKET).close()
    assert hand_over(folder, RUN, ()) == f"there is no driver pool in {folder}"


def test_a_client_waits_for_a_free_driver_only_so_long(folder):
    """It has left the queue when it starts a driver of its own: whoever is free sees its end."""
    with listen(folder / RUNS_SOCKET) as listener:
        reason = hand_over(folder, RUN, (), wait_s=0.1)
        assert reason == f"no warm driver in {folder} was free for 0 s"
        with listener.accept()[0] as channel:
            assert receive(channel) is None


@pytest.mark.parametrize(
    ("does", "reason"),
    [
        (lambda _: None, "the driver has just ended"),
        (lambda c: (says_free(c), receive(c)), "no warm driver matches: it has ended"),  # type: ignore[func-returns-value]
        (lambda c: c.sendall(b"\0\0\0\2[]"), "not a message"),
        (
            lambda c: (says_free(c), receive(c), send(c, {"refused": "its umask is 022"})),  # type: ignore[func-returns-value]
            "no warm driver matches: its umask is 022",
        ),
    ],
    ids=["before", "with the run in its hands", "no message", "refuses"],
)
def test_if_a_driver_dies_or_refuses_before_go_the_run_starts_cold(folder, does, reason):
    """Nothing was given away; the reason is one line."""
    with a_driver(folder, does):
        assert reason == hand_over(folder, RUN, (), wait_s=LIMIT_S)


def test_a_folder_that_others_can_enter_gets_no_run(folder, idle, given):
    """The client does not even connect."""
    folder.chmod(0o755)

    assert "must be this user's alone (mode 0700)" in str(hand_over(folder, RUN, ()))
    folder.chmod(0o700)
    given()
    assert RUN == idle.taken()[1]


# --- its end ------------------------------------------------------------------------------------


def test_the_exit_code_arrives(folder, given):
    """The client ends with the code that the driver sends."""
    with a_driver(folder, lambda c: (takes(c), send(c, {"exit": 4}))):  # type: ignore[func-returns-value]
        assert 4 == given().wait()


@pytest.mark.parametrize("last_words", [b"", b"\0\0", b"\0\0\0\2[]"])
def test_a_driver_that_dies_can_be_resumed(folder, last_words, given):
    """Without its exit code the client says that the run may be started again."""
    with a_driver(folder, lambda c: (takes(c), c.sendall(last_words))):  # type: ignore[func-returns-value]
        assert EXIT_RETRY == given().wait()


def test_a_signal_is_passed_on(idle, given):
    """The driver gets its number; after its end nothing happens."""
    taken = given()
    channel = idle.taken()[0]
    taken.signal(signal.SIGTERM)

    assert {"signal": signal.SIGTERM} == receive(channel)
    channel.close()
    taken.signal(signal.SIGTERM)
    taken.leave()
