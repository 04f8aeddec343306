"""Commands that end a job, put it in order, rewind it, and explain a checkpoint of Spark."""

from __future__ import annotations

import contextlib
import shutil
import sys
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from airflow_provider.runtime.base.clock import SystemClock, parse_duration
from airflow_provider.runtime.base.names import check_name
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs, describe_checkpoint
from airflow_provider.runtime.checkpoint.offsets import plan_drain_batch
from airflow_provider.runtime.cli.command_parser import (
    JOB_DIR,
    add_accept_lost_input,
    add_entry_and_conf,
    add_job_dir,
    add_json,
)
from airflow_provider.runtime.cli.output import print_json
from airflow_provider.runtime.control.stop import request_stop, savepoint_address
from airflow_provider.runtime.errors import EXIT_OK, SparkStreamError, UnknownJobError
from airflow_provider.runtime.jobdir.end_of_input import check_of_no_job
from airflow_provider.runtime.jobdir.layout import known_job, known_or_submitted_job
from airflow_provider.runtime.jobdir.lease import TAKEABLE, LeaseObserver
from airflow_provider.runtime.jobdir.requests import put_cancel, read_reply
from airflow_provider.runtime.jobdir.run_spec import parse_pairs
from airflow_provider.runtime.jobdir.runs import newest_run
from airflow_provider.runtime.observe.observer import RunWatcher
from airflow_provider.runtime.storage.local_folder import NotAFileError, open_file
from airflow_provider.runtime.storage.open import local_folder_of, open_storage

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.jobdir.layout import JobDirectory, RunDirectory


