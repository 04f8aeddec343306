"""``spark-stream run``: runs a job, in this process or by a warm driver."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.cli.program_options import add_programs, named_program
from airflow_provider.runtime.cli.request_options import add_options, read_options
from airflow_provider.runtime.clock import SystemClock
from airflow_provider.runtime.errors import EXIT_OK
from airflow_provider.runtime.jobdir.run_spec import RunSpec
from airflow_provider.runtime.known_extensions import WARM_DRIVERS, load
from airflow_provider.runtime.spark.class_archive import make_in_background
from airflow_provider.runtime.spark.installation import is_submitted

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from pyspark.sql import SparkSession


def add_commands(commands: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command.

    Args:
        commands: ``spark-stream``'s own.
        add: makes one command: where, its name, what it calls, what it does.
    """
    run = add(commands, "run", _run, "run a job until its final checkpoint has committed")
    add_programs(add_options(run, RunSpec))
    run.add_argument("--pool", action="store_true", help="let a standby driver of the pool run it")
    run.add_argument("--json", action="store_true", help="print the final checkpoint on stdout")


def _run(arguments: argparse.Namespace) -> int:
    spec = read_options(named_program(arguments), RunSpec)
    if arguments.pool and arguments.spark is None:
        code: int | None = load(WARM_DRIVERS, "run")(spec)
        if code is not None:
            return code
    code = drive(spec, as_json=arguments.json, spark=arguments.spark)
    if arguments.spark is None and not is_submitted():
        make_in_background()
    return code


def drive(spec: RunSpec, *, as_json: bool = False, spark: SparkSession | None = None) -> int:
    """Run a job, show its progress on a terminal, and print how it ended."""
    from airflow_provider.runtime.cli.output import live_progress, print_json
    from airflow_provider.runtime.cli.run_summary import summary_lines
    from airflow_provider.runtime.cli.stop_signals import stop_on_signals
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
