"""``spark-stream upgrade``: puts a new version of a running job in the place of the old one."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.upgrades.upgrade_request import UpgradeSpec
from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.cli.command_parser import add_options, command_of, read_options
from airflow_provider.runtime.errors import EXIT_OK
from airflow_provider.runtime.observe.health import Limits

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from airflow_provider.runtime.api.storages import Storage

api_version: Final = 1


def add_commands(commands: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add ``upgrade``; see :class:`.api.commands.CommandModule`."""
    text = "replace a running job by a new version, and return to the old one if it fails"
    upgrade = add(commands, "upgrade", _upgrade, text)
    add_options(upgrade, UpgradeSpec)


def _upgrade(arguments: argparse.Namespace) -> int:
    asked = read_options(arguments, UpgradeSpec)
    return upgrade(asked, spark=arguments.spark, command=command_of(asked))


def upgrade(asked: UpgradeSpec, *, spark: SparkSession | None = None, command: str = "") -> int:
    """Upgrade a job, drive the version that is active, and print how it ended.

    *command* continues it in a shell; without one the old version is left to its task.
    """
    from airflow_provider.extensions.upgrades.upgrade_steps import Trial
    from airflow_provider.extensions.upgrades.upgrading import Upgrade
    from airflow_provider.runtime.cli.output import live_progress
    from airflow_provider.runtime.cli.run_command import stop_on_signals, summary_lines
    from airflow_provider.runtime.spark.session import using_spark

    clock, stop = SystemClock(), threading.Event()
    began = clock.monotonic()
    name = f"spark-stream upgrade {asked.job_dir}"
    with (
        using_spark(spark, name, asked.master, asked.conf) as session,
        live_progress() as on_progress,
    ):
        stop_on_signals(stop)
        final = Upgrade(
            asked.job_dir,
            asked.new_version(),
            Trial(asked.trial_period_s, Limits(asked.progress_timeout_s), asked.stop_timeout_s),
            spark=session,
            stop=stop,
            on_progress=on_progress,
            clock=clock,
            command=command,
        ).run()
    for line in summary_lines(final, took_s=clock.monotonic() - began):
        print(line)
    return EXIT_OK


def drive_upgrade(run: Storage, driver_id: str, digest: str, *, spark: SparkSession | None) -> int:
    """Carry out a submitted upgrade."""
    return upgrade(UpgradeSpec.receive(run, driver_id, digest), spark=spark)
