"""Asking a driver for something through the job directory; no network path to it is needed."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.clock import Clock, to_iso
from airflow_provider.runtime.jobdir import ReplyRecord, RequestRecord

if TYPE_CHECKING:
    from airflow_provider.runtime.storage import Storage

CANCEL: Final = "cancel"
STOP: Final = "stop"


def put_request(
    storage: Storage,
    kind: str,
    driver_id: str,
    clock: Clock,
    *,
    request_id: str | None = None,
    **options: Any,
) -> RequestRecord:
    """Ask one driver, which may have yet to come up; a later driver is not meant.

    Args:
        storage: the job directory.
        kind: ``stop``: end the batch in flight, and then the run; ``cancel``: end at once.
        driver_id: the driver.
        clock: for the request's time.
        request_id: of who may have to ask again; the first request of this id stays.
        options: further members of the request.
    """
    request = RequestRecord(
        id=request_id or uuid.uuid4().hex,
        kind=kind,
        driver_id=driver_id,
        at=to_iso(clock.now()),
        **options,
    )
    if request.put_if_absent(storage, _request(request.id)):
        return request
    return find_request(storage, request.id) or request


def find_request(storage: Storage, request_id: str) -> RequestRecord | None:
    """Return a request that was put before; None when there is none of this id."""
    return RequestRecord.read(storage, _request(request_id))


def put_cancel(storage: Storage, driver_id: str, clock: Clock) -> str:
    """Ask one driver to end at once, now or when it comes up.

    Returns:
        The request's id.
    """
    return put_request(storage, CANCEL, driver_id, clock).id


def pending_requests(storage: Storage, driver_id: str) -> list[RequestRecord]:
    """Return what the driver is asked and has not answered yet, oldest first."""
    answered = set(storage.list("replies"))
    found = [
        RequestRecord.read(storage, f"requests/{name}")
        for name in storage.list("requests")
        if name not in answered
    ]
    mine = [request for request in found if request is not None and request.driver_id == driver_id]
    return sorted(mine, key=lambda request: request.at)


def is_leaving(storage: Storage, driver_id: str) -> bool:
    """Tell whether the driver was ever asked to end before its run is over."""
    found = (RequestRecord.read(storage, f"requests/{n}") for n in storage.list("requests"))
    mine = [r for r in found if r is not None and r.driver_id == driver_id]
    return any(request.kind == CANCEL or request.keeps_run for request in mine)


def reply(
    storage: Storage,
    request_id: str,
    *,
    ok: bool,
    message: str,
    clock: Clock,
    outcome: str | None = None,
    savepoint: str | None = None,
) -> None:
    """Answer a request. Idempotent: by its id, the first answer stays."""
    record = ReplyRecord(
        id=request_id,
        ok=ok,
        message=message,
        at=to_iso(clock.now()),
        outcome=outcome,
        savepoint=savepoint,
    )
    record.put_if_absent(storage, f"replies/{request_id}.json")


def read_reply(storage: Storage, request_id: str) -> ReplyRecord | None:
    """Return the driver's answer; None while there is none."""
    return ReplyRecord.read(storage, f"replies/{request_id}.json")


def _request(request_id: str) -> str:
    return f"requests/{request_id}.json"
