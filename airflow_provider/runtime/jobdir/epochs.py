"""The records of a query's epochs, in ``queries/<query>/committables/<query id>/``.

``<epoch>.<token>.json`` is put once when a driver has pre-committed an epoch in all sinks,
``<epoch>.json`` once when all sinks have published it. :func:`fold` replaces older ones by
``<first>-<last>.json`` (whose staging was published) and ``<first>-<last>.packed.json`` (their
records, for reverts); neither ever changes. ``reverted-<epoch>.json`` says from which epoch on
everything was reverted, ``kept-<epoch>.json`` that the query was reset and the rest stays.
The folder carries the query's id because a new id numbers epochs from 0, and a driver presumed dead
may still write under the old one.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Final, TypeVar

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.base.names import NUMBER
from airflow_provider.runtime.errors import CheckpointError, SinkError
from airflow_provider.runtime.jobdir.epoch_documents import (
    EpochRecord,
    HistoryRecord,
    PackRecord,
    RevertRecord,
)
from airflow_provider.runtime.storage.documents import Document

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from airflow_provider.runtime.api.storages import Storage


Span = tuple[int, int]
"""First and last epoch of a folded document."""

D = TypeVar("D", bound=Document)

_PUBLISHED = re.compile(rf"({NUMBER})\.json")
_PRECOMMITTED = re.compile(rf"({NUMBER})\.({NUMBER})\.json")
_FOLDED = re.compile(rf"({NUMBER})-({NUMBER})\.json")
_PACKED = re.compile(rf"({NUMBER})-({NUMBER})\.packed\.json")
_REVERTED = re.compile(rf"reverted-({NUMBER})\.json")
_KEPT = re.compile(rf"kept-({NUMBER})\.json")


@dataclasses.dataclass(frozen=True)
class EpochListing:
    """The records of one query id.

    Attributes:
        folded: the stretches of which only the tokens are left.
        reverted_from: from this epoch on all sinks have removed what was published.
        is_abandoned: whether the query was reset, and what is published stays.
    """

    published: tuple[int, ...] = ()
    precommitted: Mapping[int, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    folded: tuple[Span, ...] = ()
    packed: tuple[Span, ...] = ()
    reverted_from: int | None = None
    is_abandoned: bool = False

    @property
    def newest(self) -> int:
        """Return the newest epoch that is published; -1 when none is."""
        return max((-1, *self.published, *(last for _, last in (*self.folded, *self.packed))))

    def is_folded(self, epoch: int) -> bool:
        """Whether *epoch* is published, and is in one of the longer documents."""
        return any(first <= epoch <= last for first, last in (*self.folded, *self.packed))

    def is_published(self, epoch: int) -> bool:
        return epoch in self.published or self.is_folded(epoch)

    def unpublished(self, first: int, last: int) -> list[int]:
        missing, epoch, own = [], first, set(self.published)
        spans = (*self.folded, *self.packed)
        while epoch <= last:
            ends = [end for start, end in spans if start <= epoch <= end]
            if ends:
                epoch = max(ends)
            elif epoch not in own:
                missing.append(epoch)
            epoch += 1
        return missing


class EpochRecords:
    """Reads and writes the records of one query id."""

    def __init__(self, storage: Storage, query_id: str) -> None:
        self.query_id = query_id
        self._storage = storage.at(query_id)

    @property
    def url(self) -> str:
        return self._storage.url

    def find(self) -> EpochListing:
        names = self._storage.list("")
        published = _numbers(_PUBLISHED, names)
        waiting: dict[int, list[int]] = {}
        for name in names:
            if match := _PRECOMMITTED.fullmatch(name):
                waiting.setdefault(int(match[1]), []).append(int(match[2]))
        return EpochListing(
            tuple(sorted(published)),
            {epoch: tuple(sorted(waiting[epoch])) for epoch in sorted(waiting)},
            folded=_spans(_FOLDED, names),
            packed=_spans(_PACKED, names),
            reverted_from=min(_numbers(_REVERTED, names), default=None),
            is_abandoned=bool(_numbers(_KEPT, names)),
        )

    def all(self) -> Iterator[EpochRecord]:
        """Yield each record once, published epochs first; without folded ones.

        Raises:
            SinkError: one vanished meanwhile: another driver is at work.
        """
        found = self.find()
        for epoch in found.published:
            record = self.published(epoch, found)
            if record is None:
                raise SinkError(
                    f"{self.url}/{epoch}.json: was removed while it was read; repeat the command"
                )
            yield record
        yielded = set(found.published)
        for span in found.packed:
            for record in self.pack(span).records:
                if record.epoch not in yielded:
                    yielded.add(record.epoch)
                    yield record
        for epoch, tokens in found.precommitted.items():
            for token in tokens:
                yield self.precommitted(epoch, token)

    def published(self, epoch: int, found: EpochListing | None = None) -> EpochRecord | None:
        """Return the record of a published epoch; None when there is none, or it is folded away."""
        own = EpochRecord.read(self._storage, f"{epoch}.json")
        if own is not None:
            return own
        for first, last in (found or self.find()).packed:
            if first <= epoch <= last:
                return self.pack((first, last)).records[epoch - first]
        return None

    def token_of(self, epoch: int, found: EpochListing) -> int | None:
        """Return the driver whose staging of *epoch* was published; None when none is."""
        for first, last in found.folded:
            if first <= epoch <= last:
                return self.folded((first, last)).token_of(epoch)
        record = self.published(epoch, found)
        return record.token if record is not None else None

    def published_tokens(self, found: EpochListing) -> dict[int, int | None]:
        """Return whose staging was published, of each published epoch that has pre-commits."""
        both = [epoch for epoch in found.precommitted if found.is_published(epoch)]
        return {epoch: self.token_of(epoch, found) for epoch in both}

    def pack(self, span: Span) -> PackRecord:
        return _require(PackRecord.read(self._storage, _packed(span)), self.url, _packed(span))

    def folded(self, span: Span) -> HistoryRecord:
        return _require(HistoryRecord.read(self._storage, _folded(span)), self.url, _folded(span))

    def put_pack(self, pack: PackRecord) -> Span:
        pack.put_if_absent(self._storage, _packed((pack.first, pack.last)))
        return pack.first, pack.last

    def put_folded(self, history: HistoryRecord) -> Span:
        mine = dataclasses.replace(history, query_id=self.query_id)
        mine.put_if_absent(self._storage, _folded((mine.first, mine.last)))
        return mine.first, mine.last

    def forget(self, found: EpochListing) -> None:
        """Remove the records of published epochs, and the longer documents, that *found* names."""
        names = [f"{epoch}.json" for epoch in found.published]
        names += [_folded(span) for span in found.folded]
        names += [_packed(span) for span in found.packed]
        if names:
            self._storage.delete_all(names)

    def precommitted(self, epoch: int, token: int) -> EpochRecord:
        """Return the record of a pre-commit that was listed.

        Raises:
            SinkError: it is gone; another driver has published it and taken over.
        """
        record = EpochRecord.read(self._storage, _waiting(epoch, token))
        if record is None:
            raise SinkError(f"{self.url}/{_waiting(epoch, token)}: was removed while it was read")
        return record

    def counting(self, epoch: int, found: EpochListing) -> EpochRecord | None:
        """Return the published record, else that of the highest token; None if there is none."""
        record = self.published(epoch, found)
        tokens = found.precommitted.get(epoch)
        return self.precommitted(epoch, tokens[-1]) if record is None and tokens else record

    def put_precommit(self, record: EpochRecord) -> bool:
        """Put it once; False when this driver has pre-committed the epoch before."""
        return record.put_if_absent(self._storage, _waiting(record.epoch, record.token))

    def put_published(self, record: EpochRecord) -> None:
        """Put it unless it is there, which means the same."""
        record.put_if_absent(self._storage, f"{record.epoch}.json")

    def delete_precommit(self, epoch: int, token: int) -> None:
        """Remove the record of a pre-commit. Idempotent."""
        self._storage.delete(_waiting(epoch, token))

    def history(self, found: EpochListing | None = None) -> HistoryRecord:
        ranges: list[tuple[int, int, int, str]] = []
        for span in (found or self.find()).folded:
            for first, last, token, run_id in self.folded(span).ranges:
                begin = max(first, ranges[-1][1] + 1) if ranges else first
                if begin <= last:
                    ranges.append((begin, last, token, run_id))
        return HistoryRecord(query_id=self.query_id, ranges=ranges)

    def active_epochs_after(self, epoch: int) -> list[int]:
        """Return the epochs after *epoch* that are, or may still be, published; none reverted."""
        found = self.find()
        if found.is_abandoned:
            return []
        packed = {max(end, epoch + 1) for span in found.packed if span[1] > epoch for end in span}
        history = self.history(found).own_epochs_after(epoch)
        epochs = {*found.published, *found.precommitted, *packed, *history}
        upto = max(epochs, default=0) + 1 if found.reverted_from is None else found.reverted_from
        return sorted(each for each in epochs if epoch < each < upto)

    def has_own(self) -> bool:
        """Whether an epoch was written under this id; False of a query of Spark's own sinks."""
        found = self.find()
        if found.published or found.precommitted or found.packed:
            return True
        return bool(self.history(found).own_epochs_after(-1))

    def continue_after(self, epoch: int) -> None:
        """Record that epochs up to *epoch* were published before a restore. Idempotent."""
        if epoch >= 0:
            self.put_folded(HistoryRecord(ranges=[(0, epoch, 0, "")]))

    def copied(self) -> int:
        """Return the last epoch of another id from which a restored copy continues; -1 for none."""
        return max((last for _, last, _, run in self.history().ranges if not run), default=-1)

    def ensure_not_rewound(self) -> None:
        """Refuse to continue under an id of which epochs were reverted, or that the query left."""
        found = self.find()
        if found.is_abandoned or found.reverted_from is not None:
            raise CheckpointError(
                f"{self.url}: what was written under this id was reverted, or the query started "
                "over since; the checkpoint must be restored: give the command that did this again"
            )

    def put_reverted(self, first_epoch: int, at: str, *, stays: bool = False) -> None:
        """Record that all sinks have removed the epochs from *first_epoch* on. Idempotent.

        With *stays* the query is reset, and the epochs before *first_epoch* stay.
        """
        record = RevertRecord(query_id=self.query_id, first_epoch=first_epoch, at=at)
        record.put_if_absent(self._storage, f"{'kept' if stays else 'reverted'}-{first_epoch}.json")