def add_commands(commands: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the commands; see :data:`.api.commands.COMMANDS`."""
    _add_stop(commands, add)
    _add_repairs(commands, add)
    _add_checkpoint(commands, add)
    _add_logs(commands, add)


_LAST_ENTRY: Final = "the job's function; default: the last run's"
_CANCEL_TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT: Final = "10 minutes"


def _add_stop(commands: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
    text = "stop a run after its batch in flight, with a final checkpoint"
    stop = add(commands, "stop", _stop, text)
    add_job_dir(stop)
    stop.add_argument("--drain", action="store_true", help="end permanently: flush all state")
    stop.add_argument("--savepoint", metavar="NAME|URL", help="take a savepoint after the stop")
    stop.add_argument(
        "--aligned-timeout",
        metavar="DURATION",
        help="the longest wait for the batch in flight; then it is cut short, and runs again "
        "when the job resumes (default: until it ends)",
    )
    text = "how long this command waits for the stop (default: %(default)s)"
    stop.add_argument("--timeout", metavar="DURATION", default=_STOP_TIMEOUT, help=text)
    add_json(stop)
    text = "end a job's driver without waiting for its batch; the run can be resumed"
    cancel = add(commands, "cancel", _cancel, text)
    add_job_dir(cancel)


def _stop(arguments: argparse.Namespace) -> int:
    clock = SystemClock()
    aligned, timeout = arguments.aligned_timeout, arguments.timeout
    timeout_s = parse_duration(timeout, name="--timeout")
    url = known_job(arguments.job_dir).url
    call = request_stop(
        url,
        clock,
        drain=arguments.drain,
        savepoint=savepoint_address(url, arguments.savepoint),
        aligned_timeout_s=parse_duration(aligned, name="--aligned-timeout") if aligned else None,
    )
    answer = call.wait(clock, timeout_s)
    if arguments.json:
        print_json({"run_id": call.run_id, **answer.to_dict()})
    else:
        saved = f", savepoint {answer.savepoint}" if answer.savepoint else ""
        print(f"{call.job_dir}: run {call.run_id} is {answer.outcome}{saved}")
    return EXIT_OK


def _cancel(arguments: argparse.Namespace) -> int:
    directory = known_job(arguments.job_dir)
    clock = SystemClock()
    observer = LeaseObserver(directory.storage, clock)
    lease, liveness = observer.settle()
    if lease is None or liveness in TAKEABLE:
        raise UnknownJobError(
            f"{directory.url}: no driver is running this job, so there is nothing to cancel"
        )
    request = put_cancel(directory.storage, lease.driver_id, clock)
    deadline = clock.monotonic() + _CANCEL_TIMEOUT_S
    while clock.monotonic() < deadline:
        _, liveness = observer.look()
        answer = read_reply(directory.storage, request)
        if liveness in TAKEABLE:
            ended = "cancelled" if answer else "ended before it saw the request"
            print(f"{directory.url}: run {lease.run_id} {ended}")
            return EXIT_OK
        clock.sleep(0.2)
    raise SparkStreamError(
        f"{directory.url}: the driver of run {lease.run_id!r} on {lease.owner.host} has not "
        f"stopped in {_CANCEL_TIMEOUT_S:.0f} seconds; look at its log, or kill it: a run resumes "
        "from any point"
    )


def _add_repairs(commands: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
    text = "publish what Spark has committed, and remove staged data that nothing references"
    cleanup = add(commands, "cleanup", _cleanup, text)
    cleanup.add_argument("job_dir", **JOB_DIR)
    add_entry_and_conf(cleanup, _LAST_ENTRY)
    text = "undo a run: revert its rows, and set the job back to before it"
    rewind = add(commands, "rewind", _rewind, text)
    rewind.add_argument("job_dir", **JOB_DIR)
    rewind.add_argument("run_id", metavar="RUN_ID", help="the run to undo")
    text = "undo the runs after it, too, the newest first"
    rewind.add_argument("--with-later", action="store_true", help=text)
    add_accept_lost_input(rewind)
    add_entry_and_conf(rewind, _LAST_ENTRY)


def _cleanup(arguments: argparse.Namespace) -> int:
    from airflow_provider.runtime.driver.clean_up_job import clean_up

    known_job(arguments.job_dir)
    conf = parse_pairs(arguments.conf, "--conf")
    queries = clean_up(arguments.job_dir, entry=arguments.entry, conf=conf)
    print(f"{arguments.job_dir}: in order: {', '.join(queries) or 'no query has such a sink'}")
    return EXIT_OK


def _rewind(arguments: argparse.Namespace) -> int:
    from airflow_provider.runtime.driver.rewind_job import rewind_job

    rewound = rewind_job(
        arguments.job_dir,
        arguments.run_id,
        with_later=arguments.with_later,
        entry=arguments.entry,
        conf=parse_pairs(arguments.conf, "--conf"),
        accepts_loss=arguments.accept_lost_input,
    )
    for run in rewound:
        print(f"{arguments.job_dir}: {run}")
    return EXIT_OK


def _add_checkpoint(commands: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
    text = "show any Spark checkpoint, or plan its drain"
    checkpoint = commands.add_parser("checkpoint", help=text, description=text)
    actions = checkpoint.add_subparsers(required=True, metavar="ACTION")
    show = add(actions, "show", _checkpoint_show, "explain a checkpoint as JSON")
    show.add_argument("url", metavar="URL", help="the checkpoint's folder")
    drain = add(actions, "plan-drain", _checkpoint_plan_drain, "plan the drain of a stopped query")
    drain.add_argument("url", metavar="URL", help="the checkpoint's folder")
    text = "plan a further drain batch, for rows after the year 9999"
    drain.add_argument("--further", action="store_true", help=text)


def _checkpoint_show(arguments: argparse.Namespace) -> int:
    print_json(describe_checkpoint(open_storage(arguments.url)))
    return EXIT_OK


def _checkpoint_plan_drain(arguments: argparse.Namespace) -> int:
    check_of_no_job(arguments.url)
    logs = CheckpointLogs(open_storage(arguments.url))
    batch = plan_drain_batch(logs, further=arguments.further)
    print(f"{logs.url}: batch {batch} is planned; start the query once with trigger(once=True)")
    return EXIT_OK


_SPARK: Final = ".spark.log"
_EVERY_S: Final = 0.5


def _add_logs(commands: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
    text = "print the log of a run's last driver"
    logs = add(commands, "logs", _logs, text)
    add_job_dir(logs)
    logs.add_argument("--run-id", metavar="ID", help="default: the newest run")
    text = "Spark's own log; a run from a shell has no other"
    logs.add_argument("--spark", dest="is_of_spark", action="store_true", help=text)
    text = "follow the log until the driver ends"
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
        raise UnknownJobError(
            f"{directory.url}: no run of this job has begun, so nothing is logged"
        )
    return directory.run(newest.run_id)


def _newest_log(directory: JobDirectory, run: RunDirectory, *, is_spark: bool) -> BinaryIO:
    folder = local_folder_of(run.storage)
    if folder is None:
        logs = [each.log for each in run.submissions() if each.log is not None]
        where = f"; the last one is {logs[-1]} on the machine that submitted it" if logs else ""
        raise UnknownJobError(
            f"{directory.url}: drivers of a job in a store log on their own machine{where}"
        )
    drivers = [attempt.driver_id for attempt in run.attempts()]
    drivers += [each.driver_id for each in run.submissions() if each.driver_id not in drivers]
    for driver in reversed(drivers):
        log = f"logs/{driver}{_SPARK if is_spark else '.log'}"
        try:
            return open(open_file(folder, log), "rb")
        except (FileNotFoundError, NotADirectoryError, NotAFileError):
            continue
        except OSError as error:
            raise UnknownJobError(f"{folder.path}/{log}: {error.strerror}") from error
    other = "" if is_spark else "; --spark prints what Spark has logged"
    raise UnknownJobError(
        f"{directory.url}: no driver of run {run.run_id!r} has left such a log here; a driver "
        f"that was started on a command line logs to its terminal{other}"
    )


def _follow(file: BinaryIO, watcher: RunWatcher, clock: Clock | None = None) -> None:
    clock = clock or SystemClock()
    while True:
        # Asked first: what is written after the driver's end was written before this look.
        is_at_work = watcher.decide(watcher.poll()).run_state.is_at_work
        shutil.copyfileobj(file, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        if not is_at_work:
            return
        clock.sleep(_EVERY_S)
