"""Ledger of the epochs that an Iceberg table has taken, recorded in the table itself.

One property per query id, changed in the same commit as the rows::

    spark-stream.<query id> = {"epoch":7,"reverted":[[5,6]],"refused":[[7,7]]}

``epoch`` is the last settled one: it and those before it are never published (again). Of these, the
``reverted`` were published and removed, and the ``refused`` were reverted before they were
published. Snapshots have the same facts in their summaries, for readers of the history, but any
writer may expire them, so the summaries decide only where the property is missing.

The property ``spark-stream.job.<address>`` is the identity of the job directory at that address
that has published last.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.api.errors import CorruptDocumentError
from airflow_provider.runtime.api.kit.typed_json import (
    Batch,
    Mismatch,
    NonNegative,
    decode,
    read_json,
)
from airflow_provider.runtime.api.sinks import key_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot, Summary

    from airflow_provider.runtime.api.sinks import EpochId, Writer

_PREFIX: Final = "spark-stream."
_JOB: Final = _PREFIX + "job."
_QUERY: Final = _PREFIX + "query"
_QUERY_ID: Final = _PREFIX + "query-id"
_EPOCH: Final = _PREFIX + "epoch"
_TOKEN: Final = _PREFIX + "token"
_TAKEN_BACK: Final = _PREFIX + "reverted"
_MOST_EPOCHS: Final = 1_000_000  # more were never reverted; without it two numbers fill the memory
_Range = tuple[NonNegative, NonNegative]


@dataclasses.dataclass(frozen=True)
class _Property:
    epoch: Batch
    reverted: tuple[_Range, ...] = ()
    refused: tuple[_Range, ...] = ()


@dataclasses.dataclass(frozen=True)
class Ledger:
    """A table's record of one query.

    Attributes:
        last: the last settled epoch; -1 for none.
        reverted: epochs that were published, and removed again.
        refused: epochs that were reverted before they were published.
    """

    query_id: str
    last: int = -1
    reverted: frozenset[int] = frozenset()
    refused: frozenset[int] = frozenset()

    @classmethod
    def of(cls, metadata: TableMetadata, query_id: str) -> Ledger:
        text = metadata.properties.get(_PREFIX + query_id)
        if text is None:
            epochs = [epoch for epoch, *_ in _published(metadata, query_id)]
            return cls(query_id, max(epochs, default=-1))
        try:
            read: _Property = decode(_Property, read_json(text))
            reverted, refused = _from_ranges(read.reverted), _from_ranges(read.refused)
        except (Mismatch, ValueError) as error:
            raise CorruptDocumentError(
                f"table property {_PREFIX}{query_id}: {error}; put back what the table had there"
            ) from None
        return cls(query_id, read.epoch, reverted, refused)

    def to_properties(self) -> dict[str, str]:
        value: dict[str, object] = {"epoch": self.last}
        if self.reverted:
            value["reverted"] = _to_ranges(self.reverted)
        if self.refused:
            value["refused"] = _to_ranges(self.refused)
        return {_PREFIX + self.query_id: json.dumps(value, separators=(",", ":"))}

    def is_standing(self, epoch: int) -> bool:
        return epoch <= self.last and epoch not in self.reverted | self.refused

    def with_published(self, epoch: int) -> Ledger:
        return dataclasses.replace(self, last=epoch)

    def with_reverted(self, epochs: Iterable[int]) -> Ledger:
        new = frozenset(epochs) - self.reverted - self.refused
        removed = frozenset(epoch for epoch in new if epoch <= self.last)
        return Ledger(
            self.query_id,
            max(self.last, *epochs),
            self.reverted | removed,
            self.refused | (new - removed),
        )

    def facts_of_revert(self, epochs: Iterable[int]) -> dict[str, str]:
        spans = (f"{first}-{last}" for first, last in _to_ranges(epochs))
        return {_QUERY_ID: self.query_id, _TAKEN_BACK: ",".join(spans)}


def facts_of_epoch(epoch: EpochId) -> dict[str, str]:
    """Return the summary of an epoch's snapshot."""
    return {
        _QUERY: epoch.query,
        _QUERY_ID: epoch.query_id,
        _EPOCH: str(epoch.epoch),
        _TOKEN: str(epoch.token),
    }


def mark_of(writer: Writer | None) -> dict[str, str]:
    """Return the table property that records which job directory has published."""
    return {} if writer is None else {_JOB + writer.key: writer.identity}


def marked(metadata: TableMetadata, job_dir: str) -> list[str]:
    """Return the identity that has published last for a job directory's address."""
    found = metadata.properties.get(_JOB + key_of(job_dir))
    return [] if found is None else [found]


def published_token(metadata: TableMetadata, epoch: EpochId) -> int | None:
    """Return the token of the published staging; None if the epoch's snapshot has expired."""
    published = _published(metadata, epoch.query_id)
    return next((token for number, token, _ in published if number == epoch.epoch), None)


def published_snapshot(metadata: TableMetadata, epoch: EpochId) -> Snapshot | None:
    """Return the snapshot that has published the epoch; None if it has expired."""
    published = _published(metadata, epoch.query_id)
    return next((snapshot for number, _, snapshot in published if number == epoch.epoch), None)


def _published(metadata: TableMetadata, query_id: str) -> Iterator[tuple[int, int, Snapshot]]:
    for snapshot in reversed(metadata.snapshots):
        summary: Summary | None = snapshot.summary
        if summary is None or summary.additional_properties.get(_QUERY_ID) != query_id:
            continue
        epoch = summary.additional_properties.get(_EPOCH)
        if epoch is not None:
            yield int(epoch), int(summary.additional_properties[_TOKEN]), snapshot


def _from_ranges(ranges: Sequence[_Range]) -> frozenset[int]:
    if sum(max(0, last - first) for first, last in ranges) > _MOST_EPOCHS:
        raise ValueError(f"ranges of more than {_MOST_EPOCHS} epochs")
    return frozenset(epoch for first, last in ranges for epoch in range(first, last + 1))


def _to_ranges(epochs: Iterable[int]) -> list[list[int]]:
    ranges: list[list[int]] = []
    for epoch in sorted(epochs):
        if ranges and ranges[-1][1] == epoch - 1:
            ranges[-1][1] = epoch
        else:
            ranges.append([epoch, epoch])
    return ranges
