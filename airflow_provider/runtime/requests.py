"""Asking a driver for something through the job directory; no network path to it is needed."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.clock import Clock, to_iso
from airflow_provider.runtime.jobdir import ReplyRecord, RequestRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider.runtime.storage import Storage

CANCEL: Final = "cancel"


def put_cancel(storage: Storage, driver_id: str, clock: Clock) -> str:
    """Ask one driver to stop at once, now or when it comes up; a later driver is not meant.

    Returns:
        The request's id.
    """
    request = RequestRecord(
        id=uuid.uuid4().hex, kind=CANCEL, driver_id=driver_id, at=to_iso(clock.now())
    )
    request.put(storage, f"requests/{request.id}.json")
    return request.id


def pending_cancels(storage: Storage, driver_id: str) -> list[RequestRecord]:
    """Return the requests to cancel the driver that have no reply yet."""
    found = _cancels(storage, driver_id)
    return [request for request in found if read_reply(storage, request.id) is None]


def is_cancelled(storage: Storage, driver_id: str) -> bool:
    """Tell whether the driver was ever asked to stop."""
    return any(_cancels(storage, driver_id))


def reply(
    storage: Storage, request: RequestRecord, *, ok: bool, message: str, clock: Clock
) -> None:
    """Answer a request. Idempotent: by its id."""
    record = ReplyRecord(id=request.id, ok=ok, message=message, at=to_iso(clock.now()))
    record.put(storage, f"replies/{request.id}.json")


def read_reply(storage: Storage, request_id: str) -> ReplyRecord | None:
    """Return the driver's answer; None while there is none."""
    return ReplyRecord.read(storage, f"replies/{request_id}.json")


def _cancels(storage: Storage, driver_id: str) -> Iterator[RequestRecord]:
    for name in storage.list("requests"):
        request = RequestRecord.read(storage, f"requests/{name}")
        if request is not None and request.kind == CANCEL and request.driver_id == driver_id:
            yield request
