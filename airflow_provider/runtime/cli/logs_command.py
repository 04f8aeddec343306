"""``spark-stream logs``: what the drivers of a run have written, as it is or as it grows."""

from __future__ import annotations

import contextlib
import shutil
import sys
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.base.names import check_name
from airflow_provider.runtime.cli.command_parser import add_job_dir
from airflow_provider.runtime.errors import EXIT_OK, UnknownJobError
from airflow_provider.runtime.jobdir.layout import known_or_submitted_job
from airflow_provider.runtime.jobdir.runs import newest_run
from airflow_provider.runtime.observe.observer import RunWatcher
from airflow_provider.runtime.observe.state import RunState
from airflow_provider.runtime.storage.local_folder import NotAFileError, open_file
from airflow_provider.runtime.storage.open import local_folder_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.jobdir.layout import JobDirectory, RunDirectory

_SPARK: Final = ".spark.log"
_EVERY_S: Final = 0.5
_AT_WORK: Final = frozenset({RunState.RUNNING, RunState.STARTING})


def add_commands(commands: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command; see :class:`~.api.commands.CommandModule`."""
    text = "print the log of a run's last driver"
    logs = add(commands, "logs", _logs, text)
    add_job_dir(logs)
    logs.add_argument("--run-id", metavar="ID", help="default: the newest run")
    text = "what Spark itself has logged, which is all there is of a run from a shell"
    logs.add_argument("--spark", dest="is_of_spark", action="store_true", help=text)
    text = "go on while a driver is at work on the run"
    logs.add_argument("-f", "--follow", action="store_true", help=text)


def _logs(arguments: argparse.Namespace) -> int:
    directory, submitted = known_or_submitted_job(arguments.job_dir)
    run = _run_of(directory, arguments.run_id or submitted)
    with _newest_log(directory, run, is_spark=arguments.is_of_spark) as file:
        shutil.copyfileobj(file, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        if arguments.follow:
            with contextlib.suppress(KeyboardInterrupt):  # so a person ends it
                _follow(file, RunWatcher(directory.storage, run.run_id, SystemClock()))
    return EXIT_OK


def _run_of(directory: JobDirectory, run_id: str | None) -> RunDirectory:
    if run_id is not None:
        return directory.run(check_name(run_id, what="run id"))
    newest = newest_run(directory)
    if newest is None:
        msg = f"{directory.url}: no run of this job has begun, so nothing is logged"
        raise UnknownJobError(msg)
    return directory.run(newest.run_id)


def _newest_log(directory: JobDirectory, run: RunDirectory, *, is_spark: bool) -> BinaryIO:
    """Open the log of the run's last driver; nothing outside the run's folder is read.

    Raises:
        UnknownJobError: there is none here.
    """
    folder = local_folder_of(run.storage)
    if folder is None:
        logs = [each.log for each in run.submissions() if each.log is not None]
        where = f"; the last one is {logs[-1]} on the machine that submitted it" if logs else ""
        msg = f"{directory.url}: drivers of a job in a store log on their own machine{where}"
        raise UnknownJobError(msg)
    drivers = [attempt.driver_id for attempt in run.attempts()]
    drivers += [each.driver_id for each in run.submissions() if each.driver_id not in drivers]
    for driver in reversed(drivers):
        log = f"logs/{driver}{_SPARK if is_spark else '.log'}"
        try:
            return open(open_file(folder, log), "rb")
        except (FileNotFoundError, NotADirectoryError, NotAFileError):
            continue
        except OSError as error:
            msg = f"{folder.path}/{log}: {error.strerror}"
            raise UnknownJobError(msg) from error
    other = "" if is_spark else "; --spark prints what Spark has logged"
    msg = (
        f"{directory.url}: no driver of run {run.run_id!r} has left such a log here; a driver "
        f"that was started on a command line logs to its terminal{other}"
    )
    raise UnknownJobError(msg)


def _follow(file: BinaryIO, watcher: RunWatcher, clock: Clock | None = None) -> None:
    clock = clock or SystemClock()
    while True:
        # Asked first: what is written after the driver's end was written before this look.
        is_at_work = watcher.decide(watcher.look()).run_state in _AT_WORK
        shutil.copyfileobj(file, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        if not is_at_work:
            return
        clock.sleep(_EVERY_S)
