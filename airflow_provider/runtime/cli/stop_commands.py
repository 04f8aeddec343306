"""``spark-stream stop`` and ``cancel``: end a job's driver from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.cli.addressed_version import add_job_dir
from airflow_provider.runtime.cli.output import print_json
from airflow_provider.runtime.clock import SystemClock, parse_duration
from airflow_provider.runtime.control.stop import request_stop, savepoint_address
from airflow_provider.runtime.errors import EXIT_OK, SparkStreamError, UnknownJobError
from airflow_provider.runtime.jobdir.layout import known_job
from airflow_provider.runtime.jobdir.lease import TAKEABLE, LeaseObserver
from airflow_provider.runtime.jobdir.requests import put_cancel, read_reply

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

_CANCEL_TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT: Final = "10 minutes"


def add_commands(commands: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the commands.

    Args:
        commands: ``spark-stream``'s own.
        add: makes one command: where, its name, what it calls, what it does.
    """
    text = "end the batch in flight, and then the run: its final checkpoint is put"
    stop = add(commands, "stop", _stop, text)
    add_job_dir(stop)
    stop.add_argument("--drain", action="store_true", help="end the job for good: flush all state")
    stop.add_argument("--savepoint", metavar="NAME|URL", help="take one when it has stopped")
    stop.add_argument(
        "--aligned-timeout",
        metavar="DURATION",
        help="how long the batch in flight is waited for; then it is cut short, and runs again "
        "when the job resumes (default: until it ends)",
    )
    stop.add_argument("--timeout", metavar="DURATION", default=_STOP_TIMEOUT)
    stop.add_argument("--json", action="store_true")
    cancel = add(commands, "cancel", _cancel, "stop a job's driver; the same run can be resumed")
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
        msg = f"{directory.url}: no driver is running this job, so there is nothing to cancel"
        raise UnknownJobError(msg)
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
    msg = (
        f"{directory.url}: the driver of run {lease.run_id!r} on {lease.owner.host} has not "
        f"stopped in {_CANCEL_TIMEOUT_S:.0f} seconds; look at its log, or kill it: a run resumes "
        "from any point"
    )
    raise SparkStreamError(msg)
