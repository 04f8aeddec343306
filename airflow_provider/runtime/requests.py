"""Asking a driver for something through the job directory; no network path to it is needed."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.clock import Clock, to_iso
from airflow_provider.runtime.jobdir import ReplyRecord, RequestRecord

if TYPE_CHECKING:
    from airflow_provider.runtime.storage import Storage

CANCEL: Final = "cancel"


def put_cancel(storage: Storage, token: int, clock: Clock) -> str:
    """Ask the driver that holds lease *token* to stop at once; a later driver is not meant.

    Returns:
        The request's id.
    """
    request = RequestRecord(id=uuid.uuid4().hex, kind=CANCEL, token=token, at=to_iso(clock.now()))
    request.put(storage, f"requests/{request.id}.json")
    return request.id


def pending_cancels(storage: Storage, token: int) -> list[RequestRecord]:
    """Return the requests to cancel the holder of lease *token* that have no reply yet."""
    found = []
    for name in storage.list("requests"):
        if storage.exists(f"replies/{name}"):
            continue
        request = RequestRecord.read(storage, f"requests/{name}")
        if request is not None and request.kind == CANCEL and request.token == token:
            found.append(request)
    return found


def reply(
    storage: Storage, request: RequestRecord, *, ok: bool, message: str, clock: Clock
) -> None:
    """Answer a request. Idempotent: by its id."""
    record = ReplyRecord(id=request.id, ok=ok, message=message, at=to_iso(clock.now()))
    record.put(storage, f"replies/{request.id}.json")


def read_reply(storage: Storage, request_id: str) -> ReplyRecord | None:
    """Return the driver's answer; None while there is none."""
    return ReplyRecord.read(storage, f"replies/{request_id}.json")
