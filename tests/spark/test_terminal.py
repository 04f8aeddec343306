"""``spark-stream run`` on a terminal of 80 and of 200 columns, as a person sees it at each moment."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.errors import EXIT_OK
from tests.screens import Screen

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.whole]

ROOT = Path(__file__).parents[2]
DEADLINE_S = 150.0
FILES = 5
MOST_LINES = 15
# The worker and the job write by themselves, the JVM does so when it starts.
JOB = """
import sys, time
from pyspark.sql import functions as F
from airflow_provider.runtime import files

def slow(value):
    time.sleep(0.05)
    if value % 10 == 0:
        sys.stderr.write(f"a worker says {value}\\n")  # one write: workers share what Spark reads
    return value

def sums(ctx):
    print("the job is declared")
    rows = ctx.read("events", format="json", path=ctx.params["input"], schema="at timestamp, value long",
                    options={"maxFilesPerTrigger": "1"}, bounded=True, watermark=("at", "1 second"))
    value = F.udf(slow, "long")("value")
    sums = rows.withColumn("value", value).groupBy(F.window("at", "1 minute")).agg(F.sum("value"))
    ctx.write("sums", sums, to=files(ctx.params["output"]))
"""
# What may stand on the screen: one pattern for each that writes.
BLOCK = r"(starting|reading|draining|committing|finished|failed) · attempt \d+( · .+)?"
WHOLE = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC (INFO|WARNING) \w+.*"
    r"|WARNING: Using incubator modules: jdk.incubator.vector|WARNING: .*"
    r"|the job is declared|a worker says \d+"
    rf"|{BLOCK}|sums  \w+(  \S.*)?|  \S.*"
    rf"|FINISHED: run \S+, attempt \d+, [\d.]+ s: {10 * FILES} rows in, {FILES} out, 0 late"
)


def unwrapped(lines: list[str], columns: int) -> Iterator[str]:
    """Yield the lines as they were written: one that fills its row goes on in the next."""
    line = ""
    for row in lines:
        line += row
        if len(row) < columns - 1:  # a blank at its end is not seen
            yield line
            line = ""
    if line:
        yield line


def torn_in(lines: list[str], columns: int) -> list[str]:
    """Return what is no whole line of anybody, and blocks that are not the last one."""
    found = list(unwrapped(lines, columns))
    torn = [line for line in found if line and not WHOLE.fullmatch(line)]
    blocks = [n for n, line in enumerate(found) if re.fullmatch(BLOCK, line)]
    return torn + [found[n] for n in blocks[:-1]]


class Terminal:
    """A terminal in which one command runs.

    Args:
        folder: of the job, its input and its output.
        columns: how wide it is.
    """

    def __init__(self, folder: Path, columns: int, *options: str) -> None:
        self.torn: list[str] = []
        self.shows: set[str] = set()
        self.screen = Screen(columns, looks=self._look)
        self._command = [
            *(sys.executable, "-m", "airflow_provider.runtime.cli", "run", str(folder / "job")),
            *("--entry", f"{folder / 'sums.py'}:sums", "--param", f"input={folder / 'input'}"),
            *("--param", f"output={folder / 'output'}", "--master", "local[2]", *options),
        ]

    def _look(self, lines: list[str]) -> None:
        # The last row may be of a write that has come in part.
        self.torn += torn_in(lines[:-1], self.screen.columns)
        self.shows.update(lines)

    @contextlib.contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        ends = (self.screen.terminal,) * 3
        environ = {**os.environ, "TERM": "xterm", "PYTHONPATH": str(ROOT)}
        with self.screen:
            process = subprocess.Popen(
                self._command, stdin=ends[0], stdout=ends[1], stderr=ends[2], env=environ
            )
            try:
                yield process
            finally:
                process.kill()
                process.wait()

    def wait_for(self, text: str, process: subprocess.Popen[bytes]) -> None:
        clock = SystemClock()
        deadline = clock.monotonic() + DEADLINE_S
        while not any(text in line for line in list(self.shows)):
            assert process.poll() is None, self.screen.lines()
            assert clock.monotonic() < deadline, self.screen.lines()
            clock.sleep(0.1)


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "input").mkdir()
    (tmp_path / "sums.py").write_text(JOB)
    for number in range(FILES):
        events = [
            {"at": f"2026-01-01T00:{number:02}:{n:02}Z", "value": 10 * number + n}
            for n in range(10)
        ]
        text = "".join(f"{json.dumps(event)}\n" for event in events)
        file = tmp_path / "input" / f"{number}.json"
        file.write_text(text)
        os.utime(file, (number + 1,) * 2)  # by which Spark orders what it reads
    return tmp_path


def check_screen(terminal: Terminal, *, is_over: bool) -> None:
    """Compare what was seen with what a person expects."""
    assert [] == terminal.torn[:3]
    written = list(unwrapped(terminal.screen.lines(), terminal.screen.columns))
    print(f"--- {terminal.screen.columns} columns, {len(written)} lines", *written, sep="\n")
    ours = [line for line in written if not line.startswith(("a worker", "the job is"))]
    if is_over:
        assert len(ours) <= MOST_LINES
        assert not any(re.fullmatch(BLOCK, line) for line in ours)
        assert ours[-1].startswith("  sums -> files:")


@pytest.mark.parametrize("columns", [80, 200])
def test_no_line_is_torn_at_a_start_a_kill_and_a_resume(folder, columns):
    """Two processes: one is killed while it reads, the other one resumes the run and ends it."""
    first = Terminal(folder, columns, "--mode", "streaming")
    with first.running() as process:
        first.wait_for("· batch 1", process)
    check_screen(first, is_over=False)

    second = Terminal(folder, columns, "--mode", "streaming")
    with second.running() as process:
        assert EXIT_OK == process.wait(DEADLINE_S)
    check_screen(second, is_over=True)
    assert any(re.search(r"files to read|\d+ % of|█", line) for line in first.shows | second.shows)
    assert any("attempt 2" in line for line in second.shows)


@pytest.mark.parametrize("columns", [80, 200])
def test_a_batch_job_shows_its_tasks_on_a_terminal(folder, columns):
    """A bar of stages and tasks while it runs, and the summary at its end."""
    terminal = Terminal(folder, columns, "--mode", "batch")
    with terminal.running() as process:
        assert EXIT_OK == process.wait(DEADLINE_S)
    check_screen(terminal, is_over=True)
    assert any(re.search(r"stage \d of \d, \d+ of \d+ tasks", line) for line in terminal.shows)
