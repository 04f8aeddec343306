"""Watchers of a run: the last try of its task, and the trigger that began to wait last.

A try claims the run by ``claims/<generation>.json``, put if absent with generation = last + 1, so
that no two tries have one generation. As with leases, the next one is looked for by its name.
"""

from __future__ import annotations

import dataclasses
import uuid
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.base.names import numbers_in
from airflow_provider.runtime.base.typed_json import NonNegative
from airflow_provider.runtime.storage.documents import Contents, Document

if TYPE_CHECKING:
    from airflow_provider.runtime.api.storages import Storage


@dataclasses.dataclass(frozen=True, kw_only=True)
class WatchClaimRecord(Document):
    """``runs/<run id>/claims/<generation>.json``: a try of an Airflow task watches the run.

    Attributes:
        nonce: tells it from that of another try which was as fast.
    """

    CONTENTS = Contents.FACTS
    PLACES = ("claims/*.json",)

    generation: NonNegative
    nonce: str


NOBODY: Final = ""
"""The trigger of a claim for which none waits any more."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WatchRecord(Document):
    """``runs/<run id>/watch.json``: which trigger waits for a claim.

    Attributes:
        generation: the claim.
        trigger: the trigger that began to wait last; the same one in another triggerer is another;
            empty when it waits no more.
    """

    CONTENTS = Contents.FACTS
    PLACES = ("watch.json",)

    generation: NonNegative
    trigger: str


def claim(run: Storage) -> int:
    """Take the next generation, and remove the claims before it.

    Args:
        run: the run's folder.

    Returns:
        The generation, which no other try ever gets.

    Crash safety: a claim of a try that is gone, which nobody minds; old ones stay for the next.
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
        if earlier < newest:
            run.delete(_path(earlier))
    return newest


def is_newest(run: Storage, generation: int) -> bool:
    """Whether no later try has claimed the run."""
    # In this order: claims are removed from the lowest.
    return not _is_there(run, generation + 1) and _is_there(run, generation)


def is_watching(run: Storage, generation: int, trigger: str | None) -> bool:
    """Whether no later watcher watches the run.

    Args:
        run: the run's folder.
        generation: the caller's claim.
        trigger: the caller's trigger; None for no trigger.
    """
    if not is_newest(run, generation):
        return False
    watch = WatchRecord.read(run, "watch.json") if trigger is not None else None
    return watch is None or watch.generation != generation or watch.trigger in {trigger, NOBODY}


def _newest(run: Storage) -> int:
    return max(numbers_in(run.list("claims"), ".json"), default=0)


def _is_there(run: Storage, generation: int) -> bool:
    return WatchClaimRecord.read(run, _path(generation)) is not None


def _path(generation: int) -> str:
    return f"claims/{generation}.json"
