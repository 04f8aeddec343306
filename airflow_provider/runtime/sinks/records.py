"""The records of a query's epochs, in ``queries/<query>/committables/<query id>/``.

``<epoch>.<token>.json`` is put once when a driver has staged an epoch in all sinks: pre-committed.
``<epoch>.json`` is put once when all sinks have published it. ``history.json`` holds, as ranges,
what is left of records that were folded away, ``takeback.json`` from which epoch on everything was
taken back. The folder carries the query's id because epochs are numbered anew when it changes, and
a driver that was taken for dead may still write under the old one.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.errors import CheckpointError, SinkError
from airflow_provider.runtime.storage import Document, Storage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Stretch = tuple[int, int, int, str]
"""First epoch, last epoch, token, run."""

_PUBLISHED = re.compile(r"(\d+)\.json")
_PRECOMMITTED = re.compile(r"(\d+)\.(\d+)\.json")
_HISTORY = "history.json"
_TAKE_BACK = "takeback.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochRecord(Document):
    """What each sink pre-committed for an epoch.

    Attributes:
        run_id: the run that wrote the epoch.
        token: the driver that staged it.
        rows_read: input rows of the run up to and with this epoch, None when not known.
        sinks: for each sink its name, its rows in this epoch, its rows in the run so far
            (``run_rows``), and its committable's ``data``.
        committed: when all sinks had published it; None in the record of a pre-commit.
    """

    epoch: int
    query_id: str
    run_id: str
    token: int
    rows_read: int | None
    sinks: list[dict[str, Any]]
    committed: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class HistoryRecord(Document):
    """``history.json``: published epochs whose records were folded away, oldest first.

    Attributes:
        ranges: stretches of epochs that one driver staged for one run.
    """

    ranges: list[Stretch] = dataclasses.field(default_factory=list)

    @property
    def last_epoch(self) -> int:
        """Return the newest epoch in it; -1 when it is empty."""
        return self.ranges[-1][1] if self.ranges else -1

    def token_of(self, epoch: int) -> int | None:
        """Return the driver whose staging of *epoch* was published; None when it is not here."""
        for first, last, token, _ in self.ranges:
            if first <= epoch <= last:
                return token
        return None

    def own_epochs_after(self, epoch: int) -> list[int]:
        """Return the epochs in it after *epoch*, without those of the id that the query had before.

        Of long stretches only the ends.
        """
        own = [(first, last) for first, last, _, run_id in self.ranges if run_id and last > epoch]
        return sorted({end for first, last in own for end in (max(first, epoch + 1), last)})

    def with_epochs(self, records: Sequence[EpochRecord]) -> HistoryRecord:
        """Return the history with *records*, ascending and newer than all in it, added."""
        ranges = list(self.ranges)
        for record in records:
            first, last, token, run_id = ranges[-1] if ranges else (0, -1, 0, "")
            if record.epoch <= last:
                continue  # folded by a start that died before it had removed the record
            if (record.epoch, record.token, record.run_id) == (last + 1, token, run_id):
                ranges[-1] = (first, record.epoch, token, run_id)
            else:
                ranges.append((record.epoch, record.epoch, record.token, record.run_id))
        return HistoryRecord(ranges=ranges)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TakeBackRecord(Document):
    """``takeback.json``: the epochs from ``first_epoch`` on are taken back, or are about to be.

    Attributes:
        run_id: the run whose epochs they were.
        done: when all sinks had removed them; None before.
        outputs_stay: that the epochs before it stay for ever, beside those of a query that has
            begun anew: nothing counts them any more.
    """

    query_id: str
    run_id: str
    first_epoch: int
    began: str
    done: str | None = None
    outputs_stay: bool = False


@dataclasses.dataclass(frozen=True)
class Found:
    """The records of one query id.

    Attributes:
        published: epochs with a record, ascending.
        precommitted: tokens, ascending, of each epoch that waits.
    """

    published: tuple[int, ...] = ()
    precommitted: Mapping[int, tuple[int, ...]] = dataclasses.field(default_factory=dict)


class EpochRecords:
    """Reads and writes the records of one query id.

    Args:
        storage: the query's ``committables`` folder.
        query_id: whose epochs.
    """

    def __init__(self, storage: Storage, query_id: str) -> None:
        self.query_id = query_id
        self._storage = storage.at(query_id)

    @property
    def url(self) -> str:
        """Return the folder's address."""
        return self._storage.url

    def find(self) -> Found:
        """List them."""
        names = self._storage.list("")
        published = [int(m[1]) for name in names if (m := _PUBLISHED.fullmatch(name))]
        waiting: dict[int, list[int]] = {}
        for name in names:
            if match := _PRECOMMITTED.fullmatch(name):
                waiting.setdefault(int(match[1]), []).append(int(match[2]))
        return Found(
            tuple(sorted(published)),
            {epoch: tuple(sorted(waiting[epoch])) for epoch in sorted(waiting)},
        )

    def all(self) -> Iterator[EpochRecord]:
        """Yield each record, those of published epochs first."""
        found = self.find()
        for epoch in found.published:
            record = self.published(epoch)
            if record is not None:
                yield record
        for epoch, tokens in found.precommitted.items():
            for token in tokens:
                yield self.precommitted(epoch, token)

    def published(self, epoch: int) -> EpochRecord | None:
        """Return the record of a published epoch; None when there is none."""
        return EpochRecord.read(self._storage, f"{epoch}.json")

    def is_published(self, epoch: int) -> bool:
        """Tell whether all sinks have published *epoch*, also when its record was folded away."""
        return self.published(epoch) is not None or self.history().token_of(epoch) is not None

    def precommitted(self, epoch: int, token: int) -> EpochRecord:
        """Return the record of a pre-commit that was listed.

        Raises:
            SinkError: it is gone; another driver has published it and taken over.
        """
        record = EpochRecord.read(self._storage, _waiting(epoch, token))
        if record is None:
            msg = f"{self.url}/{_waiting(epoch, token)}: vanished while it was read"
            raise SinkError(msg)
        return record

    def put_precommit(self, record: EpochRecord) -> bool:
        """Put it once; False when this driver has pre-committed the epoch before."""
        return record.put_if_absent(self._storage, _waiting(record.epoch, record.token))

    def put_published(self, record: EpochRecord) -> None:
        """Put it unless it is there, which means the same."""
        record.put_if_absent(self._storage, f"{record.epoch}.json")

    def forget_precommit(self, epoch: int, token: int) -> None:
        """Remove the record of a pre-commit. Idempotent."""
        self._storage.delete(_waiting(epoch, token))

    def forget_published(self, epoch: int) -> None:
        """Remove the record of a published epoch. Idempotent."""
        self._storage.delete(f"{epoch}.json")

    def history(self) -> HistoryRecord:
        """Return what is left of older epochs."""
        return HistoryRecord.read(self._storage, _HISTORY) or HistoryRecord()

    def put_history(self, record: HistoryRecord) -> None:
        """Replace the history."""
        record.put(self._storage, _HISTORY)

    def standing_after(self, epoch: int) -> list[int]:
        """Return the epochs after *epoch* that are, or may still be, published; none taken back.

        Nor any of a query that has begun anew beside them.
        """
        found, taken = self.find(), self.take_back()
        if taken is not None and taken.outputs_stay:
            return []
        upto = taken.first_epoch if taken is not None and taken.done is not None else None
        epochs = {*found.published, *found.precommitted, *self.history().own_epochs_after(epoch)}
        return sorted(e for e in epochs if e > epoch and (upto is None or e < upto))

    def has_own(self) -> bool:
        """Tell whether an epoch was written under this id.

        False of a query of Spark's own sinks, also after a restore has numbered its epochs.
        """
        found = self.find()
        return bool(found.published or found.precommitted or self.history().own_epochs_after(-1))

    def continue_after(self, epoch: int) -> None:
        """Record that epochs up to *epoch* were published before the query had this id.

        For a checkpoint that was restored: its copy gets a new id and goes on after *epoch*.
        Idempotent.
        """
        if epoch >= 0:
            self.put_history(HistoryRecord(ranges=[(0, epoch, 0, "")]))

    def take_back(self) -> TakeBackRecord | None:
        """Return what was taken back; None when nothing was."""
        return TakeBackRecord.read(self._storage, _TAKE_BACK)

    def is_left(self) -> bool:
        """Tell whether the query began anew under another id, beside what it has written."""
        taken = self.take_back()
        return taken is not None and taken.outputs_stay

    def check_standing(self) -> None:
        """Refuse to go on under this id when epochs of it were taken back, or are about to be.

        Raises:
            CheckpointError: they were.
        """
        taken = self.take_back()
        if taken is not None:
            what = f"what run {taken.run_id!r} wrote" if taken.run_id else "what was written"
            msg = (
                f"{self.url}: {what}, from epoch {taken.first_epoch} on, was taken back; the "
                "checkpoint must be restored to before that run: give the command that took it "
                "back again"
            )
            raise CheckpointError(msg)

    def put_take_back(self, record: TakeBackRecord) -> None:
        """Put or replace it."""
        record.put(self._storage, _TAKE_BACK)


def query_ids(storage: Storage) -> list[str]:
    """Return the ids of all queries that have records in a ``committables`` folder, sorted."""
    return storage.list("")


def _waiting(epoch: int, token: int) -> str:
    return f"{epoch}.{token}.json"
