"""The shell over state: many questions to one Spark, in a script and on a terminal."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from streams import SUSPEND, write_events

from airflow_provider.extensions.state_tools.open_state import open_state
from airflow_provider.extensions.state_tools.state_shell import SparkThread, StateShell
from tests.pipes import stdin_of, stdout_of

pytestmark = pytest.mark.spark

COUNT = "SELECT count(*) AS n FROM out.keyed_state"
LONG = "SELECT sum(hash(id)) AS n FROM range(0, 10000000000000)"
DEADLINE_S = 120.0


@pytest.fixture
def job(spark, place) -> Any:
    """A job of windows that is suspended with three of them open."""
    write_events(place.input, [(1, "a", 1), (2, "b", 2), (12, "a", 3)])
    place.run(spark, "tumbling_window", **SUSPEND)
    return place


def asked(place: Any, *lines: str, **how: Any) -> tuple[bool, StateShell]:
    with SparkThread([]) as spark:
        shell = StateShell(open_state(str(place.job_dir)), spark, **how)
        return shell.answer_all(iter(f"{line}\n" for line in lines)), shell


def test_a_script_asks_many_questions_and_an_error_is_one_line(job, spark, capsys):
    """
    Each question is answered by the same session; one that Spark does not understand, or a command
    that there is not, is one line, and the next one is answered.
    """
    lines = [
        ".tables",
        ".schema OUT.KEYED_STATE",
        f"{COUNT};",
        "SELECT k, count",
        "  FROM keyed_state WHERE k = 'b';",
        "SELEC 1;",
        "SELECT * FROM nothing;",
        ".dance",
        ".schema nothing",
        ".format json",
        COUNT,
    ]

    well, shell = asked(job, *lines)

    out, err = capsys.readouterr()
    shown = out.splitlines()
    assert not well
    assert ["out.sources", "out.keyed_state", "out.keyed_state"] == shown[:3]
    assert ["  window struct<start:timestamp,end:timestamp>", "  k string"] == shown[3:5]
    assert ["n", "3", "k  count", "b  1", '{"n":3}'] == shown[shown.index("n") :]
    said = err.splitlines()
    assert 4 == len(said)
    assert said[0].startswith("error: SQL: [PARSE_SYNTAX_ERROR]")
    assert "The tables there: out.sources, out.keyed_state" in said[1]
    assert said[2].startswith("error: .dance: no such command; .tables, .schema")
    assert "error: no table 'nothing'; the tables: out.sources, out.keyed_state" == said[3]
    assert {"out.keyed_state", "count", ".refresh"} <= set(shell.words())


def test_a_job_that_goes_on_is_looked_at_again(job, spark, capsys):
    """
    The answers stay those of the batch that was there; .refresh takes the last one, and an error
    says so when there is a later one.
    """
    with SparkThread([]) as thread:
        shell = StateShell(open_state(str(job.job_dir)), thread, output="json")
        assert shell.answer_all(iter([f"{COUNT};"]))
        write_events(job.input, [(13, "c", 4)], first=1)
        job.run(spark, "tumbling_window", **SUSPEND)
        assert shell.answer_all(iter([f"{COUNT};"]))
        assert not shell.answer_all(iter(["SELEC 1;"]))
        assert shell.answer_all(iter([".refresh", f"{COUNT};", ".quit", "SELEC 2;"]))

    out, err = capsys.readouterr()
    assert ['{"n":3}', '{"n":3}', '{"n":4}'] == [x for x in out.splitlines() if x[0] == "{"]
    assert re.search(r"^query out: after batch \d+, watermark 2026-01-01T00:00:", out, re.MULTILINE)
    assert [err.strip()] == err.splitlines()
    assert err.strip().endswith("; the job has gone on: .refresh")


@pytest.fixture
def interruptible():
    """Have Python's own handler of SIGINT: a run in this process may have left another."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_question_that_takes_long_can_be_interrupted(spark, job, interruptible):
    """
    Ctrl-C stops what Spark does for the question, and the next question has an answer.
    """
    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getActiveJobsIds())  # what other tests have left

    def interrupt() -> None:
        while set(tracker.getActiveJobsIds()) <= before:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    with SparkThread([]) as thread:
        thread.call(lambda session: session.range(1).count())
        threading.Thread(target=interrupt, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            thread.call(lambda session: session.sql(LONG).collect())

        assert set(tracker.getActiveJobsIds()) <= before
        assert 1 == thread.call(lambda session: session.range(1).count())


# --- the command --------------------------------------------------------------------------------


def command(place: Any, *more: str) -> list[str]:
    program = [sys.executable, "-m", "airflow_provider.runtime.cli"]
    return [
        *program,
        "state",
        "shell",
        str(place.job_dir),
        "--conf",
        "spark.master=local[2]",
        *more,
    ]


@pytest.mark.whole
def test_a_script_is_piped_in_and_its_reader_may_leave(job):
    """
    A pipe gets answers and no prompt; the exit code says whether each was given; who reads no
    further gets no complaint.
    """
    script = f"{COUNT};\nSELECT * FROM nothing;\n"
    ran = subprocess.run(
        command(job, "--format", "json"), input=script, capture_output=True, text=True, check=False
    )
    assert (2, {"n": 3}) == (ran.returncode, json.loads(ran.stdout))
    assert 1 == len([line for line in ran.stderr.splitlines() if line.startswith("error:")])

    with subprocess.Popen(
        command(job),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as left:
        stdin_of(left).write("SELECT id FROM range(1000);\n" * 200)
        assert "id\n" == stdout_of(left).readline()
        stdout_of(left).close()
        stdin_of(left).close()
        assert left.stderr is not None
        complaint = left.stderr.read()
    assert (0, False) == (left.returncode, "BrokenPipe" in complaint or "Traceback" in complaint)


class Terminal:
    """A process on a terminal of its own."""

    def __init__(self, command: list[str], **environ: str) -> None:
        self._pid, self._side = pty.fork()
        if self._pid == 0:
            os.execve(command[0], command, {**os.environ, **environ})  # noqa: S606 - its own command
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self._side, text.encode())

    def until(self, pattern: str) -> str:
        """Return what is shown up to a pattern, since the last one."""
        deadline = time.monotonic() + DEADLINE_S
        while not (found := re.search(pattern, self.shown)):
            assert time.monotonic() < deadline, self.shown
            if select.select([self._side], [], [], 1.0)[0]:
                with contextlib.suppress(OSError):
                    self.shown += os.read(self._side, 4096).decode()
        before, self.shown = self.shown[: found.end()], self.shown[found.end() :]
        return before

    def code(self) -> int:
        """Return the exit code; what is still shown is read meanwhile."""
        while True:
            try:
                if not os.read(self._side, 4096):
                    break
            except OSError:
                break
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])


