"""A driver serves run after run: with real processes, whose JVM is a shell that ends as one does."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import socket
import stat
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TextIO

import psutil
import pytest

from airflow_provider.extensions.warm_drivers.channel import RUNS_SOCKET, receive, send
from airflow_provider.extensions.warm_drivers.client import GO, READY, WarmRun, hand_over
from airflow_provider.extensions.warm_drivers.driver import NOTHING
from airflow_provider.runtime.control.submitted_process import SubmittedProcess
from airflow_provider.runtime.errors import EXIT_LEASE, EXIT_RETRY
from airflow_provider.runtime.jobdir.layout import JobDirectory, RunDirectory
from airflow_provider.runtime.storage.local import LocalStorage
from tests.extensions.warm_drivers.conftest import LIMIT_S, RUN, DriverProcess, await_that, command
from tests.extensions.warm_drivers.without_jvm import STATIC
from tests.present import present


def connected(folder: Path) -> socket.socket:
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    channel.settimeout(LIMIT_S)
    channel.connect(str(folder / RUNS_SOCKET))
    return channel


def free(channel: socket.socket) -> int:
    """Wait until a driver has accepted the connection; return its process."""
    return int(present(receive(channel))["pid"])


def message(data: bytes) -> bytes:
    return struct.pack("!I", len(data)) + data


# --- accepting a client -------------------------------------------------------------------------


@pytest.mark.parametrize("other", [{"stay": True}, READY, None])
def test_only_go_gives_the_run_away(folder, idle, given, other):
    """Another message in its place is none, nor is a client that goes: the driver starts nothing."""
    with connected(folder) as channel:
        free(channel)
        send(channel, RUN.to_dict())
        assert READY == receive(channel)
        if other is not None:
            send(channel, other)
            assert b"" == channel.recv(1)

    given()
    assert RUN == idle.taken()[1]
    assert 1 == idle.refused


@pytest.mark.parametrize("waits", [True, False])
def test_a_client_that_leaves_the_queue_costs_nothing(folder, idle, given, waits):
    """It has sent nothing that must be forgotten: the same process serves the next client."""
    with connected(folder) as channel:
        if waits:
            free(channel)

    given()
    assert RUN == idle.taken()[1]
    assert 0 == idle.refused


@pytest.mark.parametrize(
    "data",
    [
        b"\0\0",
        b"GET / HTTP/1.1\r\n\r\n",
        message(b"[1]"),
        message(b"{}"),
        message(json.dumps({**RUN.to_dict(), "folder": 22}).encode()),
    ],
    ids=["two bytes", "http", "list", "empty", "wrong type"],
)
def test_what_is_no_run_is_refused(folder, idle, given, data):
    """The connection is closed, and the next client is served by another process."""
    with connected(folder) as channel:
        free(channel)
        channel.sendall(data)
        channel.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):  # it did not read all
            assert b"" == channel.recv(1)

    given()
    assert 1 == idle.refused


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"fixed": dataclasses.replace(RUN.fixed, umask=0o777)}, "the run's 777"),
        ({"folder": "/none"}, "the run's working directory /none is not there for it"),
    ],
)
def test_a_run_that_does_not_fit_is_refused_with_its_files_closed(
    folder, idle, given, fields, reason
):
    """One line says why, and the client's reader sees the end of the pipe: the driver lives on."""
    read, write = os.pipe()
    said = hand_over(folder, dataclasses.replace(RUN, **fields), (write,), wait_s=LIMIT_S)
    os.close(write)

    assert str(said).startswith("no warm driver matches: ")
    assert reason in str(said)
    assert b"" == os.read(read, 1)
    os.close(read)
    given()
    assert 1 == idle.refused


def test_an_idle_driver_ends_with_its_pool(idle):
    """When the other end of the line is closed nobody is accepted any more."""
    idle.pool.close()

    assert NOTHING == idle.word()


def test_a_run_goes_on_when_the_pool_ends_as_it_is_taken(folder, idle):
    """The pool has gone between the answer and "go": nobody hears "busy", and the run is served."""
    with connected(folder) as channel:
        free(channel)
        send(channel, RUN.to_dict())
        receive(channel)
        idle.pool.close()
        send(channel, GO)

        assert RUN == idle.taken()[1]


# --- processes ----------------------------------------------------------------------------------


Start = Callable[..., DriverProcess]
Begun = tuple[WarmRun, TextIO, str]


@pytest.fixture
def driver(start: Start) -> DriverProcess:
    return started(start)


def started(start: Start, **limits: float) -> DriverProcess:
    driver = start(**limits)
    assert "ready" == driver.says(), driver.log
    return driver


def assert_retired(driver: DriverProcess, reason: str, runs: int) -> None:
    """Assert that a driver has ended with its JVM, which was killed, and that it leaves no file."""
    assert f"retired after {runs} runs: {reason}" == driver.says()
    assert "" == driver.says()
    driver.process.wait(LIMIT_S)
    home = Path(os.environ["SPARK_HOME"])
    assert not psutil.pid_exists(int((home / "started").read_text()))
    assert not (home / "ended").exists()
    assert not driver.folder.exists()


@pytest.fixture
def begun(given: Callable[..., WarmRun]) -> Iterator[Callable[..., Begun]]:
    """Yield a function that hands a run over, and returns it with its output's first line."""
    with contextlib.ExitStack() as closing:

        def begin(*arguments: str, **fields: Any) -> Begun:
            read, write = os.pipe()
            output = closing.enter_context(os.fdopen(read))
            taken = given(command(*arguments, **fields), (0, write, write))
            os.close(write)
            return taken, output, output.readline().strip()

        yield begin


def test_each_run_is_as_if_its_client_had_started_it(driver, given, tmp_path, spark_home):
    """
    Files, environment, working directory and arguments are the client's, and so is the exit code;
    each run has a process of its own, and one JVM serves all.
    """
    (tmp_path / "input").write_text("a line\n")
    pids = set()
    for greeting in ("hello", "again"):
        output, errors = tmp_path / f"output-{greeting}", tmp_path / f"errors-{greeting}"
        look = command("look", folder=str(tmp_path), environment={"GREETING": greeting})
        with (
            (tmp_path / "input").open() as read,
            output.open("w") as out,
            errors.open("w") as err,
        ):
            taken = given(look, (read.fileno(), out.fileno(), err.fileno()))
            assert 7 == taken.wait()

        pids.add(taken.pid)
        assert f"{greeting} {tmp_path} ['spark-stream', 'look'] a line\n\n" == output.read_text()
        assert "to stderr\n" == errors.read_text()
        assert ["busy", "ready"] == [driver.says(), driver.says()]
    assert 2 == len(pids - {driver.process.pid})
    assert 1 == len((spark_home / "started").read_text().split())


def test_a_process_that_has_read_a_request_ends_with_its_secrets(folder, driver):
    """A client that leaves the queue costs no process; one that is refused, or withdraws, does."""
    other = command(fixed=RUN.fixed)
    pids = []
    for sends in (None, None, other, command("look")):
        with connected(folder) as channel:
            pids.append(free(channel))
            if sends is not None:
                send(channel, sends.to_dict())
                receive(channel)
        if sends is not None:
            assert "ready" == driver.says()
            assert not psutil.pid_exists(pids[-1])
    with connected(folder) as channel:
        pids.append(free(channel))

    assert pids[0] == pids[1] == pids[2]
    assert 3 == len(set(pids))


