"""Operators that run a command of ``spark-stream`` in the worker, without a driver of their own."""

from __future__ import annotations

import subprocess
import threading
from typing import IO, TYPE_CHECKING, Any, Final

from airflow.sdk import BaseOperator

from airflow_provider.runtime.base.host import module_command

if TYPE_CHECKING:
    from collections.abc import Sequence

_CLI: Final = "airflow_provider.runtime.cli"


class CommandOperator(BaseOperator):
    """Runs one command as a process of its own; a killed task ends it."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._process: subprocess.Popen[str] | None = None

    def on_kill(self) -> None:
        """End the command, which cleans up, or is completed by the next one."""
        if self._process is not None:
            self._process.terminate()

    def run_command(self, arguments: Sequence[str]) -> tuple[int, str, str]:
        """Return the exit code, what was printed, and the last line of the log."""
        lines = [""]
        command = [*module_command(_CLI), *arguments]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            self._process = process
            log = threading.Thread(target=self._log_lines, args=(process.stderr, lines))
            log.start()
            said = process.stdout.read() if process.stdout is not None else ""
            log.join()
        return process.returncode, said, lines[-1]

    def _log_lines(self, stream: IO[str], lines: list[str]) -> None:
        for line in stream:
            self.log.info("%s", line.rstrip())
            lines[:] = [line.strip()] if line.strip() else lines