@pytest.fixture
def terminal(job, tmp_path) -> Iterator[Terminal]:
    found = Terminal(command(job), XDG_STATE_HOME=str(tmp_path / "home"), TERM="dumb")
    yield found
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(found._pid, signal.SIGKILL)


@pytest.mark.whole
def test_a_terminal_has_a_prompt_and_ctrl_c_ends_the_question_only(terminal, tmp_path):
    """
    Commands are answered while Spark starts; Ctrl-C drops a statement that is being written, and
    stops one that runs; Ctrl-D leaves; the questions are kept for the next shell.
    """
    assert "after batch" in terminal.until("state> ")
    terminal.type(".tables\n")
    assert "out.keyed_state" in terminal.until("out.keyed_state\r\nstate> ")
    terminal.type("SELECT 1\n")
    terminal.until(r"\.\.\.> ")
    terminal.type("\x03")
    terminal.until("state> ")
    began = time.monotonic()
    terminal.type(f"{COUNT};\n")
    assert "3" in terminal.until(r"\nn\r\n3\r\nstate> ")
    first_s, began = time.monotonic() - began, time.monotonic()
    terminal.type(f"{COUNT};\n")
    terminal.until(r"\nn\r\n3\r\nstate> ")
    print(f"first answer {first_s:.2f} s, later {time.monotonic() - began:.2f} s")
    terminal.type(f"{LONG};\n")
    terminal.until("range")
    time.sleep(3)
    terminal.type("\x03")
    terminal.until("state> ")
    terminal.type(f"{COUNT};\n")
    terminal.until(r"\nn\r\n3\r\nstate> ")
    terminal.type("\x04")

    assert 0 == terminal.code()
    kept = tmp_path / "home" / "spark-stream" / "questions"
    assert f"{COUNT};" in kept.read_text()
    assert 0o600 == kept.stat().st_mode & 0o777
