"""Claims of a savepoint's folder: the process that may write there, and those that read.

``writer.<token>.json`` is put if absent with token = last + 1, as a lease is, so that of several
claimants one gets the folder. It is also the mark of a savepoint that is not complete: a folder
with neither a claim nor ``savepoint.json`` belongs to others, and nothing is removed in it.

``reader.<nonce>.json`` is put by each process that restores the savepoint; there may be many.
Readers and removers put their own document first and then look for the other's, so that at least
one of them sees the other and gives way.

Either ends when its process has certainly ended. For another machine that is unknown, so a document
from there counts until it is ``BROKEN_AFTER_S`` old; age counts nowhere else.
"""

from __future__ import annotations

import dataclasses
import re
import uuid
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.base.clock import from_iso, to_iso
from airflow_provider.runtime.base.host import ProcessIdentity, identify_this
from airflow_provider.runtime.base.typed_json import IsoTime, Positive
from airflow_provider.runtime.errors import ConfigError, SavepointBusyError
from airflow_provider.runtime.storage.documents import Contents, Document
from airflow_provider.runtime.storage.open import local_path_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.base.clock import Clock

TAKE: Final = "take"
REMOVE: Final = "remove"
BROKEN_AFTER_S: Final = 86_400.0
"""No take, restore or removal takes a day; clocks of two machines do not differ by one."""
_CLAIM: Final = re.compile(r"writer\.([1-9][0-9]*)\.json")
_READER: Final = re.compile(r"reader\.[0-9a-f]+\.json")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReaderRecord(Document):
    """``reader.<nonce>.json``: a process restores the savepoint.

    Attributes:
        owner: its process.
    """

    CONTENTS = Contents.FACTS
    PLACES = ("reader.{nonce}.json",)

    nonce: str
    owner: ProcessIdentity
    began: IsoTime

    def has_ended(self, clock: Clock) -> bool:
        """Whether its process has ended, or must be presumed dead."""
        if self.owner.is_gone():
            return True
        if self.owner.space is not None and self.owner.space == identify_this().space:
            return False  # it lives, whatever the clock says
        began = from_iso(self.began)
        return (clock.now() - began).total_seconds() > BROKEN_AFTER_S


@dataclasses.dataclass(frozen=True, kw_only=True)
class SavepointClaimRecord(ReaderRecord):
    """``writer.<token>.json``: a process takes or removes the savepoint.

    Attributes:
        purpose: ``take`` or ``remove``.
        ended: whether the process has ended and left the folder as garbage: files that stay belong
            to savepoints beside it.
    """

    CONTENTS = Contents.FACTS
    PLACES = ("writer.{token}.json",)

    token: Positive
    purpose: str
    ended: bool = False

    def has_ended(self, clock: Clock) -> bool:
        """Whether its process has ended, or must be presumed dead."""
        return self.ended or super().has_ended(clock)


def claim_names(names: Iterable[str]) -> list[str]:
    """Return those of the names in a folder that are claims."""
    return [name for name in names if _CLAIM.fullmatch(name)]


def reader_names(names: Iterable[str]) -> list[str]:
    """Return those of the names in a folder that are readers'."""
    return [name for name in names if _READER.fullmatch(name)]


def last_claim(place: Storage) -> SavepointClaimRecord | None:
    """Return the claim that counts; None when there is none."""
    tokens = [int(m[1]) for name in place.list("") if (m := _CLAIM.fullmatch(name))]
    return SavepointClaimRecord.read(place, _name(max(tokens))) if tokens else None


def claim(place: Storage, purpose: str, clock: Clock) -> SavepointClaimRecord:
    """Take the right to write in the folder.

    Raises:
        SavepointBusyError: another process has it.

    Crash safety: a claim whose process dies ends by itself.
    """
    before = last_claim(place)
    if before is not None and not before.has_ended(clock):
        raise busy(place, before)
    mine = SavepointClaimRecord(
        token=before.token + 1 if before else 1,
        purpose=purpose,
        nonce=uuid.uuid4().hex,
        owner=identify_this(),
        began=to_iso(clock.now()),
    )
    if not mine.put_if_absent(place, _name(mine.token)):
        raise busy(place, last_claim(place) or mine)
    return mine


def check_claimable(place: Storage, names: Collection[str]) -> None:
    """Refuse a folder, without a savepoint, that has more than a dead claimant's leftovers.

    Raises:
        ConfigError: the message says what is there.
    """
    claims = claim_names(names)
    if claims and not set(names) - {*claims, "queries"}:
        before = last_claim(place)
        was_removed = before is not None and before.purpose == REMOVE and "queries" in names
        if not was_removed or local_path_of(place.url) is not None:
            return
        msg = (
            f"{place.url}: a savepoint of this name was disposed of, and others may need its "
            "files; choose another name"
        )
        raise ConfigError(msg)
    if names:
        msg = f"{place.url}: the folder is not empty; choose another one"
        raise ConfigError(msg)


def is_held(place: Storage, mine: SavepointClaimRecord) -> bool:
    """Whether a claim is still the one that counts; read by name, not by a listing."""
    there = SavepointClaimRecord.read(place, _name(mine.token))
    if there is None or there.nonce != mine.nonce:
        return False
    return not place.exists(_name(mine.token + 1))


def withdraw(place: Storage, mine: SavepointClaimRecord) -> None:
    """Give a claim back, with nothing changed. Idempotent."""
    if is_held(place, mine):
        place.delete(_name(mine.token))


def end(place: Storage, mine: SavepointClaimRecord) -> None:
    """Leave a claim as the mark of garbage, for retention to collect. Idempotent."""
    dataclasses.replace(mine, ended=True).put(place, _name(mine.token))


def release(place: Storage) -> None:
    """Remove all claims, the oldest first; the caller holds the last one. Idempotent."""
    for name in sorted(claim_names(place.list("")), key=lambda name: int(name.split(".")[1])):
        place.delete(name)


def put_reader(place: Storage, clock: Clock) -> str:
    """Say that this process reads the savepoint; return the name of the document."""
    mine = ReaderRecord(nonce=uuid.uuid4().hex, owner=identify_this(), began=to_iso(clock.now()))
    name = f"reader.{mine.nonce}.json"
    mine.put(place, name)
    return name


def readers(place: Storage) -> Iterator[ReaderRecord]:
    """Yield all that read the savepoint, or died at it."""
    for name in reader_names(place.list("")):
        record = ReaderRecord.read(place, name)
        if record is not None:
            yield record


def forget_readers(place: Storage) -> None:
    """Remove the documents of dead readers; the caller has seen that none is alive. Idempotent."""
    for name in reader_names(place.list("")):
        place.delete(name)


def busy(place: Storage, held: ReaderRecord) -> SavepointBusyError:
    """Return the error that names the claim's holder."""
    purpose = held.purpose if isinstance(held, SavepointClaimRecord) else "read"
    doing = {TAKE: "being taken", REMOVE: "being removed", "read": "being restored"}
    msg = (
        f"{place.url}: this savepoint is {doing.get(purpose, 'in use')} since {held.began} by "
        f"another process on {held.owner.host}; wait for it, or choose another name"
    )
    return SavepointBusyError(msg)


def _name(token: int) -> str:
    return f"writer.{token}.json"
