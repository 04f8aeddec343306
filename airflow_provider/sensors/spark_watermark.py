"""``SparkWatermarkSensor``: wait until what a stream has written is complete up to a moment."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_provider.airflow_versions import AirflowFailException
from airflow_provider.hooks.storage_connection import opening_storage
from airflow_provider.runtime.base.clock import from_iso
from airflow_provider.runtime.base.names import check_name
from airflow_provider.runtime.errors import ConfigError, SparkStreamError
from airflow_provider.runtime.jobdir.layout import directory_at
from airflow_provider.runtime.jobdir.upgrade_record import active_directory
from airflow_provider.runtime.observe.completeness import Completeness, completeness
from airflow_provider.runtime.storage.open import local_path_of
from airflow_provider.triggers.spark_watermark import SparkWatermarkTrigger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context


class SparkWatermarkSensor(BaseSensorOperator):
    """Wait until the output of a stream is complete up to an event time.

    The watermark of the last published batch must reach that time. Late rows may still come, and a
    query without windows writes them. A FINISHED job is complete permanently. No Spark connection
    is needed. See docs/events.md.

    XCom: for each query, the event time up to which its output is complete; ``end`` after a drain.

    Args:
        job_dir: the job directory; it may still be empty.
        up_to: the event time, ISO 8601, by default in UTC.
        queries: the queries to wait for; by default all that have started.
        deferrable: wait in the triggerer, without a worker slot.
        poke_interval: seconds between two polls.
        storage_conn_id: the connection of type ``aws`` with the S3 credentials; by default
            ``[spark_stream] storage_conn_id``, then the environment's credentials.

    Raises:
        ConfigError: a query's name is invalid; when the DAG is parsed.
    """

    template_fields: Sequence[str] = ("job_dir", "up_to", "storage_conn_id")
    ui_color: str = "#e7f0f7"

    def __init__(
        self,
        *,
        job_dir: str,
        up_to: str = "{{ data_interval_end }}",
        queries: Sequence[str] = (),
        deferrable: bool = True,
        poke_interval: dt.timedelta | float = 10,
        storage_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        if isinstance(queries, str):
            raise ConfigError(f"queries {queries!r}: give a list of names")
        self.job_dir = job_dir
        self.up_to = up_to
        self.queries = [check_name(query, what="query") for query in queries]
        self.deferrable = deferrable
        self.storage_conn_id = storage_conn_id

    def execute(self, context: Context) -> Any:
        """Poll, and wait in the triggerer if the output is not complete yet.

        Raises:
            AirflowFailException: *up_to* is no moment, or the job directory is damaged.
            AirflowSensorTimeout: it was not complete in time.
        """
        if not self.deferrable:
            return super().execute(context)
        found = self.poke(context)
        if found:
            return found.xcom_value
        return self.defer(
            trigger=SparkWatermarkTrigger(
                job_dir=local_path_of(self.job_dir) or self.job_dir,  # not relative to this worker
                up_to_ms=self._up_to_ms(),
                queries=self.queries,
                poll_interval=max(float(self.poke_interval), 0.1),
                storage_conn_id=self.storage_conn_id,
            ),
            method_name="resume",
            timeout=dt.timedelta(seconds=self.timeout),
        )

    def poke(self, context: Context) -> PokeReturnValue:
        up_to_ms = self._up_to_ms()
        found = self._completeness()
        complete = found.describe()
        if found.is_up_to(up_to_ms):
            return PokeReturnValue(is_done=True, xcom_value=complete)
        self.log.info("Waiting for %s; complete up to: %s", self.up_to, complete or "nothing yet")
        return PokeReturnValue(is_done=False)

    def resume(self, context: Context, event: dict[str, Any]) -> dict[str, str | None]:
        del context
        if "error" in event:
            raise AirflowFailException(event["error"])
        return dict(event["complete"])

    @opening_storage
    def _completeness(self) -> Completeness:
        try:
            return completeness(directory_at(active_directory(self.job_dir)), self.queries)
        except SparkStreamError as error:
            raise AirflowFailException(str(error)) from error

    def _up_to_ms(self) -> int:
        try:
            moment = from_iso(str(self.up_to))
        except ValueError as error:
            raise AirflowFailException(
                f"up_to {self.up_to!r} is no moment such as 2026-01-01T00:00:00Z; a DAG run "
                "without a data interval needs one that says which"
            ) from error
        aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.timezone.utc)
        return int(aware.timestamp() * 1000)
