"""Launcher ``spark-submit``: a detached process on this machine, for any of Spark's masters."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, ClassVar

from airflow_provider.runtime.api.launchers import Handle, LaunchState, LaunchStatus, LogPart
from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.base.extensions import WARM_DRIVERS, load_known
from airflow_provider.runtime.base.host import identify, module_command
from airflow_provider.runtime.base.runtime_zip import APPLICATION
from airflow_provider.runtime.base.service_answers import reason_in
from airflow_provider.runtime.errors import LauncherAwayError
from airflow_provider.runtime.jobdir.submissions import ProcessRecord
from airflow_provider.runtime.spark.installation import check_java
from airflow_provider.runtime.storage.local_folder import LocalFolder, open_file_at
from airflow_provider.runtime.storage.open import local_folder_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow_provider.runtime.api.launchers import Application
    from airflow_provider.runtime.jobdir.layout import RunDirectory


_PROCESS: str = "airflow_provider.runtime.control.launcher"
_PART_BYTES = 1 << 16


def opened_log(run: RunDirectory, log: Path) -> BinaryIO:
    """Open the log to append to it and to read it; below the job directory no link is followed.

    What becomes of the log's end is in a document, which more users may read than the log's file.

    Raises:
        NotAFileError: a symbolic link is on the way.
    """
    directory = local_folder_of(run.storage)
    folder = None
    if directory is not None:
        folder = LocalFolder(str(Path(directory.root).resolve()), directory.inside).at("logs")
    if folder is None or folder.path != str(log.parent):  # Airflow's own folder
        log.parent.mkdir(parents=True, exist_ok=True)
        folder = LocalFolder(str(log.parent))
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
    with folder.opened(make=True) as above:
        return open(open_file_at(above, log.name, where=str(log), flags=flags), "a+b")


@dataclasses.dataclass(frozen=True)
class WarmSettings:
    """What a warm driver needs to know of a submission, beside the command."""

    master: str
    conf: Mapping[str, str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SparkSubmitLauncher:
    """Runs ``spark-submit`` on this machine, whatever the master and the deploy mode."""

    run: RunDirectory
    job_dir: str
    log_file: Path
    command: Callable[[Application], Sequence[str]]
    warm: WarmSettings | None = None
    environment: Mapping[str, str] = dataclasses.field(default_factory=lambda: dict(os.environ))

    kind: ClassVar[str] = "spark-submit"

    def check(self) -> None:
        """Refuse a machine without Java, which ``spark-submit`` needs in each deploy mode."""
        check_java(self.environment)

    def submit(self, application: Application, token: str) -> Handle:
        """Start the process that looks after the driver, unless it was started; return immediately.

        Crash safety: the process itself records that it runs; of two one continues.
        Idempotent: by *token*.
        """
        handle = Handle(driver_id=token, launcher=self.kind, id=token)
        if self.run.process_of(token) is not None:
            return handle
        command = self.command(application)
        if self.warm is None or not self._hand_over(command, token, self.warm):
            self._start(command, token)
        failpoints.hit("submission.launched")
        return handle

    def poll(self, handle: Handle) -> LaunchStatus:
        try:
            ended = self.run.exit_of(handle.driver_id)
            process = self.run.process_of(handle.driver_id)
        except OSError as error:
            return LaunchStatus(
                LaunchState.UNKNOWN, None, f"{self.job_dir} cannot be read: {error}"
            )
        if ended is not None:
            return LaunchStatus(
                LaunchState.ENDED, ended.exit_code, reason_in(tuple(ended.last_lines))
            )
        if process is None:
            known = self.run.storage.list("submissions")
            is_known = f"{handle.driver_id}.json" in known
            return LaunchStatus(LaunchState.QUEUED if is_known else LaunchState.GONE)
        if process.is_revoked:
            return LaunchStatus(
                LaunchState.GONE, None, "the submission was revoked before it began"
            )
        if process.identity.is_gone():
            return LaunchStatus(LaunchState.GONE, None, "its processes have ended without a word")
        return LaunchStatus(LaunchState.RUNNING)

    def end(self, handle: Handle) -> None:
        """End the processes that were started; the launcher process then records how they ended.

        Raises:
            LauncherAwayError: it is just coming up, or on another machine.

        Idempotent: by the handle.
        """
        nobody = ProcessRecord(identity=identify([]), is_revoked=True)
        name = f"submissions/{handle.driver_id}.process.json"
        if self.run.exit_of(handle.driver_id) or nobody.put_if_absent(self.run.storage, name):
            return
        process = self.run.process_of(handle.driver_id)
        if process is None or process.is_revoked or process.identity.is_gone():
            return
        started = process.identity.processes[1:]  # the first one looks after it
        if not started or identify([pid for pid, _ in started]).space != process.identity.space:
            raise LauncherAwayError(
                f"driver {handle.driver_id} is coming up, or on {process.identity.host}"
            )
        for pid, start in started:
            if (pid, start) in identify([pid]).processes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)

    def log(self, handle: Handle, offset: int = 0) -> LogPart:
        """Return the next whole lines of the log file; *handle* is one of this launcher's."""
        try:
            with self.log_file.open("rb") as file:
                file.seek(offset)
                data = file.read(_PART_BYTES)
        except FileNotFoundError:
            return LogPart((), offset)
        end = data.rfind(b"\n") + 1
        lines = (line.decode(errors="replace") for line in data[:end].splitlines())
        return LogPart(tuple(lines), offset + end)

    def _hand_over(self, command: Sequence[str], token: str, warm: WarmSettings) -> bool:
        """Give the run to a warm driver, which looks after itself; return whether one took it."""
        application = next(i for i, part in enumerate(command) if part.endswith(APPLICATION))
        with opened_log(self.run, self.log_file) as output:
            reason = load_known(WARM_DRIVERS, "submission")(
                command[application + 1 :],
                (self.job_dir, self.run.run_id, token),
                output,
                master=warm.master,
                conf=warm.conf,
                environment=self.environment,
            )
            if reason is not None:
                output.write(f"no warm driver: {reason}; starting one\n".encode())
        return reason is None

    def _start(self, command: Sequence[str], token: str) -> None:
        options = ["--job-dir", self.job_dir, "--run-id", self.run.run_id]
        options += ["--driver-id", token, "--log", str(self.log_file)]
        process = subprocess.Popen(
            [*module_command(_PROCESS), *options, "--", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # neither the worker's death nor its signals reach the driver
            env=dict(self.environment),
        )
        # A process that outlives it must not leave it a zombie; no other code waits for it.
        threading.Thread(target=process.wait, name="reaper", daemon=True).start()
