"""``spark-stream verify``: computes a finished run once more, in the other mode, and compares."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.cli.command_parser import add_conf, add_job_dir, add_json
from airflow_provider.runtime.cli.output import live_progress, print_json
from airflow_provider.runtime.errors import ConfigError, RunCancelledError
from airflow_provider.runtime.jobdir.run_spec import parse_pairs

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from airflow_provider.extensions.comparisons.comparing import How
    from airflow_provider.extensions.comparisons.report import Report

api_version: Final = 1


def add_commands(commands: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add ``verify``; see :class:`.api.commands.CommandModule`."""
    text = "compute a finished run once more, in the other mode, and compare the rows"
    verify = add(commands, "verify", _verify, text)
    add_job_dir(verify)
    verify.add_argument(
        "run_id", metavar="RUN_ID", nargs="?", help="the run; default: the newest that has ended"
    )
    verify.add_argument(
        "--mode",
        choices=("streaming", "batch"),
        help="the mode of the second computation; default: the one that the run did not have",
    )
    text = "the job's function, if it is elsewhere now; default: that of the run"
    verify.add_argument("--entry", metavar="FILE.py:FUNC", help=text)
    add_comparison(verify)


def add_comparison(command: argparse.ArgumentParser) -> None:
    """Add the options of both commands."""
    command.add_argument("--master", help="Spark's master; default: local[*]")
    add_conf(command)
    text = "where the scratch folder is made; on a cluster one that all its machines share"
    command.add_argument("--scratch", metavar="FOLDER", help=text)
    text = "the columns by which rows that differ are paired, of a query or of all; repeatable"
    command.add_argument("--key", action="append", default=[], metavar="[QUERY:]COL,COL", help=text)
    add_json(command)


def _verify(arguments: argparse.Namespace) -> int:
    from airflow_provider.extensions.comparisons.comparing import verify_run

    given = {"mode": arguments.mode, "entry": arguments.entry}
    with comparing(arguments, f"spark-stream verify {arguments.job_dir}") as how:
        report = verify_run(arguments.job_dir, arguments.run_id, how, **given)
    return print_report(report, as_json=arguments.json)


@contextlib.contextmanager
def comparing(arguments: argparse.Namespace, app_name: str) -> Iterator[How]:
    """Start Spark for a command, and let SIGINT and SIGTERM end it with nothing left behind."""
    from airflow_provider.extensions.comparisons.comparing import How
    from airflow_provider.runtime.spark.session import using_spark

    keys, conf = parse_keys(arguments.key), parse_pairs(arguments.conf, "--conf")
    stop, computed = threading.Event(), threading.Event()
    with (
        using_spark(arguments.spark, app_name, arguments.master, conf) as session,
        live_progress() as on_progress,
        _cancelled_by_signals(stop, computed),
    ):
        yield How(
            spark=session,
            stop=stop,
            conf=conf,
            scratch=arguments.scratch,
            keys=keys,
            on_progress=on_progress,
            on_computed=computed.set,
        )


@contextlib.contextmanager
def _cancelled_by_signals(stop: threading.Event, computed: threading.Event) -> Iterator[None]:
    """Cancel the second computation by *stop*; once it has ended, by an error in this thread."""

    def handle(number: int, _: FrameType | None) -> None:
        stop.set()
        if computed.is_set():
            raise RunCancelledError(f"{signal.Signals(number).name}: the comparison was cancelled")

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, handle) for number in numbers]
    try:
        yield
    finally:
        for number, earlier in zip(numbers, before, strict=True):
            signal.signal(number, earlier)


def parse_keys(given: Sequence[str]) -> dict[str, list[str]]:
    """Return the columns of ``--key`` by query; the name "" stands for all queries."""
    keys: dict[str, list[str]] = {}
    for text in given:
        query, _, columns = text.rpartition(":")
        names = [name.strip() for name in columns.split(",") if name.strip()]
        if not names or query in keys:
            raise ConfigError(f"--key {text!r}: write it once for a query, as QUERY:COLUMN,COLUMN")
        keys[query] = names
    return keys


def print_report(report: Report, *, as_json: bool) -> int:
    """Print a report, and return the exit code of its command."""
    if as_json:
        print_json(report.to_dict())
    else:
        for line in report.lines():
            print(line)
    return report.exit_code
