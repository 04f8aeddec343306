"""The record of a query: what it consists of, and what made the state in its checkpoint.

A change is put before the query starts with it, and counts only once its first batch has committed.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from airflow_provider.runtime.base.names import numbers_in
from airflow_provider.runtime.base.typed_json import Name, NonNegative
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.checkpoint.operators import describe_operator
from airflow_provider.runtime.checkpoint.source_end import NO_OFFSET
from airflow_provider.runtime.checkpoint.topology import (
    Fingerprint,
    OperatorShape,
    Topology,
)
from airflow_provider.runtime.errors import CheckpointError, CorruptDocumentError
from airflow_provider.runtime.jobdir.record_shapes import OperatorValues
from airflow_provider.runtime.storage.documents import Contents, Document, Written

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.checkpoint.drain_step import LogPosition
    from airflow_provider.runtime.checkpoint.logs import OffsetEntry
    from airflow_provider.runtime.jobdir.layout import JobDirectory


@dataclasses.dataclass(frozen=True, kw_only=True)
class FingerprintVersion:
    """The fingerprint of a query from a batch on.

    Attributes:
        since: the first batch that it could run as this.
    """

    since: NonNegative
    fingerprint: Fingerprint


@dataclasses.dataclass(frozen=True, kw_only=True)
class TopologyRecord(Document):
    """``queries/<query>/topologies/<query id>.json``: what a query consists of.

    Attributes:
        sources: one name for each line in the offset log; None where not known.
        operators: per stateful operator its ``id``, ``kind``, ``sources`` above it, ``name`` in the
            job, and ``keys``, a join's key columns; None when not known.
        versions: of its fingerprint, ascending; the first one made the oldest kept state.
        kinds: what each source is, by name; empty in records of older versions.
        removed: the sources that a query with a log of names has had before; of those that the log
            still has, no batch was planned without.
    """

    CONTENTS = Contents.FACTS
    LOCATIONS = ("queries/<query>/topologies/{query_id}.json",)
    WRITTEN = Written("replaced", "driver, with each start", "as the checkpoint has it")

    query_id: Name
    sources: list[str | None]
    operators: list[OperatorValues] | None
    versions: list[FingerprintVersion]
    kinds: dict[str, str] = dataclasses.field(default_factory=dict)
    removed: list[str] = dataclasses.field(default_factory=list)

    @classmethod
    def of(
        cls, query_id: str, topology: Topology, fingerprint: Fingerprint | None, *, since: int
    ) -> TopologyRecord:
        operators = topology.operators
        made = fingerprint and FingerprintVersion(since=since, fingerprint=fingerprint)
        return cls(
            query_id=query_id,
            sources=list(topology.sources),
            operators=None if operators is None else [each._asdict() for each in operators],
            versions=[made] if made else [],
            kinds=dict(topology.kinds),
            removed=list(topology.removed),
        )

    @property
    def topology(self) -> Topology:
        operators = self.operators
        return Topology(
            sources=tuple(self.sources),
            operators=None if operators is None else tuple(map(OperatorShape.of, operators)),
            kinds=self.kinds,
            removed=tuple(self.removed),
        )

    def fingerprint_at(self, batch: int) -> Fingerprint | None:
        """Return what the query was when a batch ran; before the first one what was to run it."""
        made = [each for each in self.versions if each.since <= batch] or self.versions[:1]
        return made[-1].fingerprint if made else None

    def followed_by(self, start: TopologyRecord, *, names: Sequence[str] | None) -> TopologyRecord:
        """Return the record with which a start continues whose only version is that of *start*.

        Args:
            start: the record of the start alone.
            names: the sources that the offset log has by names, so that they may be others now.
        """
        kept = start if names is not None or None in self.sources else self
        gone = {*self.removed, *(names or ())} - {*start.sources}
        kept = dataclasses.replace(
            kept,
            kinds={**self.kinds, **start.kinds},
            removed=sorted(gone) if names is not None else self.removed,
        )
        if not start.versions:
            return dataclasses.replace(kept, versions=self.versions)
        (now,) = start.versions
        made = [each for each in self.versions if each.since < now.since][-1:]
        if not made or made[-1].fingerprint != now.fingerprint:
            made = [*made, now]
        return dataclasses.replace(kept, versions=made)


def kept_fingerprint(
    directory: JobDirectory, query: str, batch: int | None = None
) -> Fingerprint | None:
    """Return the fingerprint of a query after *batch*, or the last commit; None if never kept."""
    logs = CheckpointLogs(directory.checkpoint(query))
    query_id = logs.query_id()
    record = TopologyRecord.read(directory.storage, _path(query, query_id)) if query_id else None
    if record is None:
        return None
    return record.fingerprint_at(logs.position().last_commit if batch is None else batch)


def put_topology(
    directory: JobDirectory,
    query: str,
    query_id: str,
    topology: Topology,
    fingerprint: Fingerprint | None = None,
    *,
    replace: bool = False,
) -> None:
    """Store what the query of an id consists of. Idempotent: the first record of an id stays.

    *replace* replaces it, in a directory that no other process uses.
    """
    record = TopologyRecord.of(query_id, topology, fingerprint, since=0)
    if replace:
        record.put(directory.storage, _path(query, query_id))
    else:
        record.put_if_absent(directory.storage, _path(query, query_id))


def keep_topology(
    directory: JobDirectory,
    query: str,
    topology: Topology,
    fingerprint: Fingerprint | None,
    *,
    before: LogPosition,
) -> None:
    """Store what a query consists of that starts, or has started, after the position *before*.

    The first topology of an id stays, unless it has no names, or nothing was planned with it.

    Crash safety: a fingerprint with which no batch has run does not count. Idempotent.
    """
    logs = CheckpointLogs(directory.checkpoint(query))
    query_id = logs.query_id()
    if query_id is None:
        return
    path, since = _path(query, query_id), before.last_commit + 1
    record = TopologyRecord.of(query_id, topology, fingerprint, since=since)
    if record.put_if_absent(directory.storage, path):
        return
    kept = TopologyRecord.read(directory.storage, path)
    if kept is not None and before.last_offsets >= 0:
        names = logs.offsets(before.last_offsets).names
        record = kept.followed_by(record, names=names)
    if record != kept:
        record.put(directory.storage, path)


def kept_topology(directory: JobDirectory, query: str) -> Topology | None:
    """Return the topology of the checkpoint's query, without Spark; None without a checkpoint.

    Without a record, the checkpoint has the number of sources and the operators, not the names.
    """
    checkpoint = directory.checkpoint(query)
    logs = CheckpointLogs(checkpoint)
    query_id = logs.query_id()
    if query_id is None:
        return None
    record = TopologyRecord.read(directory.storage, _path(query, query_id))
    planned = logs.batches("offsets")
    last = _entry_of(logs, planned[-1]) if planned else None
    known = record.topology if record is not None else None
    if known is not None:
        known = as_logged(known, last)
        if known.operators is not None:
            return known
    # Spark describes the operators while the first batch runs: before its commit any may be missing
    operators = _operators_in(checkpoint) if logs.batches("commits") else None
    if known is not None:
        return dataclasses.replace(known, operators=operators)
    lines = last.sources if last is not None else ()
    return as_logged(Topology(sources=(None,) * len(lines), operators=operators), last)


def _entry_of(logs: CheckpointLogs, batch: int) -> OffsetEntry | None:
    try:
        return logs.offsets(batch)
    except CorruptDocumentError:
        return None  # recovery puts it back from the record of its epoch, or refuses it


def as_logged(topology: Topology, entry: OffsetEntry | None) -> Topology:
    """Return the topology with the sources of an entry of the offset log, if it names them.

    They are in the entry's order, and those of which it has no offset yet follow. The record may be
    of a start that has planned no batch, or of a later one: if it lacks a source of the entry, the
    sources of each operator are not known. A source without a position may be of any kind.
    """
    if entry is None:
        return topology
    names = topology.sources if entry.names is None else entry.names
    lines = dict(zip(names, entry.lines_of(names), strict=False))
    kinds = {n: kind for n, kind in topology.kinds.items() if lines.get(n) not in {None, NO_OFFSET}}
    topology = dataclasses.replace(topology, kinds=kinds)
    if entry.names is None:
        return topology
    operators = topology.operators
    if operators is not None and not set(names) <= set(topology.sources):
        operators = tuple(operator._replace(sources=None) for operator in operators)
    unread = [name for name in topology.sources if name is not None and name not in names]
    gone = tuple(name for name in topology.removed if name not in names)
    return dataclasses.replace(
        topology, sources=(*names, *unread), operators=operators, unnamed=None, removed=gone
    )


def _operators_in(checkpoint: Storage) -> tuple[OperatorShape, ...] | None:
    found = []
    for number in numbers_in(checkpoint.list("state")):
        try:
            metadata = describe_operator(checkpoint, number)
        except (FileNotFoundError, CheckpointError):
            return None  # Spark itself compares them when the query starts
        found.append(OperatorShape(metadata.id, metadata.name))
    return tuple(sorted(found))


def _path(query: str, query_id: str) -> str:
    return f"queries/{query}/topologies/{query_id}.json"