def query_ids(storage: Storage) -> list[str]:
    """Return the ids of all queries that have records in a ``committables`` folder, sorted."""
    return storage.list("")


def left_ids(storage: Storage) -> list[str]:
    """Return those of them which a query has left when it was reset and its output was kept."""
    return [each for each in query_ids(storage) if EpochRecords(storage, each).find().is_abandoned]


def _numbers(pattern: re.Pattern[str], names: Sequence[str]) -> list[int]:
    return [int(match[1]) for name in names if (match := pattern.fullmatch(name))]


def _spans(pattern: re.Pattern[str], names: Sequence[str]) -> tuple[Span, ...]:
    spans = [(int(m[1]), int(m[2])) for name in names if (m := pattern.fullmatch(name))]
    return tuple(sorted(spans, key=lambda span: (span[0], -span[1])))


def _require(document: D | None, url: str, name: str) -> D:
    if document is None:
        raise SinkError(f"{url}/{name}: was removed while it was read; give the command again")
    return document


def _folded(span: Span) -> str:
    return f"{span[0]}-{span[1]}.json"


def _packed(span: Span) -> str:
    return f"{span[0]}-{span[1]}.packed.json"


def _waiting(epoch: int, token: int) -> str:
    return f"{epoch}.{token}.json"


KEEP_EPOCHS: Final = 100
"""How many published epochs keep a record of their own, whatever run they are of."""

