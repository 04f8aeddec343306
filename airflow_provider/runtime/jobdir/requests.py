"""Requests to a driver through the job directory; no network path to it is needed.

Requests are numbered from 1, without a gap, in a folder of the driver, so no later driver reads
them. A caller puts the next number if it is absent. Twice a second the driver reads the number
after its last request, by name: on a network filesystem a listing may be stale.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import uuid
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base.clock import Clock, to_iso
from airflow_provider.runtime.base.names import check_name, is_name, numbers_in
from airflow_provider.runtime.base.typed_json import NonNegative
from airflow_provider.runtime.errors import EXIT_FATAL, EXIT_OK, CorruptDocumentError
from airflow_provider.runtime.errors.fixes import set_option
from airflow_provider.runtime.jobdir.run_records import ReplyRecord, RequestRecord
from airflow_provider.runtime.storage.documents import Contents, Document, Written

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider.runtime.api.storages import Storage


log = logging.getLogger(__name__)

CANCEL: Final = "cancel"
STOP: Final = "stop"
STOP_REQUEST: Final = "stop-request"
"""The label of a savepoint that a stop has requested; the request's id is its value."""


def put_request(
    storage: Storage,
    kind: str,
    driver_id: str,
    clock: Clock,
    *,
    request_id: str | None = None,
    **options: Any,
) -> RequestRecord:
    """Ask one driver, which may not have come up yet.

    Args:
        storage: the job directory.
        kind: ``stop``: end the batch in flight, and then the run; ``cancel``: end immediately.
        driver_id: the driver.
        clock: for the request's time.
        request_id: an id of a caller that may repeat the request; the first one stays.
        options: further fields of the request.

    Crash safety: one document, put if absent. Idempotent: by *request_id*.
    """
    if request_id is not None and (before := find_request(storage, request_id)) is not None:
        return before
    request = RequestRecord(
        id=check_name(request_id or uuid.uuid4().hex, what="request"),
        kind=kind,
        driver_id=driver_id,
        at=to_iso(clock.now()),
        number=1,
        **options,
    )
    while True:
        for number, taken in _numbered(storage, driver_id, request.number):
            if taken is not None and taken.id == request.id:
                return taken  # another caller of this id was faster
            request = dataclasses.replace(request, number=number + 1)
        if request.put_if_absent(storage, _request_path(driver_id, request.number)):
            return request


def find_request(storage: Storage, request_id: str) -> RequestRecord | None:
    """Return a request that was put before, to whichever driver; None when there is none."""
    check_name(request_id, what="request")
    drivers = filter(is_name, storage.list("requests"))
    found = (request for driver in drivers for request in requests_of(storage, driver))
    return next((request for request in found if request.id == request_id), None)


def put_cancel(storage: Storage, driver_id: str, clock: Clock) -> str:
    """Ask one driver to end immediately, or when it comes up; return the request's id."""
    return put_request(storage, CANCEL, driver_id, clock).id


def requests_of(storage: Storage, driver_id: str) -> list[RequestRecord]:
    """Return all requests that the driver ever got, oldest first."""
    return [request for _, request in _numbered(storage, driver_id) if request is not None]


def _numbered(
    storage: Storage, driver_id: str, first: int = 1
) -> Iterator[tuple[int, RequestRecord | None]]:
    """Yield each number from *first* on that is taken, with its request; None if it is damaged."""
    for number in itertools.count(first):
        try:
            request = RequestRecord.read(storage, _request_path(driver_id, number))
            if request is None:
                return
        except CorruptDocumentError as error:
            # A damaged folder says so here: in it every number would be that of a damaged request.
            storage.list(f"requests/{driver_id}")
            log.warning("a request is ignored: %s", error)
            request = None
        yield number, request


def pending_requests(storage: Storage, driver_id: str) -> list[RequestRecord]:
    """Return the driver's requests that it has not answered yet, oldest first."""
    found = requests_of(storage, driver_id)
    return [request for request in found if read_reply(storage, request.id) is None]


def is_requested(storage: Storage, driver_id: str) -> bool:
    """Whether the driver has an open request; one read while it never got one."""
    return bool(pending_requests(storage, driver_id))


def is_leaving(storage: Storage, driver_id: str) -> bool:
    """Whether the driver ever got a request to end before its run is over."""
    return bool(_leaving(storage, driver_id))


def forget_requests(storage: Storage, driver_id: str) -> None:
    """Remove a long-ended driver's requests and replies. Idempotent.

    Crash safety: the requests that are left have no gap, so the next call finds all of them.
    """
    for request in reversed(requests_of(storage, driver_id)):
        storage.delete(f"replies/{request.id}.json")
        storage.delete(_request_path(driver_id, request.number))


def has_agreed_to_leave(storage: Storage, driver_id: str) -> bool:
    """Whether the driver has answered that it ends before its run is over."""
    replies = (read_reply(storage, request.id) for request in _leaving(storage, driver_id))
    return any(reply is not None and reply.ok for reply in replies)


def _leaving(storage: Storage, driver_id: str) -> list[RequestRecord]:
    return [r for r in requests_of(storage, driver_id) if r.kind == CANCEL or r.keeps_run]


