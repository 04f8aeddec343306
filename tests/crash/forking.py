"""Processes that die at failpoints, forked from one that has imported what they need.

Each of the hundreds is as real as one that begins with Python; only nobody waits a second for its
imports. ``python -m tests.crash.forking`` reads what to do from its input, a JSON document a line.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[2]


def run_forked(module: str, *arguments: str, dies_at: str = "") -> tuple[int, str]:
    """Call ``main(*arguments)`` of a module in a process of its own.

    Args:
        module: its full name.
        arguments: what its ``main`` is given.
        dies_at: the failpoint that is armed in the process.

    Returns:
        The exit code, negative for a signal, and what the process wrote to stderr.
    """
    server = _server()
    ask = {"module": module, "arguments": arguments, "dies_at": dies_at}
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(ask) + "\n")
    server.stdin.flush()
    exit_code, errors = json.loads(server.stdout.readline())
    return exit_code, errors


@functools.cache
def _server() -> subprocess.Popen[str]:
    """Start the process that forks; it ends with whoever has started it."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.crash.forking"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _act(module: str, arguments: list[str], dies_at: str, stderr: int) -> NoReturn:
    os.dup2(stderr, 2)
    if dies_at:
        os.environ["SPARK_STREAM_FAILPOINT"] = dies_at
    try:
        sys.modules[module].main(*arguments)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def serve() -> None:
    """Do what is asked for, each in a process of its own, until there is no more input."""
    for line in sys.stdin:
        ask = json.loads(line)
        importlib.import_module(ask["module"])
        with tempfile.TemporaryFile() as stderr:
            pid = os.fork()
            if pid == 0:
                _act(**ask, stderr=stderr.fileno())
            _, status = os.waitpid(pid, 0)
            stderr.seek(0)
            told = stderr.read().decode(errors="replace")
        print(json.dumps([os.waitstatus_to_exitcode(status), told]), flush=True)


if __name__ == "__main__":
    serve()
