"""Commands that run a job, or check it: ``run``, ``check``, ``driver`` and ``state bootstrap``."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import signal
import threading
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.base.extensions import REQUESTS, WARM_DRIVERS, load_known
from airflow_provider.runtime.cli.command_parser import (
    JOB_DIR,
    add_entry_and_conf,
    add_json,
    add_options,
    add_programs,
    named_program,
    read_options,
)
from airflow_provider.runtime.cli.output import live_progress, print_json
from airflow_provider.runtime.control.submit import check_not_revoked
from airflow_provider.runtime.errors import EXIT_OK, SparkStreamError
from airflow_provider.runtime.errors.fixes import Caller, addressing
from airflow_provider.runtime.failures.classify import FailureOverrides
from airflow_provider.runtime.jobdir.dropped_rows import describe_dropped_rows
from airflow_provider.runtime.jobdir.layout import open_job_directory
from airflow_provider.runtime.jobdir.query_reports import output_sinks, quarantine_totals
from airflow_provider.runtime.jobdir.row_counts import sum_of
from airflow_provider.runtime.jobdir.run_spec import RunSpec, parse_pairs
from airflow_provider.runtime.spark.class_archive import make_in_background
from airflow_provider.runtime.spark.installation import is_submitted

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator
    from types import FrameType

    from pyspark.sql import SparkSession

    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.control.bootstrap_request import BootstrapSpec
    from airflow_provider.runtime.jobdir.run_records import FinalCheckpoint, ProgressRecord
    from airflow_provider.runtime.savepoints.catalog import Savepoint
    from airflow_provider.runtime.spark.session import SparkStarter


log = logging.getLogger(__name__)


def add_commands(commands: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the commands; see :data:`.api.commands.COMMANDS`."""
    _add_run(commands, add)
    _add_replay(commands, add)
    _add_check(commands, add)
    _add_driver(commands, add)


def stop_on_signals(stop: threading.Event) -> None:
    """Cancel the attempt on SIGTERM and SIGINT, whose handlers Spark has just replaced."""
    seen = threading.Event()  # *stop* is cleared by the thread that stops

    def handle(number: int, _: FrameType | None) -> None:
        if seen.is_set():  # a service sends it to the process, and to its group
            return
        seen.set()
        log.info("%s: stopping", signal.Signals(number).name)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)


_MOST_SINKS: Final = 8  # the others are in the final checkpoint


def summary_lines(final: FinalCheckpoint, *, took_s: float) -> Iterator[str]:
    """Yield the lines of an ended run; *took_s* is the time of this command, not of the run."""
    sinks = [(name, sink) for name, query in final.queries.items() for sink in query.sinks]
    written = sum_of(sink.rows for sink in output_sinks(final.queries))
    quarantined = quarantine_totals(final.queries)
    rows = [
        f"{_number(final.rows_read, final.rows_minimum)} rows in",
        f"{_number(written, final.rows_minimum)} out",
        *([str(quarantined)] if quarantined.has_any else []),
    ]
    if not quarantined.has_any or final.late_rows != quarantined.late:
        rows.append(f"{_number(final.late_rows, final.late_minimum)} late")
    head = f"{final.outcome}: run {final.run_id}, attempt {final.attempts}"
    yield f"{head}, {took_s:,.1f} s: {', '.join(rows)}"
    for name, sink in sinks[:_MOST_SINKS]:
        kind = "quarantined rows" if sink.quarantine else "rows"
        yield f"  {name} -> {sink.name}: {_number(sink.rows)} {kind}"
    if len(sinks) > _MOST_SINKS:
        yield f"  and {len(sinks) - _MOST_SINKS} more sinks"
    yield from describe_dropped_rows(final)


def _number(value: int | None, is_minimum: bool = False) -> str:  # noqa: FBT001, FBT002 - of a number
    at_least = "at least " if is_minimum else ""
    return "unknown" if value is None else f"{at_least}{value:,}"


