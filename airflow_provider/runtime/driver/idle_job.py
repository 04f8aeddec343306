"""Commands on a job that no driver runs: its lease, and what its function declares."""

from __future__ import annotations

import contextlib
import uuid
from typing import TYPE_CHECKING

from airflow_provider.runtime.base.host import identify_this
from airflow_provider.runtime.base.names import derive_run_id
from airflow_provider.runtime.driver.load_job import declared_queries
from airflow_provider.runtime.errors import ConfigError, refusing
from airflow_provider.runtime.jobdir.identity import begin_identity
from airflow_provider.runtime.jobdir.lease import acquire_lease
from airflow_provider.runtime.jobdir.run_spec import RunSpec
from airflow_provider.runtime.jobdir.runs import last_run
from airflow_provider.runtime.jobdir.upgrade_record import describe_version, upgrade_over
from airflow_provider.runtime.queries.input_folders import spark_listing
from airflow_provider.runtime.savepoints.needed_input import InputCheck
from airflow_provider.runtime.savepoints.relocation import relocate
from airflow_provider.runtime.spark.session import jvm_pid
from airflow_provider.runtime.storage.input_folders import names_in_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from airflow_provider.runtime.api.sinks import Fence
    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.jobdir.lease import LeaseObserver
    from airflow_provider.runtime.jobdir.run_records import RunRecord
    from airflow_provider.runtime.queries.query import QueryDefinition


@contextlib.contextmanager
def leased_job(
    directory: JobDirectory,
    what: str,
    session: SparkSession | None,
    observer: LeaseObserver,
    clock: Clock,
    *,
    rewinds: str | None = None,
) -> Iterator[Fence]:
    """Hold the lease of a job that is active, whose checkpoints nobody else writes to."""
    with refusing(directory.url, "written"):
        begin_identity(directory.storage, clock)
        lease = acquire_lease(
            directory.storage,
            run_id=derive_run_id(what),  # the folder may have been renamed, the run's id be long
            driver_id=f"{what.partition('-')[0]}-{uuid.uuid4().hex}",
            owner=identify_this(*([jvm_pid(session)] if session else [])),
            clock=clock,
            observer=observer,
        )
    with lease:
        check_not_replaced(directory, rewinds)
        relocate(directory, lease, clock)
        yield lease


def check_not_replaced(directory: JobDirectory, rewinds: str | None = None) -> None:
    """Refuse to set back a version on trial, or one from whose rows another continues."""
    upgrade = upgrade_over(directory, rewinds)
    if upgrade is not None:
        raise ConfigError(describe_version(*upgrade))


def last_request(
    directory: JobDirectory, entry: str | None, conf: Mapping[str, str] | None
) -> tuple[RunRecord, RunSpec]:
    """Return the job's last run, and a request for its function as that run called it."""
    last = last_run(directory)
    spec = RunSpec(
        job_dir=directory.url,
        entry=entry or last.entry,
        run_id=last.run_id,
        params=last.params,
        secret_params=last.secret_params,
        conf=conf or {},
    )
    return last, spec


def declare_again(
    directory: JobDirectory,
    entry: str | None,
    conf: Mapping[str, str] | None,
    spark: SparkSession,
) -> Sequence[QueryDefinition]:
    """Return the queries that the job's function declares, called as its last run called it."""
    last, spec = last_request(directory, entry, conf)
    return declared_queries(last.mode, spec, last.run_id, spark)


def input_check(session: SparkSession | None, *, accepts_loss: bool) -> InputCheck:
    """Return the check of input that is read again, by Spark where there is one."""
    listing = spark_listing(session) if session is not None else names_in_folder
    return InputCheck(listing, accepts_loss)
