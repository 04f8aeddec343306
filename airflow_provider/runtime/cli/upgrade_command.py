"""``spark-stream upgrade``: puts a new version of a running job in the place of the old one."""

from __future__ import annotations

import dataclasses
import threading
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.cli.options import add_options, read_options
from airflow_provider.runtime.clock import SystemClock, parse_duration
from airflow_provider.runtime.control.health import Limits
from airflow_provider.runtime.errors import EXIT_OK, ConfigError
from airflow_provider.runtime.jobdir.run_spec import RunSpec

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

_PROBATION: Final = "10 minutes"
_PROGRESS_TIMEOUT: Final = "2 minutes"
_STOP_TIMEOUT: Final = "10 minutes"
_OURS: Final = ("from_savepoint", "replays", "run_id", "until", "state_partitions")


def add_commands(commands: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command.

    Args:
        commands: ``spark-stream``'s own.
        add: makes one command: where, its name, what it calls, what it does.
    """
    text = "stop a running job, try a new version of it, and go on with the better of the two"
    upgrade = add(commands, "upgrade", _upgrade, text)
    add_options(upgrade, RunSpec)
    upgrade.add_argument("--to", required=True, metavar="NEW_JOB_DIR", help="of the new version")
    upgrade.add_argument(
        "--probation",
        default=_PROBATION,
        metavar="DURATION",
        help=f"how long the new version is watched (default: {_PROBATION})",
    )
    upgrade.add_argument(
        "--progress-timeout",
        default=_PROGRESS_TIMEOUT,
        metavar="DURATION",
        help="how long it may commit nothing while there is something to read, meanwhile "
        f"(default: {_PROGRESS_TIMEOUT})",
    )
    upgrade.add_argument(
        "--stop-timeout",
        default=_STOP_TIMEOUT,
        metavar="DURATION",
        help=f"how long the old version may take to stop (default: {_STOP_TIMEOUT})",
    )


def _upgrade(arguments: argparse.Namespace) -> int:
    from airflow_provider.runtime.cli.output import live_progress
    from airflow_provider.runtime.cli.run_summary import summary_lines
    from airflow_provider.runtime.cli.stop_signals import stop_on_signals
    from airflow_provider.runtime.cli.upgrading import Trial, Upgrade
    from airflow_provider.runtime.queries.session import using_spark

    asked = read_options(arguments, RunSpec)
    _check(asked)
    spec = dataclasses.replace(asked, job_dir=arguments.to)
    trial = Trial(
        parse_duration(arguments.probation, name="--probation"),
        Limits(parse_duration(arguments.progress_timeout, name="--progress-timeout")),
        parse_duration(arguments.stop_timeout, name="--stop-timeout"),
    )
    clock, stop = SystemClock(), threading.Event()
    began = clock.monotonic()
    name = f"spark-stream upgrade {asked.job_dir}"
    with (
        using_spark(arguments.spark, name, asked.master, asked.conf) as session,
        live_progress() as on_progress,
    ):
        stop_on_signals(stop)
        final = Upgrade(
            asked.job_dir,
            spec,
            trial,
            spark=session,
            stop=stop,
            on_progress=on_progress,
            clock=clock,
        ).run()
    for line in summary_lines(final, took_s=clock.monotonic() - began):
        print(line)
    return EXIT_OK


def _check(asked: RunSpec) -> None:
    """Refuse the options that an upgrade decides by itself.

    Raises:
        ConfigError: the message names the option.
    """
    default = RunSpec(job_dir=asked.job_dir, entry=asked.entry)
    given = [name for name in _OURS if getattr(asked, name) != getattr(default, name)]
    if given:
        flag = given[0].replace("_", "-")
        msg = f"--{flag} is decided by the upgrade; leave it out"
        raise ConfigError(msg)
