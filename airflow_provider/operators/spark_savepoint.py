"""``SparkSavepointOperator``: a savepoint of a stream, taken from a worker without Spark."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from airflow_provider.airflow_versions import AirflowFailException, AirflowSkipException
from airflow_provider.hooks.storage_connection import opening_storage
from airflow_provider.operators.sliced import SlicedOperator
from airflow_provider.runtime.base.clock import SystemClock, parse_duration
from airflow_provider.runtime.base.names import derive_run_id
from airflow_provider.runtime.errors import (
    CheckpointError,
    ConfigError,
    SavepointBusyError,
    UnknownJobError,
)
from airflow_provider.runtime.jobdir.layout import directory_at
from airflow_provider.runtime.savepoints.catalog import Savepoint, open_savepoint
from airflow_provider.runtime.savepoints.checkpoint_source import checkpoint_source, job_source
from airflow_provider.runtime.savepoints.record import SERIES, check_origin
from airflow_provider.runtime.savepoints.retention import Retention, retain
from airflow_provider.runtime.savepoints.take import take_savepoint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context

_LABEL = "airflow.task"  # tells a retry that the savepoint of this name is its own
_RETAIN = ("keep", "max_age")


class SparkSavepointOperator(SlicedOperator):
    """Take a savepoint of a running or suspended job, or of any Spark checkpoint.

    The stream does not pause, and the task needs no Spark connection. A retry finds the savepoint
    that an earlier try has completed. See docs/savepoints.md.

    XCom, and the ``extra`` of each outlet asset's event: ``url``, ``name``, ``taken``, ``aligned``,
    ``bytes`` and, for each query, ``batch`` and ``watermark``.

    Args:
        job_dir: the job directory.
        checkpoint: a Spark checkpoint instead of a job; requires *to*.
        to: the directory of the savepoints; by default ``savepoints`` in the job directory.
        name: the savepoint's name.
        aligned_timeout: how long to wait for a batch in flight; 0 for no wait.
        origin: the reason for the savepoint, by which retention works: ``periodic``, ``manual``,
            ``upgrade``, …
        labels: labels for searches. Retention counts the savepoints of each ``series``, by default
            the task's.
        retain: how many to keep (``keep``) and their greatest age (``max_age``); by default all are
            kept.
        storage_conn_id: the connection of type ``aws`` with the S3 credentials; by default
            ``[spark_stream] storage_conn_id``, then the environment's credentials.

    Raises:
        ConfigError: an argument is invalid; when the DAG is parsed.
    """

    template_fields: Sequence[str] = (
        *("job_dir", "checkpoint", "to", "name", "labels", "storage_conn_id"),
    )
    ui_color: str = "#e7f0f7"

    def __init__(
        self,
        *,
        job_dir: str | None = None,
        checkpoint: str | None = None,
        to: str | None = None,
        name: str = "{{ run_id }}",
        aligned_timeout: str | float = "30 seconds",
        origin: str = "periodic",
        labels: Mapping[str, str] | None = None,
        retain: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if (job_dir is None) == (checkpoint is None):
            raise ConfigError("give either job_dir or checkpoint")
        if checkpoint is not None and to is None:
            raise ConfigError("with checkpoint, give to: the folder for the savepoint")
        check_origin(origin)
        parse_duration(aligned_timeout, name="aligned_timeout")
        _retention(retain, origin)
        self.job_dir = job_dir
        self.checkpoint = checkpoint
        self.to = to
        self.name = name
        self.aligned_timeout = aligned_timeout
        self.origin = origin
        self.labels = dict(labels or {})
        self.retain = dict(retain) if retain is not None else None

    @opening_storage
    def execute(self, context: Context) -> dict[str, Any]:
        """Take the savepoint, report it to the outlets, and dispose of old ones.

        Returns:
            ``url``, ``name``, ``taken``, ``aligned``, ``bytes`` and, per query, ``batch`` and
                ``watermark``.

        Raises:
            AirflowSkipException: the job has not begun yet.
            AirflowFailException: there is no checkpoint, or the name is in use.
            SavepointError: it could not be taken this time; a retry may.
        """
        try:
            self._check_backfill(context)
            job_dir = None if self.job_dir is None else self._active_directory(self.job_dir)
            savepoint = self._take(job_dir, context)
        except UnknownJobError as error:
            if self.job_dir is None or directory_at(self.job_dir).job() is not None:
                raise AirflowFailException(str(error)) from error
            raise AirflowSkipException(
                f"the stream has not begun yet, so there is nothing to save: {error}"
            ) from error
        except SavepointBusyError:
            raise
        except (ConfigError, CheckpointError) as error:
            raise AirflowFailException(str(error)) from error
        summary = self._announce(describe(savepoint), context)
        retention = _retention(self.retain, self.origin)
        if retention is not None:
            mine = dataclasses.replace(retention, just_taken=savepoint)
            gone = retain(savepoint.url.rpartition("/")[0], mine)
            self.log.info("Disposed of %d savepoints: %s", len(gone), ", ".join(gone) or "-")
        return summary

    def _take(self, job_dir: str | None, context: Context) -> Savepoint:
        clock = SystemClock()
        url = f"{self._root(job_dir)}/{derive_run_id(self.name)}"
        ti = context["ti"]
        mine = derive_run_id(f"{ti.dag_id}-{ti.task_id}-{ti.run_id}-{ti.map_index}")
        try:
            there = open_savepoint(url)
        except ConfigError:
            there = None
        if there is not None and there.record.labels.get(_LABEL) == mine:
            self.log.info("An earlier try has taken %s", there.url)
            return there
        if job_dir is not None:
            source = job_source(job_dir, clock)
        else:
            source = checkpoint_source(str(self.checkpoint))
        return take_savepoint(
            source,
            url,
            origin=self.origin,
            labels={SERIES: f"{ti.dag_id}.{ti.task_id}", **self.labels, _LABEL: mine},
            aligned_timeout_s=parse_duration(self.aligned_timeout, name="aligned_timeout"),
            clock=clock,
        )

    def _root(self, job_dir: str | None) -> str:
        root = self.to if self.to is not None else f"{str(job_dir).rstrip('/')}/savepoints"
        return root.rstrip("/")


def describe(savepoint: Savepoint) -> dict[str, Any]:
    """Return what XCom and asset events say of a savepoint."""
    record = savepoint.record
    return {
        "url": savepoint.url,
        "name": record.name,
        "taken": record.taken,
        "aligned": record.aligned,
        "bytes": record.bytes,
        "queries": {
            name: {"batch": query.batch, "watermark": query.watermark}
            for name, query in record.queries.items()
        },
    }


def _retention(asked: Mapping[str, Any] | None, origin: str) -> Retention | None:
    if asked is None:
        return None
    unknown = sorted(set(asked) - set(_RETAIN))
    if unknown:
        raise ConfigError(f"retain: {unknown[0]!r} is not known; use {' and '.join(_RETAIN)}")
    age = asked.get("max_age")
    return Retention(
        keep=asked.get("keep"),
        max_age_s=None if age is None else parse_duration(age, name="retain max_age"),
        origins=(origin,),
    )