def test_each_run_at_one_socket_is_served_once(start, folder, given, begun):
    """Clients queue, and whichever of two drivers is free accepts the next; none gets a run twice."""
    drivers = [started(start), started(start)]
    busy = [begun("wait") for _ in drivers]
    assert ["busy", "busy"] == [driver.says() for driver in drivers]
    record = folder / "served"
    with ThreadPoolExecutor(6) as clients, record.open("a") as out:

        def look(number: int) -> int:
            run = command("look", environment={"GREETING": str(number)})
            return given(run, (0, out.fileno(), 2)).wait()

        codes = [clients.submit(look, number) for number in range(6)]
        with pytest.raises(TimeoutError):
            codes[0].result(0.1)
        for taken, _, _ in busy:
            taken.signal(signal.SIGTERM)
        assert [7] * 6 == [each.result(LIMIT_S) for each in codes]

    served = sorted(line.split()[0] for line in record.read_text().splitlines() if line)
    assert [str(number) for number in range(6)] == served


def test_who_reads_the_output_does_not_wait_until_spark_has_stopped(driver, spark_home, begun):
    """
    Output and exit code are there while Spark still stops; a Spark that never stops is killed with
    its process, and the JVM after it.
    """
    taken, output, _ = begun("7", environment={"NEVER_STOPS": "1"})

    assert "" == output.read()
    assert 7 == taken.wait()
    assert psutil.pid_exists(taken.pid)
    os.kill(taken.pid, signal.SIGALRM)  # as thirty seconds later
    assert "busy" == driver.says()
    assert_retired(driver, f"its process {taken.pid} has died (-14)", 0)


def test_a_signal_is_passed_on_and_a_run_ends_with_its_client(driver, begun):
    """Both ask the job to end, and the driver then serves the next run."""
    for asks in (lambda run: run.signal(signal.SIGTERM), lambda run: run.leave()):
        taken, output, first = begun("wait")
        assert "at work" == first
        asks(taken)
        assert "" == output.read()
        assert ["busy", "ready"] == [driver.says(), driver.says()]


@pytest.mark.parametrize("how", ["kill", "vanish"])
def test_a_run_whose_process_dies_takes_the_jvm_with_it(driver, given, spark_home, how, begun):
    """
    A process that is killed, or leaves without its last word, may have left threads in the JVM that
    write: it is killed, and the client says that the run can be resumed.
    """
    if how == "kill":
        taken, _, _ = begun("wait")
        os.kill(taken.pid, signal.SIGKILL)
    else:
        taken = given(command(how))

    assert EXIT_RETRY == taken.wait()
    assert "busy" == driver.says()
    code = {"kill": -9, "vanish": 0}[how]
    assert_retired(driver, f"its process {taken.pid} has died ({code})", 0)


def test_a_process_that_a_run_has_left_behind_holds_nothing_up(driver, begun):
    """It has every open file of the run's process, also the line to the parent."""
    taken, _, left = begun("leave")
    try:
        assert 0 == taken.wait()
        assert ["busy", "ready"] == [driver.says(), driver.says()]
    finally:
        os.kill(int(left), signal.SIGKILL)


@pytest.mark.parametrize(
    ("code", "fields", "reason"),
    [
        (EXIT_RETRY, {}, "its run has failed, and could be tried again"),
        (0, {"environment": {"ADDS_JARS": "1"}}, "its run has added jars"),
        (0, {"conf": {STATIC: "/here"}}, f"its run had the static setting {STATIC}"),
    ],
)
def test_a_run_that_leaves_traces_is_the_last(driver, given, code, fields, reason):
    """It ends as it would, and its JVM serves no other."""
    assert code == given(command(str(code), **fields)).wait()
    assert "busy" == driver.says()
    assert_retired(driver, reason, 1)


@pytest.mark.parametrize(
    ("limits", "runs", "reason"),
    [({"runs": 2}, 2, "it has served 2 runs"), ({"age_s": -1}, 1, "it is [0-9]+ s old")],
)
def test_a_driver_has_a_limit_of_runs_and_of_age(start, given, limits, runs, reason):
    """Beyond it a fresh one takes its place."""
    driver = start(**limits)
    for _ in range(runs):
        assert ["ready", 0, "busy"] == [driver.says(), given(command("0")).wait(), driver.says()]

    assert re.fullmatch(f"retired after {runs} runs: {reason}", driver.says())
    assert 0 == driver.process.wait(LIMIT_S)


