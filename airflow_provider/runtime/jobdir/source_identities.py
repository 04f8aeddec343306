"""Identities of what a query's sources read, kept with the positions that the query has there.

A topic that is deleted and made again has its old name and another identity. A position in the old
one means nothing in the new one, and neither Spark's logs nor most sources can tell them apart.

A record is put before the query starts with it; the first one follows the start that gives the
query its id. It counts from the first batch that is planned after it, so a savepoint has the
identities that its positions are of, and a restore records them for the query's new id. Relocated
checkpoints keep the query's id, and so its record. A query that is reset has a new id and none.

========================================  ==========================================================
a death                                   the next start
========================================  ==========================================================
before the first record of a query        records what it finds
after a record, before a batch            compares with the record before it, which still counts;
                                          of a query without a planned batch nothing counts
after a batch                             compares with the record
in a restore, before its ``metadata``     does not run; the restore puts the same record again
========================================  ==========================================================
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from airflow_provider.runtime.base.typed_json import Name, NonNegative
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.storage.documents import Contents, Document, Written

if TYPE_CHECKING:
    from collections.abc import Collection

    from airflow_provider.runtime.checkpoint.drain_step import LogPosition
    from airflow_provider.runtime.jobdir.layout import JobDirectory

Identities = Mapping[str, Mapping[str, str]]
"""By source, and by the names in it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class IdentitiesVersion:
    """What the sources of a query read, from a batch on.

    Attributes:
        since: the first batch that could be planned with it.
        sources: by source and name, the identity of what has that name.
    """

    since: NonNegative
    sources: dict[str, dict[str, str]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceIdentitiesRecord(Document):
    """``queries/<query>/identities/<query id>.json``: what the names in its sources stand for.

    Attributes:
        versions: ascending.
    """

    CONTENTS = Contents.FACTS
    LOCATIONS = ("queries/<query>/identities/{query_id}.json",)
    WRITTEN = Written("replaced", "driver, before a start, or restore", "no identity is known")

    query_id: Name
    versions: list[IdentitiesVersion]

    def at(self, batch: int) -> dict[str, dict[str, str]]:
        """Return the identities that the positions of a batch are of.

        Before the first version they were unknown: what that start found was taken for the same.
        """
        made = [each for each in self.versions if each.since <= batch] or self.versions[:1]
        return made[-1].sources if made else {}

    def followed_by(self, start: IdentitiesVersion, last_commit: int) -> SourceIdentitiesRecord:
        """Return the record with which a query starts.

        Versions stay that a savepoint of the last committed batch, or of a later one, may need.
        """
        before = [each for each in self.versions if each.since < start.since]
        counting = [each for each in before if each.since <= last_commit][-1:]
        kept = [*counting, *(each for each in before if each.since > last_commit)]
        if not kept or kept[-1].sources != start.sources:
            kept = [*kept, start]
        return dataclasses.replace(self, versions=kept)


class Replaced(NamedTuple):
    """A name in a source that stands for another thing than when the query read it."""

    source: str
    name: str
    before: str
    now: str


def find_replaced(known: Identities, now: Identities) -> list[Replaced]:
    """Return the names with another identity; one that is unknown then or now has none; pure."""
    return [
        Replaced(source, name, before, found[name])
        for source, found in now.items()
        for name, before in known.get(source, {}).items()
        if found.get(name, before) != before
    ]


def with_found(known: Identities, now: Identities) -> dict[str, dict[str, str]]:
    """Return *known*, with what was found now; names that are unknown now stay; pure."""
    return {
        source: {**known.get(source, {}), **now.get(source, {})}
        for source in sorted({*known, *now})
        if known.get(source) or now.get(source)
    }


def kept_identities(
    directory: JobDirectory, query: str, batch: int | None = None
) -> dict[str, dict[str, str]]:
    """Return the identities of the positions of a batch, or of the last one that was planned."""
    logs = CheckpointLogs(directory.checkpoint(query))
    query_id = logs.query_id()
    if query_id is None:
        return {}
    record = SourceIdentitiesRecord.read(directory.storage, _path(query, query_id))
    if record is None:
        return {}
    return record.at(logs.position().last_offsets if batch is None else batch)


def put_identities(
    directory: JobDirectory, query: str, query_id: str, identities: Identities
) -> None:
    """Store what the positions of a restored query are of. Idempotent: by query id."""
    if not identities:
        return
    sources = {source: dict(found) for source, found in identities.items()}
    version = IdentitiesVersion(since=0, sources=sources)
    record = SourceIdentitiesRecord(query_id=query_id, versions=[version])
    record.put_if_absent(directory.storage, _path(query, query_id))


def keep_identities(
    directory: JobDirectory, query: str, identities: Identities, *, before: LogPosition
) -> None:
    """Store what the sources of a query read that starts, or has started, after *before*.

    A query without an id has no checkpoint yet, and nothing is stored. Idempotent.
    """
    query_id = CheckpointLogs(directory.checkpoint(query)).query_id()
    if query_id is None or not identities:
        return
    path, storage = _path(query, query_id), directory.storage
    start = IdentitiesVersion(
        since=before.last_offsets + 1,
        sources={source: dict(found) for source, found in identities.items()},
    )
    kept = SourceIdentitiesRecord.read(storage, path)
    record = kept or SourceIdentitiesRecord(query_id=query_id, versions=[])
    record = record.followed_by(start, before.last_commit)
    if record != kept:
        record.put(storage, path)


def forget_identities(directory: JobDirectory, query: str, sources: Collection[str]) -> None:
    """Forget what the positions of some sources are of, in a directory that nobody else uses."""
    query_id = CheckpointLogs(directory.checkpoint(query)).query_id()
    if query_id is None:
        return
    record = SourceIdentitiesRecord.read(directory.storage, _path(query, query_id))
    if record is None:
        return
    versions = [
        dataclasses.replace(
            each, sources={name: ids for name, ids in each.sources.items() if name not in sources}
        )
        for each in record.versions
    ]
    dataclasses.replace(record, versions=versions).put(directory.storage, _path(query, query_id))


def _path(query: str, query_id: str) -> str:
    return f"queries/{query}/identities/{query_id}.json"
