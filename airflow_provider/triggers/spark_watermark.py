"""Trigger that waits until the output of a stream is complete up to a moment."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider.hooks.storage_connection import TaskStorage
from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.storage.open import local_path_of
from airflow_provider.triggers.polling import delay_event, poll_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from airflow_provider.runtime.observe.completeness import Completeness


class SparkWatermarkTrigger(BaseTrigger):
    """Fires once, when the output of all queries is complete up to a moment of event time.

    Its event holds ``complete``, per query the moment up to which it is; or ``error``.

    Args:
        job_dir: URL of the job directory.
        up_to_ms: the moment, in milliseconds since 1970.
        queries: the queries that count; none for all.
        poll_interval: seconds between polls.
        storage_conn_id: the connection with the keys for S3; None for the task's default.
    """

    def __init__(
        self,
        job_dir: str,
        up_to_ms: int,
        *,
        queries: Sequence[str] = (),
        poll_interval: float = 10.0,
        storage_conn_id: str | None = None,
        **_: Any,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow has no types there
        self.job_dir = job_dir
        self.up_to_ms = up_to_ms
        self.queries = list(queries)
        self.poll_interval = poll_interval
        self.storage_conn_id = storage_conn_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            "airflow_provider.triggers.spark_watermark.SparkWatermarkTrigger",
            {
                "v": 1,
                "job_dir": self.job_dir,
                "up_to_ms": self.up_to_ms,
                "queries": self.queries,
                "poll_interval": self.poll_interval,
                **({"storage_conn_id": self.storage_conn_id} if self.storage_conn_id else {}),
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        clock = SystemClock()
        began = clock.monotonic()
        storage = TaskStorage(self.storage_conn_id, self.job_dir)
        with await asyncio.to_thread(storage.opened):
            event = await poll_until(
                self._make_poll(),
                every_s=self.poll_interval,
                is_near=local_path_of(self.job_dir) is not None,
            )
        await delay_event(began, clock)
        yield TriggerEvent(event)  # type: ignore[no-untyped-call]  # as above

    def _make_poll(self) -> Callable[[], dict[str, Any] | None]:
        last: Completeness | None = None

        def poll() -> dict[str, Any] | None:
            nonlocal last
            # Here, in a thread: the first import of what reads a job takes a while.
            from airflow_provider.runtime.errors import SparkStreamError
            from airflow_provider.runtime.jobdir.layout import directory_at
            from airflow_provider.runtime.jobdir.upgrade_record import active_directory
            from airflow_provider.runtime.observe.completeness import completeness

            try:
                job_dir = active_directory(self.job_dir)
                found = completeness(directory_at(job_dir), self.queries)
            except SparkStreamError as error:
                return {"error": str(error)}
            except OSError as error:  # the storage may be away for a while
                self.log.warning("%s cannot be read: %s", self.job_dir, error)
                return None
            if found.is_up_to(self.up_to_ms):
                return {"complete": found.describe()}
            if found != last:
                last = found
                self.log.info("complete up to: %s", found.describe() or "nothing yet")
            return None

        return poll
