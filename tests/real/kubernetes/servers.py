"""Servers of a cluster as processes of their own, that can be killed and started again."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

START_S = 90.0
POLL_S = 0.1
LOG_END = 3000


def await_that(what: str, is_true: Callable[[], bool], *, within: float = START_S) -> None:
    """Wait until it is true; fail with *what* after the deadline."""
    deadline = time.monotonic() + within
    while not is_true():
        assert time.monotonic() < deadline, f"not within {within:.0f} s: {what}"
        time.sleep(POLL_S)


class Server:
    """One program with its log.

    Args:
        name: of its log.
        folder: of its log, and its working directory.
        program: the executable.
        options: become ``--name=value``.
        environ: is added to that of this process.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        program: Path,
        options: Mapping[str, object],
        *,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self._folder = name, folder
        self._command = [str(program), *(f"--{key}={value}" for key, value in options.items())]
        self._environ = {**os.environ, **(environ or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        return (self._folder / f"{self.name}.log").read_text(errors="replace")

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        with (self._folder / f"{self.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, cwd=self._folder, env=self._environ
            )

    def await_ready(self, is_ready: Callable[[], bool]) -> None:
        """Wait until it is ready; fail with the end of its log."""

        def is_there() -> bool:
            assert self.is_alive, f"{self.name} has ended: {self.log[-LOG_END:]}"
            return is_ready()

        try:
            await_that(f"{self.name} is ready", is_there)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log[-LOG_END:]}") from None

    def kill(self) -> None:
        """End the process as a machine does that fails."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def run(command: Sequence[str], *, environ: Mapping[str, str] | None = None) -> str:
    """Run a command to its end, and return what it prints."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **(environ or {})},
    )
    assert 0 == done.returncode, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout
