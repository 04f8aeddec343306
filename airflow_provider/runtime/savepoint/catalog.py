"""Savepoints where they lie: one by its address, or all of a folder. Only reads."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from airflow_provider.runtime.errors import UnknownJobError
from airflow_provider.runtime.savepoint.claims import ClaimRecord, last_claim
from airflow_provider.runtime.savepoint.records import (
    COLLECTING,
    MANIFEST,
    SavepointRecord,
)
from airflow_provider.runtime.savepoint.refusing import refusing
from airflow_provider.runtime.storage import open_storage

if TYPE_CHECKING:
    from airflow_provider.runtime.storage import Storage


@dataclasses.dataclass(frozen=True)
class Savepoint:
    """A complete savepoint.

    Attributes:
        url: its folder; it may have been moved since it was taken.
        record: what it says of itself.
    """

    url: str
    record: SavepointRecord

    @property
    def folder(self) -> str:
        """Return its folder's name."""
        return self.url.rstrip("/").rpartition("/")[2]


@dataclasses.dataclass(frozen=True)
class Leftover:
    """A folder that is no savepoint: not yet, not any more, or its taker died.

    Attributes:
        place: the folder.
        claim: who is, or was, at it; None for what nobody has claimed.
    """

    place: Storage
    claim: ClaimRecord | None


def open_savepoint(url: str) -> Savepoint:
    """Return the savepoint in the folder *url*.

    Raises:
        UnknownJobError: there is none, or it is not complete.
        UnsupportedVersionError: it was taken by a newer version of this package.
        RefusedCheckpointError: its record is damaged.
        ConfigError: it cannot be read.
    """
    storage = open_storage(url)
    with refusing(storage.url, "read"):
        record = SavepointRecord.read(storage, MANIFEST)
    if record is not None:
        return Savepoint(storage.url, record)
    held = last_claim(storage)
    if held is not None:
        msg = (
            f"{storage.url}: this savepoint is not complete: it is being taken or removed since "
            f"{held.began} on {held.owner['host']}, or that process died"
        )
    elif storage.list(""):
        msg = f"{storage.url}: no savepoint there (no {MANIFEST}); was it disposed of?"
    else:
        msg = f"{storage.url}: no savepoint there; check the path"
    raise UnknownJobError(msg)


def find_savepoints(root: Storage) -> tuple[list[Savepoint], list[Leftover]]:
    """Return all savepoints of a folder, oldest first, and what is none.

    Whoever removes a leftover claims it first, since somebody may begin to take it right now.
    """
    found: list[Savepoint] = []
    leftovers: list[Leftover] = []
    for name in root.list(""):
        if name == COLLECTING:
            continue
        place = root.at(name)
        # In this order: a taker removes the first only after it has put the second.
        held = last_claim(place)
        record = SavepointRecord.read(place, MANIFEST)
        if record is not None:
            found.append(Savepoint(place.url, record))
        elif held is not None or place.list(""):
            leftovers.append(Leftover(place, held))
    return sorted(found, key=lambda s: (s.record.taken, s.folder)), leftovers
