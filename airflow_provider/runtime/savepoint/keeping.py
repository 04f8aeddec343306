"""Keeping savepoints: which may go, removing one, and removing what broken attempts have left."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Protocol

from airflow_provider.runtime import failpoints
from airflow_provider.runtime.clock import Clock, SystemClock, from_iso, to_iso
from airflow_provider.runtime.errors import ConfigError, SavepointBusyError
from airflow_provider.runtime.savepoint.catalog import (
    Leftover,
    Savepoint,
    find_savepoints,
    open_savepoint,
)
from airflow_provider.runtime.savepoint.claims import claim, last_claim, release
from airflow_provider.runtime.savepoint.records import COLLECTING, MANIFEST, check_origin
from airflow_provider.runtime.storage import Document, local_path_of, open_storage
from airflow_provider.runtime.storage.trees import files_under, remove_if_empty, remove_tree

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Collection, Iterable, Sequence

    from airflow_provider.runtime.storage import Storage

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Retention:
    """Which savepoints may go: those that are too many and those that are too old.

    Attributes:
        keep: how many of the newest ones stay; None for any number.
        max_age_s: how old one may get, seconds; None for any age.
        origins: only savepoints of these origins are looked at.
    """

    keep: int | None = None
    max_age_s: float | None = None
    origins: tuple[str, ...] = ("periodic",)

    def __post_init__(self) -> None:
        """Refuse what makes no sense.

        Raises:
            ConfigError: nothing is asked for, or a number is out of range.
        """
        if self.keep is None and self.max_age_s is None:
            msg = "retention needs a number to keep, a greatest age, or both"
            raise ConfigError(msg)
        if self.keep is not None and self.keep < 1:
            msg = f"keep={self.keep}: at least the newest savepoint is kept, so 1 is the least"
            raise ConfigError(msg)
        for origin in self.origins:
            check_origin(origin)

    def expired(self, savepoints: Sequence[Savepoint], now: dt.datetime) -> list[Savepoint]:
        """Return those that may go, oldest first; never the newest of all.

        Args:
            savepoints: all there are, oldest first.
            now: the time.
        """
        ours = [s for s in savepoints if s.record.origin in self.origins]
        many = ours[: -self.keep] if self.keep is not None else []
        old = [s for s in ours if self._is_old(s, now)]
        gone = {s.url for s in (*many, *old)} - {s.url for s in savepoints[-1:]}
        return [s for s in ours if s.url in gone]

    def _is_old(self, savepoint: Savepoint, now: dt.datetime) -> bool:
        if self.max_age_s is None:
            return False
        taken = from_iso(savepoint.record.taken)
        return (now - taken).total_seconds() > self.max_age_s


class Rule(Protocol):
    """What says which savepoints may go; :class:`Retention` is one."""

    def expired(self, savepoints: Sequence[Savepoint], now: dt.datetime) -> list[Savepoint]:
        """Return those that may go, of all there are, oldest first."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CollectingRecord(Document):
    """``collecting.json``: garbage is being collected, so nothing must be shared meanwhile."""

    began: str


def retain(root_url: str, retention: Rule, *, clock: Clock | None = None) -> list[str]:
    """Dispose of the savepoints that may go, and remove what broken attempts have left.

    Args:
        root_url: the folder whose children are savepoints.
        retention: which ones may go.
        clock: time; None for the machine's.

    Returns:
        The names of the savepoints that are gone.

    Crash safety: calling it again completes it.
    """
    clock = clock or SystemClock()
    root = open_storage(root_url)
    savepoints, _ = find_savepoints(root)
    gone = []
    for savepoint in retention.expired(savepoints, clock.now()):
        try:
            _unmake(root.at(savepoint.folder), clock)
        except SavepointBusyError as error:
            log.warning("%s", error)
            continue
        gone.append(savepoint.folder)
    collect_garbage(root_url, clock=clock)
    return gone


def dispose(url: str, *, clock: Clock | None = None) -> None:
    """Remove one savepoint; what newer ones beside it share with it stays.

    Raises:
        UnknownJobError: there is none.
        SavepointBusyError: somebody is restoring or removing it.

    Crash safety: it is complete, or garbage; calling it again completes it.
    """
    clock = clock or SystemClock()
    place = open_storage(url)
    root_url, _, folder = place.url.rpartition("/")
    before = last_claim(place)
    half_removed = before is not None and before.purpose == "remove" and not place.exists(MANIFEST)
    if not half_removed:
        open_savepoint(url)
        _unmake(place, clock)
    elif before is not None and not before.has_ended(clock):
        claim(place, "remove", clock)  # which says who is at it
    collect_garbage(root_url, only=folder, clock=clock)


def _unmake(place: Storage, clock: Clock) -> None:
    """Make a savepoint garbage: from here on there is none."""
    claim(place, "remove", clock)
    failpoints.hit("savepoint.removing")
    place.delete(MANIFEST)
    failpoints.hit("savepoint.removed")
    release(place)


def collect_garbage(
    root_url: str, *, only: str | None = None, clock: Clock | None = None
) -> list[str]:
    """Remove the folders that are no savepoint and at which nobody is, but for shared files.

    Args:
        root_url: the folder whose children are savepoints.
        only: the one folder to look at; None for all.
        clock: time; None for the machine's.

    Returns:
        The names of the folders of which something was removed.
    """
    clock = clock or SystemClock()
    root = open_storage(root_url)
    leftovers = [
        leftover
        for leftover in find_savepoints(root)[1]
        if only in {None, _name_of(leftover)}
        and (leftover.claim is None or leftover.claim.has_ended(clock))
    ]
    if not leftovers:
        return []
    CollectingRecord(began=to_iso(clock.now())).put(root, COLLECTING)
    try:
        return [_name_of(leftover) for leftover in leftovers if _collect(root, leftover, clock)]
    finally:
        root.delete(COLLECTING)


def _collect(root: Storage, leftover: Leftover, clock: Clock) -> bool:
    """Remove one folder's garbage; False when somebody is at it, or all of it is shared."""
    place = leftover.place
    try:
        claim(place, "remove", clock)
    except SavepointBusyError:
        return False
    failpoints.hit("savepoint.collecting")
    savepoints, others = find_savepoints(root)
    completed = place.exists(MANIFEST)
    is_local = local_path_of(place.url) is not None
    if completed or (not is_local and _is_being_taken(others, clock)):
        release(place)
        return False
    removed = _remove_unshared(place, _shared_in(_name_of(leftover), savepoints))
    failpoints.hit("savepoint.collected")
    release(place)
    remove_if_empty(place.url)
    return removed


def _is_being_taken(others: Iterable[Leftover], clock: Clock) -> bool:
    """Tell whether somebody may be about to name files that nobody has named before."""
    claims = (other.claim for other in others if other.claim is not None)
    return any(held.purpose == "take" and not held.has_ended(clock) for held in claims)


def _shared_in(folder: str, savepoints: Iterable[Savepoint]) -> set[str]:
    """Return the paths in a folder that savepoints elsewhere name."""
    return {
        path
        for savepoint in savepoints
        for path, file in savepoint.record.files()
        if file.holder == folder
    }


def _remove_unshared(place: Storage, shared: Collection[str]) -> bool:
    if not shared:
        remove_tree(f"{place.url}/queries")
        return True
    found = [f"queries/{path}" for path, _ in files_under(f"{place.url}/queries")]
    doomed = [path for path in found if path not in shared]
    for path in doomed:
        place.delete(path)
    return bool(doomed)


def _name_of(leftover: Leftover) -> str:
    return leftover.place.url.rpartition("/")[2]
