"""The command ``spark-stream``: the runtime from a shell. Exit codes are in :mod:`errors`."""

from __future__ import annotations

import argparse
import io
import logging
import os
import select
import signal
import sys
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.checkpoint.describe import describe_checkpoint
from airflow_provider.runtime.checkpoint.drain import plan_drain_batch
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.class_archive import make_in_background
from airflow_provider.runtime.cli import (
    driver_command,
    pool_command,
    savepoint_commands,
    state_commands,
    status_command,
    stop_commands,
)
from airflow_provider.runtime.cli.driver_command import drive
from airflow_provider.runtime.cli.options import add_options, read_options
from airflow_provider.runtime.cli.output import print_json
from airflow_provider.runtime.cli.standby_client import run_by_standby
from airflow_provider.runtime.errors import (
    EXIT_OK,
    RunFailedError,
    SparkStreamError,
)
from airflow_provider.runtime.failures.classify import classify
from airflow_provider.runtime.failures.os_errors import of_the_system
from airflow_provider.runtime.jobdir.end_of_input import check_of_no_job
from airflow_provider.runtime.jobdir.layout import known_job
from airflow_provider.runtime.jobdir.run_options import (
    parse_pairs,
)
from airflow_provider.runtime.jobdir.run_spec import RunSpec
from airflow_provider.runtime.storage.open import open_storage

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence
    from types import FrameType

    from pyspark.sql import SparkSession


log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None, *, spark: SparkSession | None = None) -> int:
    """Run one command.

    Args:
        argv: its arguments; None for those of the process.
        spark: a session that a run uses and does not stop; None to start Spark.

    Returns:
        The exit code.
    """
    arguments = _parser().parse_args(argv)
    arguments.spark = spark
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


def _is_submitted() -> bool:
    return "PYSPARK_GATEWAY_PORT" in os.environ


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
        print_json({"version": 1, "error": type(error).__name__, "exit_code": code, **described})
    print(f"spark-stream: error: {error}", file=sys.stderr)
    return code


def _run(arguments: argparse.Namespace) -> int:
    spec = read_options(arguments, RunSpec)
    if arguments.pool and arguments.spark is None:
        code = run_by_standby(spec)
        if code is not None:
            return code
    code = drive(spec, _stop_on_signals, as_json=arguments.json, spark=arguments.spark)
    if arguments.spark is None and not _is_submitted():
        make_in_background()
    return code


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
    print_json(describe_checkpoint(open_storage(arguments.url)))
    return EXIT_OK


def _checkpoint_plan_drain(arguments: argparse.Namespace) -> int:
    check_of_no_job(arguments.url)
    logs = CheckpointLogs(open_storage(arguments.url))
    batch = plan_drain_batch(logs, further=arguments.further)
    print(f"{logs.url}: batch {batch} is planned; start the query once with trigger(once=True)")
    return EXIT_OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="spark-stream", description="Run Spark streams that end with a final checkpoint."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_run(commands)
    driver_command.add_command(commands, _add, _stop_on_signals)
    status_command.add_command(commands, _add)
    stop_commands.add_commands(commands, _add)
    text = "publish what Spark has committed, and remove staged data that nothing references"
    cleanup = _add(commands, "cleanup", _cleanup, text)
    cleanup.add_argument("job_dir", metavar="JOB_DIR")
    cleanup.add_argument("--entry", metavar="FILE.py:FUNC", help="default: the last run's")
    cleanup.add_argument("--conf", action="append", default=[], metavar="K=V", help="for Spark")
    _add_rewind(commands)
    savepoint_commands.add_commands(commands, _add)
    pool_command.add_commands(commands, _add)
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
    add_options(run, RunSpec)
    run.add_argument("--pool", action="store_true", help="let a standby driver of the pool run it")
    run.add_argument("--json", action="store_true", help="print the final checkpoint on stdout")
