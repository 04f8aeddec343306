"""Exit codes of ``spark-stream`` processes whose user's code ends them in its own way."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider.runtime.cli import main
from airflow_provider.runtime.cli.command_process import runs_code
from airflow_provider.runtime.errors import EXIT_RETRY, EXIT_USAGE

ROOT = Path(__file__).parents[2]
BY_ITSELF = "has ended the process of this command by itself"
ENDS = {
    "os._exit": ("import os; os._exit(0)", EXIT_RETRY, BY_ITSELF),
    "os._exit with a code that means something": ("import os; os._exit(2)", EXIT_RETRY, BY_ITSELF),
    "_exit in native code": ("import ctypes; ctypes.CDLL(None)._exit(0)", EXIT_RETRY, BY_ITSELF),
    "exec": ("import os; os.execv('/bin/true', ['true'])", EXIT_RETRY, BY_ITSELF),
    "SIGKILL to itself": ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL, ""),
    "a segmentation fault": ("import ctypes; ctypes.string_at(0)", -signal.SIGSEGV, ""),
    "a hook at exit": (
        "import atexit, os\natexit.register(os._exit, 0)\nraise ValueError('no')",
        EXIT_USAGE,
        "ValueError: no",
    ),
    "sys.exit": ("import sys; sys.exit(0)", EXIT_USAGE, "SystemExit"),
    "a closed pipe": ("import os; os.closerange(3, 64); os._exit(0)", EXIT_RETRY, BY_ITSELF),
    "a child that stays": (
        "import os, time\nif os.fork(): os._exit(0)\ntime.sleep(60)",
        EXIT_RETRY,
        BY_ITSELF,
    ),
}


def command(folder: Path, code: str) -> subprocess.Popen[bytes]:
    """Start a run of a job whose file does *code* when it is imported, before Spark starts."""
    (folder / "job.py").write_text(f"{code}\n\ndef job(ctx): ...\n", encoding="utf-8")
    with (folder / "errors").open("wb") as errors:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "airflow_provider.runtime.cli"),
                *("run", str(folder / "job"), "--entry", f"{folder}/job.py:job"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={**os.environ, "PYTHONPATH": str(ROOT), "SPARK_STREAM_CACHE": "off"},
            start_new_session=True,
        )


def test_each_command_that_calls_a_jobs_function_runs_apart():
    """Each with an argument for the job's function, whatever else it does."""

    def with_entry(parser: argparse.ArgumentParser, above: str = "") -> Iterator[str]:
        if any(action.dest == "entry" for action in parser._actions):
            yield above
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, child in action.choices.items():
                    yield from with_entry(child, above or name)

    found = set(with_entry(main._parser("spark-stream", "", ())))
    assert {"replay", "rewind", "run", "savepoint"} <= found
    assert [] == sorted(name for name in found if not runs_code([name]))


@pytest.mark.slow
@pytest.mark.parametrize("way", ENDS)
def test_an_exit_code_of_zero_is_not_the_users_to_give(tmp_path, way):
    """
    However a job's code leaves, the command says 0 only of a run that it has seen to its end.
    """
    code, exit_code, words = ENDS[way]
    process = command(tmp_path, code)
    try:
        returned = process.wait(60)
    finally:
        with contextlib.suppress(ProcessLookupError):  # of a child that stays
            os.killpg(process.pid, signal.SIGKILL)
    errors = (tmp_path / "errors").read_text()

    assert exit_code == returned, errors
    assert words in errors


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda each: each.name)
def test_who_kills_the_command_kills_what_it_runs(tmp_path, number):
    """A signal that only the command's process gets ends the process of the user's code as well."""
    mark = tmp_path / "pid"
    code = f"import os, pathlib, time\npathlib.Path({str(mark)!r}).write_text(str(os.getpid()))"
    process = command(tmp_path, f"{code}\ntime.sleep(60)")
    _await(lambda: mark.exists() and bool(mark.read_text()))

    process.send_signal(number)

    assert -number == process.wait(60)
    _await(lambda: not Path(f"/proc/{mark.read_text()}").exists())


def _await(is_true) -> None:
    deadline = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.01)
