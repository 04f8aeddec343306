"""The command ``spark-stream``: the runtime from a shell. Exit codes are in :mod:`errors`."""

from __future__ import annotations

import argparse
import io
import json
import logging
import os
import select
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.checkpoint.describe import describe_checkpoint
from airflow_provider.runtime.checkpoint.drain import plan_drain_batch
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.cli import (
    savepoint_commands,
    state_commands,
    status_command,
    stop_commands,
)
from airflow_provider.runtime.cli.options import add_secret_param
from airflow_provider.runtime.cli.output import live_progress
from airflow_provider.runtime.clock import parse_duration
from airflow_provider.runtime.errors import (
    EXIT_OK,
    RunFailedError,
    SparkStreamError,
)
from airflow_provider.runtime.failures.classify import classify
from airflow_provider.runtime.failures.failover_region import FAILOVERS, Failover
from airflow_provider.runtime.failures.os_errors import of_the_system
from airflow_provider.runtime.failures.overrides import FailureOverrides
from airflow_provider.runtime.failures.restart_strategy import parse_restart
from airflow_provider.runtime.jobdir.end_of_input import check_of_no_job
from airflow_provider.runtime.jobdir.late_rows import describe_late_rows
from airflow_provider.runtime.jobdir.layout import known_job
from airflow_provider.runtime.jobdir.run_spec import (
    MODES,
    UNTIL,
    RunSpec,
    parse_interval,
    parse_pairs,
    parse_target_batch_time,
)
from airflow_provider.runtime.storage.open import open_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType


log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit code.
    """
    arguments = _parser().parse_args(argv)
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    logging.getLogger("py4j").setLevel(logging.WARNING)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names in job directories may be of any bytes
            stream.reconfigure(errors="backslashreplace")
    try:
        code = int(arguments.command(arguments))
        sys.stdout.flush()
    except SparkStreamError as error:
        return _report(error, as_json=getattr(arguments, "json", False))
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _nobody_reads():
            return EXIT_OK  # results are printed when all is done
        if isinstance(error, OSError):
            log.debug("the operating system", exc_info=True)
            failure = of_the_system(error)
        else:
            log.exception("unexpected")
            failure = classify(error)
        return _report(RunFailedError(failure), as_json=getattr(arguments, "json", False))
    return code


def _nobody_reads() -> bool:
    """Tell whether the reader of stdout has gone, as ``head`` does; let nothing more be written."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    has_gone = any(event & select.POLLERR for _, event in poll.poll(0))
    if has_gone:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return has_gone


def script() -> None:
    """Be the application that ``spark-submit`` runs."""
    sys.exit(main())


def _report(error: SparkStreamError, *, as_json: bool) -> int:
    failure = getattr(error, "failure", None)
    code = failure.exit_code if failure is not None else error.exit_code
    if as_json:
        described = (failure or classify(error)).to_dict()
        _print_json({"version": 1, "error": type(error).__name__, "exit_code": code, **described})
    print(f"spark-stream: error: {error}", file=sys.stderr)
    return code


def _run(arguments: argparse.Namespace) -> int:
    from airflow_provider.runtime.driver.run import run_job

    spec = _spec_of(arguments)
    stop = threading.Event()
    with live_progress() as on_progress:
        final = run_job(
            spec,
            stop=stop,
            on_progress=on_progress,
            on_spark_started=lambda: _stop_on_signals(stop),
        )
    if arguments.json:
        _print_json(final.to_dict())
    else:
        rows = "" if final.rows_read is None else f", {final.rows_read:,} rows read"
        print(f"{final.outcome}: run {final.run_id}{rows}, attempt {final.attempts}")
        if (told := describe_late_rows(final.to_dict())) is not None:
            print(told)
    return EXIT_OK


