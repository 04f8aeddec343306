"""``spark-stream driver``: what a submission starts; all else is in the request beside it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.cli.bootstrap_command import bootstrap
from airflow_provider.runtime.cli.output import live_progress, print_json
from airflow_provider.runtime.control.bootstrap_request import BootstrapSpec
from airflow_provider.runtime.errors import EXIT_OK
from airflow_provider.runtime.jobdir.late_rows import describe_late_rows
from airflow_provider.runtime.jobdir.layout import open_job_directory
from airflow_provider.runtime.jobdir.run_spec import RunSpec

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from pyspark.sql import SparkSession


def add_command(
    commands: Any,
    add: Callable[..., argparse.ArgumentParser],
    stop_on_signals: Callable[[threading.Event], None],
) -> None:
    """Add the command.

    Args:
        commands: those of ``spark-stream``.
        add: makes one: where, its name, what it calls, what it does.
        stop_on_signals: lets signals set an event, once Spark runs.
    """
    driver = add(commands, "driver", _driver, "do what a submission asks for; for launchers")
    driver.set_defaults(stop_on_signals=stop_on_signals)
    driver.add_argument("request", choices=[RunSpec.COMMAND, BootstrapSpec.COMMAND])
    driver.add_argument("job_dir", metavar="JOB_DIR")
    driver.add_argument("run_id", metavar="RUN_ID")
    driver.add_argument("driver_id", metavar="DRIVER_ID")
    driver.add_argument("digest", metavar="SHA256", help="of the request, as it was submitted")


def _driver(arguments: argparse.Namespace) -> int:
    run = open_job_directory(arguments.job_dir).run(arguments.run_id)
    which = (run.storage, arguments.driver_id, arguments.digest)
    if arguments.request == BootstrapSpec.COMMAND:
        return bootstrap(BootstrapSpec.receive(*which), arguments.stop_on_signals)
    spec = RunSpec.receive(*which)
    return drive(spec, arguments.stop_on_signals, spark=arguments.spark)


def drive(
    spec: RunSpec,
    stop_on_signals: Callable[[threading.Event], None],
    *,
    as_json: bool = False,
    spark: SparkSession | None = None,
) -> int:
    """Run a job, show its progress on a terminal, and print how it ended."""
    from airflow_provider.runtime.driver.run import run_job

    stop = threading.Event()
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
        rows = "" if final.rows_read is None else f", {final.rows_read:,} rows read"
        print(f"{final.outcome}: run {final.run_id}{rows}, attempt {final.attempts}")
        if (late := describe_late_rows(final.to_dict())) is not None:
            print(late)
    return EXIT_OK
