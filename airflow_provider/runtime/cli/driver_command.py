"""``spark-stream driver``: what a submission starts; all else is in the request beside it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base.extensions import REQUESTS, load_known
from airflow_provider.runtime.cli.run_command import drive
from airflow_provider.runtime.control.bootstrap_request import BootstrapSpec
from airflow_provider.runtime.control.submit import check_not_revoked
from airflow_provider.runtime.errors import SparkStreamError
from airflow_provider.runtime.errors.ways_out import Caller, addressing
from airflow_provider.runtime.failures.classify import FailureOverrides
from airflow_provider.runtime.jobdir.layout import open_job_directory
from airflow_provider.runtime.jobdir.run_spec import RunSpec

_REQUESTS: Final = (RunSpec.COMMAND, BootstrapSpec.COMMAND, *REQUESTS)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from airflow_provider.runtime.api.storages import Storage


def add_commands(commands: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command; see :class:`~.api.commands.CommandModule`."""
    driver = add(commands, "driver", _driver, "do what a submission asks for; for launchers")
    driver.add_argument("request", choices=_REQUESTS)
    driver.add_argument("job_dir", metavar="JOB_DIR")
    driver.add_argument("run_id", metavar="RUN_ID")
    driver.add_argument("driver_id", metavar="DRIVER_ID")
    driver.add_argument("digest", metavar="SHA256", help="of the request, as it was submitted")


def _driver(arguments: argparse.Namespace) -> int:
    with addressing(caller=Caller.OPERATOR):
        return _drive(arguments)


def _drive(arguments: argparse.Namespace) -> int:
    run = open_job_directory(arguments.job_dir).run(arguments.run_id)
    check_not_revoked(run, arguments.driver_id)
    which = (run.storage, arguments.driver_id, arguments.digest)
    if arguments.request == BootstrapSpec.COMMAND:
        from airflow_provider.runtime.cli.bootstrap_command import bootstrap

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
            from airflow_provider.runtime.driver.error_log import ErrorLog

            error.details = ErrorLog(run, driver_id, FailureOverrides()).keep(error)
        raise