def _spec_of(arguments: argparse.Namespace) -> RunSpec:
    trigger = arguments.trigger
    return RunSpec(
        job_dir=arguments.job_dir,
        entry=arguments.entry,
        run_id=arguments.run_id,
        params=parse_pairs(arguments.param, "--param"),
        secret_params=parse_pairs(arguments.secret_param, "--secret-param"),
        mode=arguments.mode,
        until=arguments.until,
        at_end=arguments.at_end,
        trigger_s=parse_duration(trigger, name="--trigger") if trigger else None,
        interval=parse_interval(arguments.interval),
        master=arguments.master,
        conf=parse_pairs(arguments.conf, "--conf"),
        driver_id=arguments.driver_id,
        from_savepoint=arguments.from_savepoint,
        allow_non_restored_state=arguments.allow_non_restored_state,
        state_partitions=arguments.state_partitions,
        replayable_runs=arguments.replayable_runs,
        replays=arguments.replay,
        target_batch_s=parse_target_batch_time(arguments.target_batch_time),
        marks=FailureOverrides.parse(arguments.fails_as),
        restart=parse_restart(arguments.restart) if arguments.restart else None,
        failover=Failover(arguments.failover),
    )


def _stop_on_signals(stop: threading.Event) -> None:
    """Cancel the attempt on SIGTERM and SIGINT, whose handlers Spark has just replaced."""

    def handle(number: int, _: FrameType | None) -> None:
        log.info("%s: stopping", signal.Signals(number).name)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)


def _cleanup(arguments: argparse.Namespace) -> int:
    from airflow_provider.runtime.driver.recover_sinks import clean_up

    known_job(arguments.job_dir)
    conf = parse_pairs(arguments.conf, "--conf")
    queries = clean_up(arguments.job_dir, entry=arguments.entry, conf=conf)
    print(f"{arguments.job_dir}: in order: {', '.join(queries) or 'no query has such a sink'}")
    return EXIT_OK


def _rewind(arguments: argparse.Namespace) -> int:
    from airflow_provider.runtime.driver.restore_job import rewind_job

    undone = rewind_job(
        arguments.job_dir,
        arguments.run_id,
        with_later=arguments.with_later,
        entry=arguments.entry,
        conf=parse_pairs(arguments.conf, "--conf"),
    )
    for run in undone:
        print(f"{arguments.job_dir}: {run}")
    return EXIT_OK


def _checkpoint_show(arguments: argparse.Namespace) -> int:
    _print_json(describe_checkpoint(open_storage(arguments.url)))
    return EXIT_OK


def _checkpoint_plan_drain(arguments: argparse.Namespace) -> int:
    check_of_no_job(arguments.url)
    logs = CheckpointLogs(open_storage(arguments.url))
    batch = plan_drain_batch(logs, further=arguments.further)
    print(f"{logs.url}: batch {batch} is planned; start the query once with trigger(once=True)")
    return EXIT_OK


def _print_json(document: dict[str, Any]) -> None:
    print(json.dumps(document, indent=1))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="spark-stream", description="Run Spark streams that end with a final checkpoint."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_run(commands)
    status_command.add_command(commands, _add)
    stop_commands.add_commands(commands, _add)
    text = "publish what Spark has committed, and remove staged data that nothing references"
    cleanup = _add(commands, "cleanup", _cleanup, text)
    cleanup.add_argument("job_dir", metavar="JOB_DIR")
    cleanup.add_argument("--entry", metavar="FILE.py:FUNC", help="default: the last run's")
    cleanup.add_argument("--conf", action="append", default=[], metavar="K=V", help="for Spark")
    _add_rewind(commands)
    savepoint_commands.add_commands(commands, _add)
    state_commands.add_commands(commands, _add, _stop_on_signals)
    checkpoint = commands.add_parser("checkpoint", help="look at, or drain, any Spark checkpoint")
    actions = checkpoint.add_subparsers(required=True, metavar="ACTION")
    show = _add(actions, "show", _checkpoint_show, "explain a checkpoint as JSON")
    show.add_argument("url", metavar="URL")
    drain = _add(actions, "plan-drain", _checkpoint_plan_drain, "plan the drain of a stopped query")
    drain.add_argument("url", metavar="URL")
    text = "drain it once more, for rows that are later than the year 9999"
    drain.add_argument("--further", action="store_true", help=text)
    return parser


