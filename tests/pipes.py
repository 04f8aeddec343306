"""The ends of the pipes to a process that was started with pipes."""

from __future__ import annotations

import subprocess
from typing import IO, AnyStr


def stdin_of(process: subprocess.Popen[AnyStr]) -> IO[AnyStr]:
    assert process.stdin is not None, "the process was started without a pipe to its input"
    return process.stdin


def stdout_of(process: subprocess.Popen[AnyStr]) -> IO[AnyStr]:
    assert process.stdout is not None, "the process was started without a pipe from its output"
    return process.stdout