class Inbox:
    """The requests to one driver: one read per poll while there is no new one."""

    def __init__(self, storage: Storage, driver_id: str) -> None:
        self._storage = storage
        self._driver_id = driver_id
        self._next = 1
        self._open: dict[str, RequestRecord] = {}

    def pending(self) -> list[RequestRecord]:
        """Return the unanswered requests, oldest first.

        Raises:
            OSError: the storage does not answer; the requests are found later.
        """
        for number, request in _numbered(self._storage, self._driver_id, self._next):
            if request is not None and read_reply(self._storage, request.id) is None:
                self._open[request.id] = request
            self._next = number + 1
        return list(self._open.values())

    def answered(self, request_id: str) -> None:
        self._open.pop(request_id, None)


def reply(
    storage: Storage,
    request_id: str,
    *,
    ok: bool,
    message: str,
    clock: Clock,
    exit_code: int | None = None,
    outcome: str | None = None,
    savepoint: str | None = None,
) -> None:
    """Answer a request. Idempotent: by its id, the first answer stays.

    Args:
        storage: the job directory.
        request_id: the request.
        ok: whether it is met.
        message: for the caller.
        clock: for the reply's time.
        exit_code: of a refusal, see :class:`ReplyRecord`; None if nothing helps.
        outcome: how the run ended.
        savepoint: the savepoint that was taken.
    """
    record = ReplyRecord(
        id=request_id,
        ok=ok,
        message=message,
        at=to_iso(clock.now()),
        exit_code=EXIT_OK if ok else (exit_code or EXIT_FATAL),
        outcome=outcome,
        savepoint=savepoint,
    )
    record.put_if_absent(storage, f"replies/{request_id}.json")


def read_reply(storage: Storage, request_id: str) -> ReplyRecord | None:
    """Return the driver's answer; None while there is none."""
    return ReplyRecord.read(storage, f"replies/{request_id}.json")


def _request_path(driver_id: str, number: int) -> str:
    return f"requests/{check_name(driver_id, what='driver id')}/{number}.json"


def savepoint_is_complete(savepoint: str) -> str:
    """Return the message about a savepoint whose stop was not completed."""
    return (
        f"The savepoint {savepoint} is complete: continue from it in a new job directory "
        f"({set_option('from_savepoint', savepoint)}), which reads on from there, or in this one "
        "as before"
    )


NOBODY: Final = ""
"""The trigger of a claim for which none waits."""
_KEPT_CLAIMS: Final = 10  # so that an old listing, too, has a newer claim than a removed one


@dataclasses.dataclass(frozen=True, kw_only=True)
class WatchClaimRecord(Document):
    """``runs/<run id>/claims/<generation>.json``: a try of an Airflow task watches the run.

    A paused trigger may write a claim again that a later try has removed. The last claims are not
    removed, so the listing has a newer one, and the restored claim does not count.

    Attributes:
        nonce: tells it from that of a concurrent try.
        trigger: the trigger that began to wait last, another id in each triggerer; empty for none.
    """

    CONTENTS = Contents.FACTS
    LOCATIONS = ("runs/<run id>/claims/{generation}.json",)
    WRITTEN = Written("completed", "task, and its trigger", "no task watches the run")

    generation: NonNegative
    nonce: str
    trigger: str = NOBODY


def claim(run: Storage) -> int:
    """Take the next generation, which no other try gets, and remove old claims.

    Crash safety: leaves a harmless claim of a dead try.
    """
    newest = _newest(run)
    while True:
        mine = WatchClaimRecord(generation=newest + 1, nonce=uuid.uuid4().hex)
        is_mine = mine.put_if_absent(run, _path(mine.generation))
        newest = max(_newest(run), mine.generation)  # a listing may be old
        # A number may be free again because later ones are there: the highest is never removed.
        if is_mine and newest == mine.generation:
            break
    for earlier in numbers_in(run.list("claims"), ".json"):
        if earlier <= newest - _KEPT_CLAIMS:
            run.delete(_path(earlier))
    return newest


def replace_trigger(run: Storage, generation: int, trigger: str, *, old: str | None = None) -> None:
    """Record which trigger waits for a claim; with *old*, only in place of that one."""
    mine = WatchClaimRecord.read(run, _path(generation))
    if mine is not None and old in {None, mine.trigger}:
        dataclasses.replace(mine, trigger=trigger).put(run, _path(generation))


def is_newest(run: Storage, generation: int) -> bool:
    """Whether no later try has claimed the run."""
    # In this order: claims are removed from the lowest.
    is_last = WatchClaimRecord.read(run, _path(generation + 1)) is None
    return is_last and _newest(run) == generation


def is_watching(run: Storage, generation: int, trigger: str | None) -> bool:
    """Whether no later watcher watches the run."""
    if not is_newest(run, generation):
        return False
    mine = WatchClaimRecord.read(run, _path(generation)) if trigger is not None else None
    return trigger is None or (mine is not None and mine.trigger in {trigger, NOBODY})


def _newest(run: Storage) -> int:
    return max(numbers_in(run.list("claims"), ".json"), default=0)


def _path(generation: int) -> str:
    return f"claims/{generation}.json"