PACK_EPOCHS: Final = 1000
"""How many records lie together at most."""

_PACK_BYTES: Final = 4 * 1024 * 1024  # a longer one is not written again for the sake of a few more
_PACKS_AT_ONCE: Final = 10  # are unpacked by one fold, so that none of them takes long


def fold(
    records: EpochRecords,
    *,
    keep_runs: Collection[str],
    known: Mapping[int, EpochRecord],
    unpacks: bool = True,
) -> list[Span]:
    """Fold all but the newest :data:`KEEP_EPOCHS` records; return the folded stretches.

    Args:
        records: of one query id.
        keep_runs: the runs of which every epoch keeps its record.
        known: records that need not be read.
        unpacks: whether to look for packs of runs that are no longer kept.

    Crash safety: the same facts lie there twice; the next call removes the duplicates. Idempotent.
    """
    found = records.find()
    old = [e for e in found.published[: -KEEP_EPOCHS or None] if not found.is_folded(e)]
    read = [known.get(epoch) or records.published(epoch, found) for epoch in old]
    new = [record for record in read if record is not None]
    unpacked = _no_longer_kept(records, found, keep_runs) if unpacks else []
    kept = [record.without_logs() for record in new if record.run_id in keep_runs]
    rest = [record for record in new if record.run_id not in keep_runs]
    said = EpochListing(folded=found.folded)
    for span in unpacked:
        rest += [r for r in records.pack(span).records if not said.is_folded(r.epoch)]
    packed = _pack(records, found, kept)
    folded = _shorten(records, found, sorted(rest, key=lambda record: record.epoch))
    if packed or folded:
        failpoints.hit("recover.folded")
    records.forget(_too_much(found, folded, packed, unpacked))
    return [*found.folded, *folded]


