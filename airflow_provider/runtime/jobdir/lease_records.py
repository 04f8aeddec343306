"""Leases and heartbeats as documents, found by the names of their tokens."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from airflow_provider.runtime.base.host import ProcessIdentity
from airflow_provider.runtime.base.names import numbers_in
from airflow_provider.runtime.base.typed_json import Name, NonNegative, PathPart, Positive, Seconds
from airflow_provider.runtime.jobdir.run_records import FinalCheckpoint
from airflow_provider.runtime.storage.documents import Contents, Document, Written

if TYPE_CHECKING:
    from airflow_provider.runtime.api.storages import Storage


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeaseRecord(Document):
    """``leases/<token>.json``: the driver of the job, and its run.

    Attributes:
        first: the token of the first lease of its driver, which has taken all since then.
        final: of a sealed lease: the final checkpoint of the run, which it decides.
        unended: the newest earlier token whose driver had not certainly ended at this acquisition;
            0 for none. That driver may still write to its checkpoints.
    """

    CONTENTS = Contents.FACTS
    LOCATIONS = ("leases/{token}.json", "upgrades/leases/{token}.json")
    WRITTEN = Written("once", "driver, or upgrade", "the token is free")

    token: Positive
    run_id: PathPart
    driver_id: Name
    nonce: str
    owner: ProcessIdentity
    heartbeat_s: Seconds
    timeout_s: Seconds
    acquired: str
    first: NonNegative = 0
    final: FinalCheckpoint | None = None
    unended: NonNegative = 0

    def problem(self) -> str | None:
        if self.final is not None and self.final.run_id != self.run_id:
            return f"final.run_id: expected {self.run_id}, found {self.final.run_id}"
        return None

    @property
    def since(self) -> int:
        """Return the token under which its driver began, by which it is known."""
        return self.first or self.token


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeartbeatRecord(Document):
    """``heartbeats/<token>.json``: proof of life; the number ``beat`` only grows.

    Attributes:
        doubtful: of a release: what the driver has started in Spark could not be stopped.
    """

    CONTENTS = Contents.FACTS
    LOCATIONS = ("heartbeats/{token}.json", "upgrades/heartbeats/{token}.json")
    WRITTEN = Written("replaced", "holder, every two seconds", "as one that never changes")

    token: Positive
    beat: NonNegative
    at: str
    released: bool = False
    doubtful: bool = False


def last_token(storage: Storage) -> int:
    """Return the highest token that is listed; 0 when there is none.

    Heartbeats are listed, since old ones are removed; leases where no heartbeat is. A listing may
    be stale: see :func:`newest_token`.
    """
    beaten = max(numbers_in(storage.list("heartbeats"), ".json"), default=0)
    if beaten and is_there(storage, lease_path(beaten)):
        return beaten
    return max(numbers_in(storage.list("leases"), ".json"), default=0)


def newest_token(storage: Storage) -> int:
    """Return the highest token ever given; 0 when there is none. Tokens have no gaps."""
    token = last_token(storage)
    while token and is_there(storage, lease_path(token + 1)):
        token += 1
    return token


def read_lease(storage: Storage, token: int) -> LeaseRecord | None:
    """Return the lease of that token; None when there is none."""
    return LeaseRecord.read(storage, lease_path(token))


def read_heartbeat(storage: Storage, token: int) -> HeartbeatRecord | None:
    """Return the last heartbeat of that lease; None when there is none."""
    return HeartbeatRecord.read(storage, heartbeat_path(token))


def lease_path(token: int) -> str:
    """Return where the lease of that token lies, or would."""
    return f"leases/{token}.json"


def heartbeat_path(token: int) -> str:
    """Return where the last heartbeat of that lease lies, or would."""
    return f"heartbeats/{token}.json"


def is_there(storage: Storage, path: str) -> bool:
    """Whether the document exists, by one read: it is fresher than a listing, and cheaper."""
    try:
        storage.read(path)
    except FileNotFoundError:
        return False
    return True


def has_ended(storage: Storage, token: int) -> bool:
    """Whether the driver that held *token* has certainly ended.

    Only a release without a doubt and dead processes are certain; a silent heartbeat is not.
    """
    while (newer := read_lease(storage, token + 1)) is not None and newer.since <= token:
        token = newer.token
    beat = read_heartbeat(storage, token)
    if beat is not None and beat.released and not beat.doubtful:
        return True
    lease = read_lease(storage, token)
    return lease is not None and lease.owner.is_gone()
