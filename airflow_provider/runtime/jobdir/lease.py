"""The lease: the right to drive a job directory, and the fencing token that proves it.

``leases/<token>.json`` is put if absent with token = last + 1, so of several drivers one gets it.
The holder of the highest token owns the job; an owner is fenced when ``leases/<token + 1>.json``
exists (Kleppmann, "How to do distributed locking", 2016), which is read by name: a listing may be
stale. A lease ends when its holder releases it, when its processes are certainly gone, or when its
heartbeat has not changed for ``timeout_s`` *on the observer's own monotonic clock*: two machines'
clocks are never compared.

While the storage cannot be read nothing is measured, and of a long gap between two polls only half
the timeout counts, so that the holder can renew first. docs/internals/protocol.md has the table.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import errno
import itertools
import logging
import threading
import uuid
from typing import TYPE_CHECKING

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.base.clock import Clock, to_iso
from airflow_provider.runtime.errors import LeaseHeldError, LeaseLostError, SparkStreamError
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.lease_records import (
    HeartbeatRecord,
    LeaseRecord,
    has_ended,
    heartbeat_path,
    is_there,
    last_token,
    lease_path,
    read_heartbeat,
    read_lease,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.base.host import ProcessIdentity
    from airflow_provider.runtime.jobdir.run_records import FinalCheckpoint

log = logging.getLogger(__name__)

HEARTBEAT_S = 2.0
TIMEOUT_S = 20.0  # shorter, and a driver in a long pause is taken for dead: safe, but work is lost


class Liveness(str, enum.Enum):
    """An observer's knowledge of a lease's holder."""

    FREE = "free"  # there is no lease, or its holder released it
    DEAD = "dead"  # its processes are gone, or its heartbeat did not change for the timeout
    LIVE = "live"  # its heartbeat moved while it was watched
    UNKNOWN = "unknown"  # neither seen alive nor silent for long enough


TAKEABLE = frozenset({Liveness.FREE, Liveness.DEAD})


class LeaseObserver:
    """Watches a job's lease from outside."""

    def __init__(self, storage: Storage, clock: Clock) -> None:
        self._storage = storage
        self._clock = clock
        self._seen: tuple[int, int] | None = None  # token and heartbeat number
        self._seen_at = 0.0  # later by what does not count
        self._looked_at = 0.0
        self._was_blind = False
        self._moved = False
        self._lease: LeaseRecord | None = None  # a lease never changes

    def current(self) -> LeaseRecord | None:
        """Return the lease with the highest token, in any state."""
        if self._lease is None and (token := last_token(self._storage)):
            self._lease = read_lease(self._storage, token)
            if self._lease is None:  # as a new job it would begin at 1 again
                msg = f"{self._storage.url}/{lease_path(token)} is listed and not there"
                raise OSError(errno.ESTALE, msg)
        # Tokens have no gaps, and a listing may be older than what a name shows.
        while self._lease and (newer := read_lease(self._storage, self._lease.token + 1)):
            self._lease = newer
        return self._lease

    def look(self) -> tuple[LeaseRecord | None, Liveness]:
        """Poll once; an outage of the storage is no silence."""
        began = self._clock.monotonic()  # an answer may be as old as its question
        try:
            lease, beat = self._read()
        except OSError:
            self._was_blind = True
            raise
        if lease is None:
            return None, Liveness.FREE
        if beat is not None and beat.released:
            return lease, Liveness.FREE
        if lease.owner.is_gone():
            return lease, Liveness.DEAD
        return lease, self._assess(lease, beat.beat if beat else 0, began)

    def _read(self) -> tuple[LeaseRecord | None, HeartbeatRecord | None]:
        lease, beat = self._read_beat()
        if beat is None and self._seen is not None:  # the job directory was removed
            self._lease = None
            lease, beat = self._read_beat()
        return lease, beat

    def _read_beat(self) -> tuple[LeaseRecord | None, HeartbeatRecord | None]:
        lease = self.current()
        if lease is None:
            return None, None
        return lease, read_heartbeat(self._storage, lease.token)

    def _assess(self, lease: LeaseRecord, beat: int, began: float) -> Liveness:
        now = self._clock.monotonic()
        seen = (lease.token, beat)
        if seen != self._seen:
            self._moved = self._seen is not None and self._seen[0] >= lease.since
            self._seen, self._seen_at = seen, now
        else:
            gap = began - self._looked_at
            counted = 0.0 if self._was_blind else min(gap, lease.timeout_s / 2)
            self._seen_at += gap - counted
        self._looked_at, self._was_blind = now, False
        if began - self._seen_at >= lease.timeout_s:
            return Liveness.DEAD
        return Liveness.LIVE if self._moved else Liveness.UNKNOWN

    def settle(self, poll_s: float = 0.2) -> tuple[LeaseRecord | None, Liveness]:
        """Look until it is known whether the holder lives; takes one timeout at most."""
        while True:
            lease, liveness = self.look()
            if liveness is not Liveness.UNKNOWN:
                return lease, liveness
            self._clock.sleep(poll_s)


