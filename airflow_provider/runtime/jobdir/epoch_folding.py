"""Folds the records of old epochs into fewer documents, so that their number does not grow.

What may have to be reverted keeps its records, many in one document; of everything else a line
per driver and run is left. A document is put once and then replaced by a longer one, so a driver
that dies or is overtaken in here leaves the same facts twice, and the next fold removes the shorter
one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.jobdir.epoch_documents import EpochRecord, HistoryRecord, PackRecord
from airflow_provider.runtime.jobdir.epochs import EpochListing

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from airflow_provider.runtime.jobdir.epochs import EpochRecords, Span

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
    """Fold all but the newest :data:`KEEP_EPOCHS` records.

    Args:
        records: of one query id.
        keep_runs: the runs of which every epoch keeps its record.
        known: records that need not be read.
        unpacks: whether to look for packs of runs that are no longer kept.

    Returns:
        The stretches of epochs of which only a line is left.

    Crash safety: the same facts lie there twice; the next call removes what is too much.
    Idempotent.
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
    """Return the oldest packs, up to the first of a run that may still be reverted."""
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
    """Return the records of the last pack, if *record* is the next one and there is room."""
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
    """Return *new*, which ascend, parted where an epoch is left out or, if wanted, a run begins."""
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
    """Return what says nothing that a longer document does not say."""
    histories, packs = {*found.folded, *folded}, {*found.packed, *packed}
    now = EpochListing(folded=tuple(histories), packed=tuple(packs))
    return EpochListing(
        published=tuple(epoch for epoch in found.published if now.is_folded(epoch)),
        folded=tuple(span for span in found.folded if _is_within(span, histories)),
        packed=tuple(s for s in found.packed if s in unpacked or _is_within(s, packs)),
    )


def _is_within(span: Span, others: Collection[Span]) -> bool:
    return any(o != span and o[0] <= span[0] and span[1] <= o[1] for o in others)