def _add(
    commands: Any, name: str, command: Callable[[argparse.Namespace], int], text: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(command=command)
    return parser


def _add_rewind(commands: Any) -> None:
    text = "undo a run: its rows are reverted, the job is as it was before it"
    rewind = _add(commands, "rewind", _rewind, text)
    rewind.add_argument("job_dir", metavar="JOB_DIR")
    rewind.add_argument("run_id", metavar="RUN_ID")
    text = "undo the runs after it, too, the newest first"
    rewind.add_argument("--with-later", action="store_true", help=text)
    rewind.add_argument("--entry", metavar="FILE.py:FUNC", help="default: the last run's")
    rewind.add_argument("--conf", action="append", default=[], metavar="K=V", help="for Spark")


def _add_run(commands: Any) -> None:
    run = _add(commands, "run", _run, "run a job until its final checkpoint has committed")
    run.add_argument("job_dir", metavar="JOB_DIR", help="the job's home on a shared filesystem")
    run.add_argument("--entry", required=True, metavar="FILE.py:FUNC", help="or pkg.mod:FUNC")
    text = "default: the unfinished run among the newest ten, or a new one"
    run.add_argument("--run-id", metavar="ID", help=text)
    run.add_argument("--param", action="append", default=[], metavar="K=V", help="for the job")
    add_secret_param(run)
    text = "default: automatic, which is batch for bounded jobs whose result is the same"
    run.add_argument("--mode", choices=MODES, default="automatic", help=text)
    run.add_argument("--until", choices=UNTIL, help="default: end if all sources are bounded")
    run.add_argument("--at-end", choices=("drain", "suspend"))
    run.add_argument("--trigger", metavar="DURATION", help="between batches, with --until stopped")
    text = "fit the size of batches to this time; default: 10 seconds with --until stopped"
    run.add_argument("--target-batch-time", metavar="DURATION|off", help=text)
    run.add_argument("--interval", nargs=2, metavar=("START", "END"), help="ISO 8601 times")
    run.add_argument("--from-savepoint", metavar="URL", help="begin a new job from a savepoint")
    run.add_argument(
        "--allow-non-restored-state",
        action="store_true",
        help="queries that do not fit the savepoint or the job directory start from scratch",
    )
    text = "with --from-savepoint: spread its state over N partitions"
    run.add_argument("--state-partitions", type=int, metavar="N", help=text)
    text = "begin with a savepoint, so that the run can be replayed; keep those of N runs"
    run.add_argument("--replayable-runs", type=int, default=0, metavar="N", help=text)
    text = "first undo this run: its rows are reverted, the job is as it was before it"
    run.add_argument("--replay", metavar="RUN_ID", help=text)
    _add_failures(run)
    run.add_argument("--master", metavar="URL", help="default: local[*], or what spark-submit says")
    run.add_argument("--conf", action="append", default=[], metavar="K=V", help="for Spark")
    run.add_argument("--driver-id", help=argparse.SUPPRESS)  # set by who submits a driver
    run.add_argument("--json", action="store_true", help="print the final checkpoint on stdout")


def _add_failures(run: argparse.ArgumentParser) -> None:
    text = "of a query that fails; such as 'fixed-delay(attempts=3, delay=10 s)', or none"
    run.add_argument("--restart", metavar="STRATEGY", help=text)
    text = "what is started again with it: its region, which is the default, or every query"
    run.add_argument("--failover", choices=FAILOVERS, default=Failover.REGION.value, help=text)
    text = "the class of failures of an exception type, such as jobs.BadRow=NON_RECOVERABLE"
    run.add_argument("--fails-as", action="append", default=[], metavar="TYPE=CLASS", help=text)