def wait_for_free_lease(storage: Storage, clock: Clock) -> LeaseObserver:
    """Return what has watched the lease until it was known that no driver holds it."""
    observer = LeaseObserver(storage, clock)
    held, liveness = observer.settle()
    if held is not None and liveness not in TAKEABLE:
        raise held_error(storage, held)
    return observer


class Lease:
    """A lease that this process holds."""

    def __init__(self, storage: Storage, record: LeaseRecord, clock: Clock) -> None:
        self._storage = storage
        self._clock = clock
        self._beats = itertools.count(1)
        self._beaten_at = clock.monotonic()
        self._away_since: float | None = None
        self._is_doubtful = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._turn = threading.RLock()  # a check meanwhile would take the next lease for another's
        self.record = record

    @property
    def token(self) -> int:
        """Return the fencing token: of two drivers the later one has the higher."""
        return self.record.token

    def start_heartbeat(self) -> None:
        self.beat()
        self._thread = threading.Thread(target=self._keep_beating, name="heartbeat", daemon=True)
        self._thread.start()

    def beat(self, *, released: bool = False) -> None:
        began, token = self._clock.monotonic(), self.token
        record = HeartbeatRecord(
            token=token,
            beat=next(self._beats),
            at=to_iso(self._clock.now()),
            released=released,
            doubtful=released and self._is_doubtful,
        )
        record.put(self._storage, heartbeat_path(token))
        self._beaten_at = max(self._beaten_at, began)

    def is_expiring(self) -> bool:
        """Whether no heartbeat could be put for so long that others may take over."""
        return self._clock.monotonic() - self._beaten_at >= self.record.timeout_s

    def is_lost(self) -> bool:
        """Whether another driver has taken over."""
        return is_there(self._storage, lease_path(self.token + 1))

    def outlived(self, token: int) -> bool:
        """Whether the driver that held the earlier *token* has certainly ended."""
        return token < self.token and has_ended(self._storage, token)

    def check(self) -> None:
        """Raise unless this driver may still commit.

        Raises:
            LeaseLostError: another driver has taken over, or the job directory is gone.
            OSError: the storage cannot be read, or the heartbeat cannot be written.
        """
        with self._turn:
            self._check()

    def _check(self) -> None:
        if self.is_expiring():  # after a pause, or an outage: no other driver may presume it dead
            self.beat()
        # In this order: where the next one was taken, and the job directory is gone again, this one
        # is gone as well.
        if self.is_lost():
            reason = (
                f"another driver has taken lease {self.token + 1} while this one held {self.token}"
            )
        elif self._is_known():
            return
        else:
            # What is there instead, such as an empty folder under a mount, knows no successor.
            reason = (
                f"lease {self.token} of this driver is not there any more, so this is not the job "
                "directory that it has begun in; check whether it was removed, or is not mounted"
            )
        raise LeaseLostError(
            f"{self._storage.url}: {reason}; this driver stops and has committed nothing since"
        )

    def _is_known(self) -> bool:
        try:
            found = self._storage.read(lease_path(self.token))
        except FileNotFoundError:
            return False
        return found == self.record.to_bytes()

    def renew(self) -> None:
        """Take the next lease as the same driver, with a token of its own.

        Raises:
            OSError: it is not known whether it was taken; the driver must end.
        """
        with self._turn:
            self._take_next(None)

    def seal(self, final: FinalCheckpoint) -> None:
        """Decide that the run has ended with *final*: the next lease carries it.

        A driver that takes over asks for the same name, so one of the two wins.

        Raises:
            LeaseLostError: another driver has taken over; the run has not ended.
            OSError: it is not known whether the run has ended; the next driver finds out.

        Crash safety: one document, put if absent; the next holder puts ``final.json`` if this one
        does not.
        """
        with self._turn:
            self._take_next(final)
        failpoints.hit("final.sealed")

    def _take_next(self, final: FinalCheckpoint | None) -> None:
        self.check()
        record = dataclasses.replace(
            self.record,
            token=self.token + 1,
            acquired=to_iso(self._clock.now()),
            first=self.record.since,
            final=final,
        )
        try:
            is_taken = record.put_if_absent(self._storage, lease_path(record.token))
        except OSError:  # the answer may be what was lost
            if read_lease(self._storage, record.token) != record:
                raise
            is_taken = True
        if not is_taken:
            raise LeaseLostError(
                f"{self._storage.url}: another driver has taken lease {record.token}"
            )
        self.record = record

    @contextlib.contextmanager
    def tolerating_outages(self) -> Iterator[None]:
        """Tolerate an outage of the storage in optional work, as long as the lease lasts.

        Nothing is committed meanwhile, and no observer takes over.
        """
        try:
            yield
        except OSError as error:
            now = self._clock.monotonic()
            self._away_since = now if self._away_since is None else self._away_since
            if self.is_expiring() or now - self._away_since >= self.record.timeout_s:
                raise
            log.warning("lease %s: the storage cannot be reached: %s", self.token, error)
        else:
            self._away_since = None

    def doubt(self) -> None:
        """Let the release say that something which this driver has started may continue."""
        self._is_doubtful = True

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Release it; after what is no error, such as an exit, nothing was stopped."""
        if error is not None and not isinstance(error, Exception):
            self.doubt()
        self.release()

    def release(self) -> None:
        """Stop the heartbeat and let the next driver in. Idempotent.

        Without storage, the lease ends by its timeout.
        """
        if self._stop.is_set():
            return
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=10)
        try:
            self.beat(released=True)
        except (OSError, SparkStreamError) as error:
            log.warning("lease %s could not be released: %s", self.token, error)

    def _keep_beating(self) -> None:
        while not self._stop.wait(self.record.heartbeat_s):
            try:
                self.beat()
            except (OSError, SparkStreamError) as error:
                # The storage may come back; until then ``check`` lets nothing be committed.
                log.warning("heartbeat of lease %s could not be written: %s", self.token, error)


def acquire_lease(
    storage: Storage,
    *,
    run_id: str,
    driver_id: str,
    owner: ProcessIdentity,
    clock: Clock,
    observer: LeaseObserver | None = None,
    timeout_s: float = TIMEOUT_S,
    heartbeat_s: float = HEARTBEAT_S,
) -> Lease:
    """Take the lease of a job directory and start its heartbeat.

    Waits while the holder is neither seen alive nor known to be dead, as far as *observer* does not
    know.

    Raises:
        LeaseHeldError: its holder is alive, or another driver was faster. Nothing was written.

    Crash safety: a lease whose holder dies ends by itself after ``timeout_s``.
    """
    observer = observer or LeaseObserver(storage, clock)
    held, liveness = observer.settle()
    if held is not None and liveness not in TAKEABLE:
        raise held_error(storage, held)
    if held is not None:
        put_sealed(storage, held)
    token = (held.token if held else 0) + 1
    record = LeaseRecord(
        token=token,
        first=token,
        run_id=run_id,
        driver_id=driver_id,
        nonce=uuid.uuid4().hex,
        owner=owner,
        heartbeat_s=heartbeat_s,
        timeout_s=timeout_s,
        acquired=to_iso(clock.now()),
        unended=_newest_unended(storage, held),
    )
    if not record.put_if_absent(storage, lease_path(record.token)):
        raise held_error(storage, read_lease(storage, record.token) or record)
    failpoints.hit("lease.acquired")
    lease = Lease(storage, record, clock)
    lease.start_heartbeat()
    return lease


def _newest_unended(storage: Storage, held: LeaseRecord | None) -> int:
    """Return the newest token up to *held* whose driver has not certainly ended; 0 for none."""
    if held is None:
        return 0
    return held.unended if has_ended(storage, held.token) else held.token


def put_sealed(storage: Storage, lease: LeaseRecord) -> None:
    """Put the final checkpoint that *lease* was sealed with, unless it is there. Idempotent."""
    if lease.final is not None:
        JobDirectory(storage).run(lease.run_id).put_final(lease.final)


def held_error(storage: Storage, held: LeaseRecord) -> LeaseHeldError:
    """Return the error that names the lease's holder, and the fix."""
    msg = (
        f"{storage.url}: another driver is running this job (lease {held.token}, run "
        f"{held.run_id!r}, on {held.owner.host}); wait for it, or end it with "
        f"'spark-stream cancel {storage.url}'"
    )
    return LeaseHeldError(msg)