def _no_longer_kept(
    records: EpochRecords, found: EpochListing, keep_runs: Collection[str]
) -> list[Span]:
    unkept: list[Span] = []
    for span in found.packed[:_PACKS_AT_ONCE]:
        if records.pack(span).records[0].run_id in keep_runs:
            break
        unkept.append(span)
    return unkept


def _pack(records: EpochRecords, found: EpochListing, new: Sequence[EpochRecord]) -> list[Span]:
    put: list[Span] = []
    for group in _stretches(new):
        together = [*_begun(records, found, group[0]), *group]
        for start in range(0, len(together), PACK_EPOCHS):
            chunk = together[start : start + PACK_EPOCHS]
            put.append(records.put_pack(PackRecord(query_id=records.query_id, records=chunk)))
    return put


def _begun(records: EpochRecords, found: EpochListing, record: EpochRecord) -> list[EpochRecord]:
    for first, last in found.packed:
        if last + 1 == record.epoch and last + 1 - first < PACK_EPOCHS:
            pack = records.pack((first, last))
            is_same_run = pack.records[0].run_id == record.run_id
            return pack.records if is_same_run and len(pack.to_bytes()) < _PACK_BYTES else []
    return []


def _shorten(records: EpochRecords, found: EpochListing, new: Sequence[EpochRecord]) -> list[Span]:
    put: list[Span] = []
    for group in _stretches(new, of_one_run=False):
        before = [span for span in (*found.folded, *put) if span[1] + 1 == group[0].epoch]
        history = records.folded(before[0]) if before else HistoryRecord()
        put.append(records.put_folded(history.with_epochs(group)))
    return put


def _stretches(new: Sequence[EpochRecord], *, of_one_run: bool = True) -> list[list[EpochRecord]]:
    stretches: list[list[EpochRecord]] = []
    for record in new:
        last = stretches[-1][-1] if stretches else None
        is_next = last is not None and last.epoch + 1 == record.epoch
        if last is not None and is_next and (last.run_id == record.run_id or not of_one_run):
            stretches[-1].append(record)
        else:
            stretches.append([record])
    return stretches


def _too_much(
    found: EpochListing, folded: Sequence[Span], packed: Sequence[Span], unpacked: Sequence[Span]
) -> EpochListing:
    histories, packs = {*found.folded, *folded}, {*found.packed, *packed}
    now = EpochListing(folded=tuple(histories), packed=tuple(packs))
    return EpochListing(
        published=tuple(epoch for epoch in found.published if now.is_folded(epoch)),
        folded=tuple(span for span in found.folded if _is_within(span, histories)),
        packed=tuple(s for s in found.packed if s in unpacked or _is_within(s, packs)),
    )


def _is_within(span: Span, others: Collection[Span]) -> bool:
    return any(o != span and o[0] <= span[0] and span[1] <= o[1] for o in others)