def _add_run(commands: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
    run = add(commands, "run", _run, "run a job until its final checkpoint has committed")
    add_programs(add_options(run, RunSpec))
    run.add_argument("--warm", action="store_true", help="run it in a warm driver")
    add_json(run, "print the final checkpoint as JSON")


def _run(arguments: argparse.Namespace) -> int:
    spec = read_options(named_program(arguments), RunSpec)
    if arguments.warm and arguments.spark is None:
        code: int | None = load_known(WARM_DRIVERS, "run")(spec)
        if code is not None:
            return code
    code = drive(spec, as_json=arguments.json, spark=arguments.spark)
    if arguments.spark is None and not is_submitted():
        make_in_background()
    return code


def _add_replay(commands: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
    text = "undo a run and those built on it, and execute all of them again, the oldest first"
    replay = add(commands, "replay", _replay, text)
    replay.add_argument("job_dir", **JOB_DIR)
    replay.add_argument("run_id", metavar="RUN_ID", help="the oldest run to execute again")
    add_entry_and_conf(replay, "the job's function; default: that of each run")


def _replay(arguments: argparse.Namespace) -> int:
    from airflow_provider.runtime.driver.replay_runs import replay_runs

    clock, stop = SystemClock(), threading.Event()
    show: Callable[[ProgressRecord], None] | None = None
    runs = replay_runs(
        arguments.job_dir,
        arguments.run_id,
        entry=arguments.entry,
        conf=parse_pairs(arguments.conf, "--conf"),
        spark=arguments.spark,
        stop=stop,
        on_progress=lambda record: show(record) if show is not None else None,
        on_spark_started=lambda: stop_on_signals(stop),
    )
    while True:
        began = clock.monotonic()
        with live_progress() as shown:
            show = shown
            final = next(runs, None)
        if final is None:
            return EXIT_OK
        for line in summary_lines(final, took_s=clock.monotonic() - began):
            print(line)


def drive(
    spec: RunSpec, *, as_json: bool = False, spark: SparkSession | SparkStarter | None = None
) -> int:
    """Run a job, show its progress on a terminal, and print how it ended."""
    from airflow_provider.runtime.driver.run import run_job

    clock, stop = SystemClock(), threading.Event()
    began = clock.monotonic()
    with live_progress() as on_progress:
        final = run_job(
            spec,
            spark=spark,
            stop=stop,
            on_progress=on_progress,
            on_spark_started=lambda: stop_on_signals(stop),
        )
    if as_json:
        print_json(final.to_dict())
    else:
        for line in summary_lines(final, took_s=clock.monotonic() - began):
            print(line)
    return EXIT_OK


def _add_check(commands: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
    text = "check a job without running it: takes the options of run, and writes nothing"
    check = add(commands, "check", _check, text)
    add_programs(add_options(check, RunSpec))
    text = "also start Spark, call the job's function, analyse its queries, and ask its sinks"
    check.add_argument("--spark", dest="with_spark", action="store_true", help=text)
    add_json(check)


def _check(arguments: argparse.Namespace) -> int:
    from airflow_provider.runtime.driver.run import check_job

    spec = read_options(named_program(arguments), RunSpec)
    found = check_job(spec, with_spark=arguments.with_spark, spark=arguments.spark)
    if arguments.json:
        print_json({"version": 1, "job_dir": spec.job_dir, **dataclasses.asdict(found)})
        return EXIT_OK
    print(f"{spec.job_dir}: run {found.run_id} {found.what}")
    if found.mode is not None:
        print(f"  mode {found.mode}" + (f": {found.reason}" if found.reason else ""))
    for query in found.queries:
        print(f"  {query.name}: {', '.join(query.sources)} -> {', '.join(query.sinks)}")
    left = "" if arguments.with_spark else "; --spark looks at its queries and sinks, too"
    print(f"nothing is refused{left}")
    return EXIT_OK


def _add_driver(commands: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
    driver = add(commands, "driver", _driver, "carry out a submission; for launchers")
    driver.add_argument("request", help="the kind of the request")
    driver.add_argument("job_dir", **JOB_DIR)
    driver.add_argument("run_id", metavar="RUN_ID", help="the run of the submission")
    driver.add_argument("driver_id", metavar="DRIVER_ID", help="the driver of the submission")
    driver.add_argument("digest", metavar="SHA256", help="the digest of the submitted request")


def _driver(arguments: argparse.Namespace) -> int:
    with addressing(caller=Caller.OPERATOR):
        return _drive(arguments)


def _drive(arguments: argparse.Namespace) -> int:
    run = open_job_directory(arguments.job_dir).run(arguments.run_id)
    check_not_revoked(run, arguments.driver_id)
    which = (run.storage, arguments.driver_id, arguments.digest)
    if arguments.request not in {RunSpec.COMMAND, *REQUESTS}:
        from airflow_provider.runtime.control.bootstrap_request import BootstrapSpec

        return bootstrap(BootstrapSpec.receive(*which))
    with _keeping_details(run.storage, arguments.driver_id):
        if arguments.request in REQUESTS:
            return int(load_known(REQUESTS, arguments.request)(*which, spark=arguments.spark))
        return drive(RunSpec.receive(*which), spark=arguments.spark)


@contextlib.contextmanager
def _keeping_details(run: Storage, driver_id: str) -> Iterator[None]:
    """Keep the stack traces of an error beside the submission: its caller is another machine."""
    try:
        yield
    except SparkStreamError as error:
        if error.details is None and error.__cause__ is not None:
            from airflow_provider.runtime.driver.failures import ErrorLog

            error.details = ErrorLog(run, driver_id, FailureOverrides()).keep(error)
        raise


def add_bootstrap(
    actions: Any,
    add: Callable[..., argparse.ArgumentParser],
) -> None:
    """Add the action to those of ``spark-stream state``."""
    text = "make a job's first state from history: its queries read it, then a savepoint is taken"
    from airflow_provider.runtime.control.bootstrap_request import BootstrapSpec

    command = add(actions, "bootstrap", _bootstrap, text)
    add_options(command, BootstrapSpec)
    add_json(command, "print savepoint.json")


def _bootstrap(arguments: argparse.Namespace) -> int:
    from airflow_provider.runtime.control.bootstrap_request import BootstrapSpec

    spec = read_options(arguments, BootstrapSpec)
    return bootstrap(spec, as_json=arguments.json)


def bootstrap(spec: BootstrapSpec, *, as_json: bool = False) -> int:
    """Make a job's first state, and print the savepoint."""
    from airflow_provider.runtime.bootstrap import bootstrap_job

    stop = threading.Event()
    with live_progress() as on_progress:
        savepoint = bootstrap_job(
            spec,
            stop=stop,
            on_progress=on_progress,
            on_spark_started=lambda: stop_on_signals(stop),
        )
    _print_made(savepoint, as_json=as_json)
    return EXIT_OK


def _print_made(savepoint: Savepoint, *, as_json: bool) -> None:
    record = savepoint.record
    if as_json:
        print_json({**record.to_dict(), "url": savepoint.url})
        return
    for name, query in record.queries.items():
        print(f"{savepoint.url}: query {name}: batch {query.batch}, watermark {query.watermark}")