def test_a_drivers_files_are_its_users_alone(driver):
    """The secret of the gateway is among them while the JVM starts."""
    assert 0o700 == stat.S_IMODE(driver.folder.stat().st_mode)


def test_an_unfit_jvm_gets_no_run(driver, given, spark_home):
    """What the last run has left is found before the next client is accepted."""
    (spark_home / "unfit").touch()
    given(command("0")).wait()

    assert "busy" == driver.says()
    assert_retired(driver, "it is unfit", 1)


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_driver_ends_with_its_pool_but_not_a_run(driver, spark_home, is_busy, begun):
    """An idle one ends at once, with a JVM that could end in good order; a run ends before."""
    taken = begun("wait")[0] if is_busy else None
    driver.leaves_pool()
    if taken is not None:
        taken.signal(signal.SIGTERM)
        assert 9 == taken.wait()

    assert 0 == driver.process.wait(LIMIT_S), driver.log
    assert (spark_home / "ended").exists()
    assert not driver.folder.exists()


def test_a_run_outlives_the_parent_and_the_jvm_outlives_both(driver, spark_home, begun):
    """A parent that is killed takes nothing from the run; the JVM ends with the run's process."""
    taken, _, _ = begun("wait")
    driver.process.kill()
    driver.process.wait(LIMIT_S)
    taken.signal(signal.SIGTERM)

    assert 9 == taken.wait()
    assert await_that((spark_home / "ended").exists)


@pytest.mark.parametrize("what", ["JVM", "warm-up"])
def test_a_driver_that_cannot_start_fails(start, monkeypatch, spark_home, what):
    """Its exit code says so, its log says why, and nobody is accepted."""
    if what == "JVM":
        (spark_home / "broken").touch()
    else:
        monkeypatch.setenv("NO_WARM_UP", "1")
    driver = start()

    assert 1 == driver.process.wait(LIMIT_S)
    reason = {"JVM": "the JVM did not come up (exit code 4)", "warm-up": "no warm-up"}[what]
    assert reason in driver.log
    assert "ready" != driver.says()


# --- submissions --------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return JobDirectory(LocalStorage(str(tmp_path / "job"))).run("run")


def submitted(tmp_path: Path, *arguments: str) -> Any:
    return command(*arguments, submission=(str(tmp_path / "job"), "run", "driver"))


def test_a_submission_goes_on_without_its_client_and_records_its_end(driver, given, run, tmp_path):
    """Its process is the one that is watched, and exit code and last lines are recorded."""
    log = tmp_path / "log"
    with log.open("a+b") as output:  # the driver reads its end
        taken = given(submitted(tmp_path, "wait"), (output.fileno(),) * 3)
    taken.leave()
    assert await_that(lambda: "at work" in log.read_text())
    assert taken.pid == present(run.process_of("driver")).identity.processes[0][0]
    os.kill(taken.pid, signal.SIGTERM)

    assert ["busy", "ready"] == [driver.says(), driver.says()]
    end = present(run.exit_of("driver"))
    assert (9, ["at work"]) == (end.exit_code, end.last_lines)


def test_a_submission_that_was_revoked_is_not_run(driver, given, run, tmp_path):
    """The next try has not seen its process, and has submitted another driver."""
    assert SubmittedProcess(run, "driver", beats=False).enter()

    with (tmp_path / "log").open("wb") as output:
        assert EXIT_LEASE == given(submitted(tmp_path, "look"), (output.fileno(),) * 3).wait()

    assert "" == (tmp_path / "log").read_text()
    assert run.exit_of("driver") is None
