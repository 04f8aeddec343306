"""Offsets of a stopped query's sources: changed in its logs, while its state stays.

Spark begins a source without an offset, which its log shows as ``-``, from its beginning. It looks
at the last two entries: at the one before the last, because some sources want to see the last batch
planned again. What a source itself has stored, such as which files it has seen, lies in
``sources/<place>`` and goes with its offset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.errors import OpenBatchError, UnknownFormatError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from airflow_provider.runtime.api.storages import Storage

ANEW: Final = "-"
"""The line of a source that has no offset: it begins from its beginning."""
_BY_PLACE: Final = "v1"


def can_reset(names: Sequence[str | None], places: Collection[int]) -> bool:
    """Whether it is clear what the sources at these places have stored.

    A source that is read at several places of the plan has a line for each, and one folder or
    several; so the numbers of its folders are not known, unless all of them are removed.

    Args:
        names: the sources in the order of the offset log.
        places: those that are to begin from their beginning.
    """
    known = [name for name in names if name is not None]
    return len(set(known)) == len(known) or set(places) in (set(), set(range(len(names))))


def reset_positions(checkpoint: Storage, places: Collection[int]) -> None:
    """Let some sources of a stopped query begin from their beginning.

    Args:
        checkpoint: the query's; nobody else may be using it.
        places: which ones, by their places in the offset log; see :func:`can_reset`.

    Raises:
        OpenBatchError: a batch is planned and not committed: its rows would be lost.
        UnknownFormatError: the log does not know its sources by their places.

    Crash safety: calling it again completes it; between, the query must not be started.
    Idempotent: by the places.
    """
    set_positions(checkpoint, dict.fromkeys(places, ANEW))
    logs = CheckpointLogs(checkpoint)
    last = logs.position().last_commit
    if last >= 0 and len(set(places)) == len(logs.offsets(last).sources):
        checkpoint.delete("sources")
    for place in places:
        checkpoint.delete(f"sources/{place}")


def set_positions(checkpoint: Storage, lines: Mapping[int, str]) -> None:
    """Let some sources of a stopped query go on elsewhere; see :func:`reset_positions`.

    Args:
        checkpoint: the query's.
        lines: the offset of each of them, as Spark writes it.
    """
    logs = CheckpointLogs(checkpoint)
    position = logs.position()
    if position.open_batch is not None:
        msg = (
            f"{logs.url}: batch {position.open_batch} is planned and not committed, so where its "
            "sources go on cannot be changed; let it end first"
        )
        raise OpenBatchError(msg)
    last = position.last_commit
    for batch in (last - 1, last):
        if batch not in logs.batches("offsets"):
            continue
        entry = logs.offsets(batch)
        if entry.version != _BY_PLACE:
            msg = f"{logs.url}/offsets/{batch}: an offset log of version {entry.version!r}"
            raise UnknownFormatError(msg)
        checkpoint.delete(f"offsets/.{batch}.crc")  # of what was there before
        checkpoint.put(f"offsets/{batch}", entry.with_positions(lines).to_bytes())
