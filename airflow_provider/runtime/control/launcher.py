"""Launcher of one submission: starts ``spark-submit``, waits, and records its exit code.

It runs detached from the process that submitted, in a process group of its own, so the death of an
Airflow worker neither kills the driver nor loses its exit code. It holds no state: a run whose
launcher was killed goes on, and its watchers then judge by the lease, and by what it had started.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Final

from airflow_provider.runtime.base.clock import SystemClock, to_iso
from airflow_provider.runtime.base.extensions import WARM_DRIVERS, load_known
from airflow_provider.runtime.base.retry import RetryBudget
from airflow_provider.runtime.base.typed_json import read_json
from airflow_provider.runtime.control.driver_slots import (
    DriverSlot,
    SlotQueue,
    machine_limits,
    slot_folder,
)
from airflow_provider.runtime.control.submit import enter, enter_again, entered_with
from airflow_provider.runtime.errors import (
    EXIT_LEASE,
    EXIT_OK,
    ConfigError,
    RunCancelledError,
    SparkStreamError,
)
from airflow_provider.runtime.errors.explanation import HEADING
from airflow_provider.runtime.errors.redaction import redact, remember_own
from airflow_provider.runtime.jobdir.layout import directory_at
from airflow_provider.runtime.jobdir.requests import is_leaving
from airflow_provider.runtime.jobdir.submissions import ExitRecord
from airflow_provider.runtime.spark.class_archive import make_in_background
from airflow_provider.runtime.storage.local_folder import LocalFolder, open_file_at
from airflow_provider.runtime.storage.open import local_folder_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.jobdir.layout import RunDirectory

_AGAIN_S: Final = 2.0
_SLOT_POLL_S: Final = 0.5
_LAST_LINES: Final = 20
_LAST_BYTES: Final = 1 << 16  # a log may be longer than the memory


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command after ``--`` and return its exit code."""
    parser = argparse.ArgumentParser(prog="spark-stream-launcher")
    for option in ("--job-dir", "--run-id", "--driver-id", "--log"):
        parser.add_argument(option, required=True)
    parser.add_argument("--standby", type=read_json)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args(argv)
    remember_own(os.environ)
    directory = directory_at(arguments.job_dir)
    run = directory.run(arguments.run_id)
    submission = _Submission(directory.storage, run, arguments.driver_id)
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    return _look_after(submission, command, Path(arguments.log), standby=arguments.standby)


@dataclasses.dataclass(frozen=True)
class _Submission:
    """The driver that this process looks after.

    Attributes:
        requests: the job directory, where the driver gets requests.
    """

    requests: Storage
    run: RunDirectory
    driver_id: str


def _look_after(
    submission: _Submission,
    command: Sequence[str],
    log: Path,
    *,
    standby: Mapping[str, Any] | None,
) -> int:
    run, driver_id = submission.run, submission.driver_id
    if not enter(run, driver_id):
        return EXIT_LEASE  # the next try has not seen this process, and has submitted another
    with _opened_log(run, log) as output:

        def on_started(pid: int) -> None:
            with suppress(OSError):  # it runs, whether or not that can be recorded
                entered_with(run, driver_id, pid)

        taken = _hand_over(command, output, standby) if standby is not None else None
        if taken is not None:
            on_started(taken.pid)
            code = int(taken.wait())
        else:
            code = _run_in_turn(submission, command, output, on_started)
        lines = _last_lines(output)
    record = ExitRecord(exit_code=code, ended=to_iso(SystemClock().now()), last_lines=lines)
    # The storage may be what the driver has failed with.
    retries = RetryBudget(SystemClock(), every_s=_AGAIN_S)
    retries.retry(lambda: run.put_exit(driver_id, record))
    if code == EXIT_OK and "cluster" not in command:
        make_in_background()
    return code


def _opened_log(run: RunDirectory, log: Path) -> BinaryIO:
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


