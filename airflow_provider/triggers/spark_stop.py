"""Trigger that waits for a driver's answer to a stop request."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider.hooks.storage_connection import TaskStorage
from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.control.stop import StopCall
from airflow_provider.runtime.errors import SparkStreamError, StopNotYetError
from airflow_provider.runtime.jobdir.lease import LeaseObserver
from airflow_provider.runtime.storage.open import open_storage
from airflow_provider.triggers.polling import delay_event

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from airflow_provider.runtime.base.clock import Clock


class SparkStopTrigger(BaseTrigger):
    """Fires once: when the driver has answered, has ended without an answer, or time is up.

    Its event holds ``answer``, or ``error`` and ``may_retry``. A killed task leaves its request.

    Args:
        job_dir: URL of the job directory.
        request_id: the request.
        run_id: the run that is stopped.
        token: the lease of the driver that got the request.
        timeout_s: how long to wait from now on.
        poll_interval: seconds between polls.
        storage_conn_id: the connection with the keys for S3; None for the task's default.
    """

    def __init__(
        self,
        job_dir: str,
        request_id: str,
        run_id: str,
        token: int,
        *,
        timeout_s: float,
        poll_interval: float = 1.0,
        storage_conn_id: str | None = None,
        **_: Any,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow has no types there
        self.job_dir = job_dir
        self.request_id = request_id
        self.run_id = run_id
        self.token = token
        self.timeout_s = timeout_s
        self.poll_interval = poll_interval
        self.storage_conn_id = storage_conn_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            "airflow_provider.triggers.spark_stop.SparkStopTrigger",
            {
                "v": 1,
                "job_dir": self.job_dir,
                "request_id": self.request_id,
                "run_id": self.run_id,
                "token": self.token,
                "timeout_s": self.timeout_s,
                "poll_interval": self.poll_interval,
                **({"storage_conn_id": self.storage_conn_id} if self.storage_conn_id else {}),
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        clock = SystemClock()
        began = clock.monotonic()
        storage = TaskStorage(self.storage_conn_id, self.job_dir)
        with await asyncio.to_thread(storage.opened):
            event = await self._wait(clock)
        await delay_event(began, clock)
        yield TriggerEvent(event)  # type: ignore[no-untyped-call]  # as above

    async def _wait(self, clock: Clock) -> dict[str, Any]:
        call = StopCall(self.job_dir, self.request_id, self.run_id, self.token)
        observer = LeaseObserver(open_storage(self.job_dir), clock)
        deadline = clock.monotonic() + self.timeout_s
        while clock.monotonic() < deadline:
            try:
                answer = await asyncio.to_thread(call.poll, observer)
            except SparkStreamError as error:
                return _refusal(error)
            except OSError as error:  # the storage may be away for a while
                self.log.warning("%s cannot be read: %s", self.job_dir, error)
                answer = None
            if answer is not None:
                return {"answer": answer.to_dict()}
            await asyncio.sleep(self.poll_interval)
        return _refusal(call.timed_out(self.timeout_s))


def _refusal(error: SparkStreamError) -> dict[str, Any]:
    return {"error": str(error), "may_retry": isinstance(error, StopNotYetError)}
