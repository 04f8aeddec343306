"""Who may write in a savepoint's folder: its taker, or who removes it.

``taking.<token>.json`` is put if absent with token = last + 1, as a lease is, so that of several
claimants one gets the folder. A claim ends when its process has certainly ended. On another machine
that cannot be known, so a claim from there is believed until it is ``BROKEN_AFTER_S`` old.
"""

from __future__ import annotations

import dataclasses
import re
import uuid
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.clock import from_iso, to_iso
from airflow_provider.runtime.errors import SavepointBusyError
from airflow_provider.runtime.process import ProcessIdentity, identify_this
from airflow_provider.runtime.storage import Document

if TYPE_CHECKING:
    from airflow_provider.runtime.clock import Clock
    from airflow_provider.runtime.storage import Storage

BROKEN_AFTER_S: Final = 86_400.0
"""No take, restore or removal takes a day; clocks of two machines do not differ by one."""
_NAME: Final = re.compile(r"taking\.(\d+)\.json")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClaimRecord(Document):
    """``taking.<token>.json``: somebody is at it.

    Attributes:
        purpose: ``take`` or ``remove``.
        owner: its process.
    """

    token: int
    purpose: str
    nonce: str
    owner: dict[str, Any]
    began: str

    def has_ended(self, clock: Clock) -> bool:
        """Tell whether nobody is at it any more."""
        if ProcessIdentity.from_dict(self.owner).is_gone():
            return True
        began = from_iso(self.began)
        return (clock.now() - began).total_seconds() > BROKEN_AFTER_S


def claim_names(place: Storage) -> list[str]:
    """Return the names of all claims in the folder."""
    return [name for name in place.list("") if _NAME.fullmatch(name)]


def last_claim(place: Storage) -> ClaimRecord | None:
    """Return the claim that counts; None when there is none."""
    tokens = [int(m[1]) for name in place.list("") if (m := _NAME.fullmatch(name))]
    return ClaimRecord.read(place, _name(max(tokens))) if tokens else None


def claim(place: Storage, purpose: str, clock: Clock) -> ClaimRecord:
    """Take the right to write in the folder.

    Raises:
        SavepointBusyError: somebody else has it.

    Crash safety: a claim whose process dies ends by itself.
    """
    before = last_claim(place)
    if before is not None and not before.has_ended(clock):
        raise _busy(place, before)
    mine = ClaimRecord(
        token=before.token + 1 if before else 1,
        purpose=purpose,
        nonce=uuid.uuid4().hex,
        owner=identify_this().to_dict(),
        began=to_iso(clock.now()),
    )
    if not mine.put_if_absent(place, _name(mine.token)):
        raise _busy(place, last_claim(place) or mine)
    return mine


def release(place: Storage) -> None:
    """Remove all claims, the oldest first. Idempotent."""
    for name in sorted(claim_names(place), key=lambda name: int(name.split(".")[1])):
        place.delete(name)


def _name(token: int) -> str:
    return f"taking.{token}.json"


def _busy(place: Storage, held: ClaimRecord) -> SavepointBusyError:
    doing = {"take": "being taken", "remove": "being removed"}.get(held.purpose, "in use")
    msg = (
        f"{place.url}: this savepoint is {doing} since {held.began} by another process on "
        f"{held.owner['host']}; wait for it, or choose another name"
    )
    return SavepointBusyError(msg)