def _last_lines(log: BinaryIO) -> list[str]:
    log.flush()
    size = os.fstat(log.fileno()).st_size
    data = os.pread(log.fileno(), _LAST_BYTES, max(0, size - _LAST_BYTES))
    lines = redact(data.decode(errors="replace")).splitlines()
    return [line[:500] for line in lines[-_LAST_LINES:]]


def _run_in_turn(
    submission: _Submission,
    command: Sequence[str],
    output: IO[bytes],
    on_started: Callable[[int], None],
) -> int:
    """Run the command when this machine has a slot for one more local driver."""
    try:
        slot = _wait_for_slot(submission, output) if _is_local(command) else None
    except RunCancelledError as error:
        _say(output, f"{HEADING}{error}")
        return error.exit_code
    except (OSError, ConfigError) as error:
        _say(output, f"WARNING the limit of local drivers cannot be kept: {error}")
        slot = None
    over = threading.Event()
    if slot is not None:
        arguments = (submission, slot, over)
        threading.Thread(target=_share_slot, args=arguments, name="slot", daemon=True).start()
    try:
        return _run(command, output, on_started, slot.files if slot is not None else ())
    finally:
        over.set()
        if slot is not None:
            slot.close()


def _is_local(command: Sequence[str]) -> bool:
    masters = [value for option, value in itertools.pairwise(command) if option == "--master"]
    return bool(masters) and masters[-1].startswith("local")


def _wait_for_slot(submission: _Submission, output: IO[bytes]) -> DriverSlot | None:
    """Return the slot of a driver; None where nothing limits local drivers.

    Raises:
        RunCancelledError: the driver got a request to end while it waited.
        ConfigError, OSError: the slots cannot be used.
    """
    limits = machine_limits()
    if limits is None:
        return None
    run, driver_id, clock = submission.run, submission.driver_id, SystemClock()
    queue, said = SlotQueue(slot_folder(), limits, run.storage.url), ""
    try:
        while (slot := queue.take()) is None:
            if (waits := queue.describe()) != said:
                said = waits
                _say(output, f"INFO the driver waits for {waits}")
                with suppress(OSError):
                    enter_again(run, driver_id, waits_for=waits)
            if is_leaving(submission.requests, driver_id):
                msg = f"driver {driver_id} was cancelled while it waited for {said}"
                raise RunCancelledError(msg)
            clock.sleep(_SLOT_POLL_S)
    finally:
        queue.leave()
    return slot


def _share_slot(submission: _Submission, slot: DriverSlot, over: threading.Event) -> None:
    """Give the work slot back as soon as the driver is known to run until it is stopped."""
    while not over.wait(_AGAIN_S):
        with suppress(OSError, SparkStreamError):
            attempt, record = submission.run.last_attempt(), submission.run.record()
            if attempt is None or attempt.driver_id != submission.driver_id or record is None:
                continue
            if record.until == "stopped":
                slot.stop_working()
            return


def _say(output: IO[bytes], line: str) -> None:
    output.write(f"{line}\n".encode(errors="backslashreplace"))
    output.flush()


def _run(
    command: Sequence[str],
    output: IO[bytes],
    on_started: Callable[[int], None],
    files: Sequence[int],
) -> int:
    try:
        process = subprocess.Popen(
            list(command), stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=files
        )
    except OSError as error:
        output.write(f"spark-stream: error: {command[0]} could not be started: {error}\n".encode())
        return 2
    on_started(process.pid)
    return process.wait()


def _hand_over(command: Sequence[str], output: IO[bytes], standby: Mapping[str, Any]) -> Any:
    """Give the run to a warm driver, if one matches; the log says why not."""
    taken = load_known(WARM_DRIVERS, "submission")(command, output, standby)
    if not isinstance(taken, str):
        return taken
    output.write(f"no warm driver: {taken}; starting one\n".encode())
    output.flush()
    return None


if __name__ == "__main__":
    sys.exit(main())
