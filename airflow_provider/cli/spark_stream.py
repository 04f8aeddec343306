"""``airflow spark-stream``: the commands of ``spark-stream``, and those that need Airflow."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from typing import TYPE_CHECKING, Any, Final

from airflow.utils.providers_configuration_loader import providers_configuration_loaded

from airflow_provider.runtime.cli.command_process import run_apart, runs_code
from airflow_provider.runtime.cli.main import main
from airflow_provider.runtime.errors import EXIT_OK, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

_NAME: Final = "airflow spark-stream"


@providers_configuration_loaded
def run(parsed: argparse.Namespace) -> None:
    """Run a command with all its arguments, and exit with its code."""
    _log_to_stderr()

    def command() -> int:
        return main(parsed.arguments, name=_NAME, more=(("check-connection", __name__),))

    sys.exit(run_apart(command) if runs_code(parsed.arguments) else command())


def _log_to_stderr() -> None:
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stdout:
            handler.setStream(sys.stderr)


def add_commands(commands: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command."""
    text = "check what a driver needs: the connection's master, spark-submit, Java, PySpark"
    check = add(commands, "check-connection", _check_connection, text)
    check.add_argument("conn_id", metavar="CONN_ID", help="the connection's id")
    check.add_argument(
        "--job-root",
        metavar="URL",
        help="also try put-if-absent in this folder of job directories (default: job-root in the "
        "connection's extra, if it has one)",
    )
    text = (
        "ask the cluster's own service, as a task with launcher=… does: emr-serverless, livy, "
        "spark-application"
    )
    check.add_argument("--launcher", metavar="KIND", help=text)
    check.add_argument(
        "--launcher-option",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=_named,
        help="an option of the launcher, over that of the connection; may be repeated",
    )


def _named(text: str) -> tuple[str, str]:
    name, is_given, value = text.partition("=")
    if not is_given:
        raise argparse.ArgumentTypeError(f"{text!r} is no NAME=VALUE")
    return name, value


def _check_connection(arguments: argparse.Namespace) -> int:
    # As Airflow's own commands do: the connection may be in Airflow's database.
    os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"
    from airflow_provider.hooks.chosen_hook import hook_of
    from airflow_provider.hooks.launchers import LauncherChoice

    options = dict(arguments.launcher_option)
    choice = LauncherChoice.of(arguments.launcher, arguments.conn_id, options)
    is_well, text = hook_of(choice).test_connection(arguments.job_root)
    if not is_well:
        raise ConfigError(text)
    print(text)  # noqa: T201 - the command's answer
    return EXIT_OK
