"""Records of a query: what made the state in its checkpoint, and what the query consists of.

A change is put before the query starts with it, and counts only once its first batch has committed.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from airflow_provider.runtime.base.names import numbers_in
from airflow_provider.runtime.base.typed_json import Name, NonNegative
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.checkpoint.operators import describe_operator
from airflow_provider.runtime.checkpoint.topology import (
    Fingerprint,
    OperatorShape,
    Topology,
)
from airflow_provider.runtime.errors import CheckpointError
from airflow_provider.runtime.jobdir.record_shapes import OperatorValues
from airflow_provider.runtime.storage.documents import Contents, Document

if TYPE_CHECKING:
    from airflow_provider.runtime.api.storages import Storage
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
class FingerprintRecord(Document):
    """``queries/<query>/fingerprints/<query id>.json``: put before each start that changes it.

    Attributes:
        versions: ascending; the first one made the oldest kept state.
    """

    CONTENTS = Contents.FACTS
    PLACES = ("fingerprints/{query_id}.json",)

    query_id: Name
    versions: list[FingerprintVersion]

    def at(self, batch: int) -> Fingerprint | None:
        """Return what the query was when a batch ran; before the first one what was to run it."""
        made = [each for each in self.versions if each.since <= batch] or self.versions[:1]
        return made[-1].fingerprint if made else None


def kept_fingerprint(
    directory: JobDirectory, query: str, batch: int | None = None
) -> Fingerprint | None:
    """Return the fingerprint of a query after *batch*, or the last commit; None if never kept."""
    logs = CheckpointLogs(directory.checkpoint(query))
    query_id = logs.query_id()
    if query_id is None:
        return None
    record = FingerprintRecord.read(directory.storage, _path(query, query_id))
    if record is None:
        return None
    return record.at(logs.position().last_commit if batch is None else batch)


def keep_fingerprint(
    directory: JobDirectory, query: str, fingerprint: Fingerprint | None, *, since: int
) -> None:
    """Store the fingerprint of a query from batch *since* on; None or no change stores nothing.

    Crash safety: what no batch has run with does not count. Idempotent.
    """
    query_id = CheckpointLogs(directory.checkpoint(query)).query_id()
    if query_id is not None and fingerprint is not None:
        put_fingerprint(directory, query, query_id, fingerprint, since=since)


def put_fingerprint(
    directory: JobDirectory, query: str, query_id: str, fingerprint: Fingerprint, *, since: int
) -> None:
    """Store what the query of an id is from a batch on; see :func:`keep_fingerprint`."""
    path = _path(query, query_id)
    before = FingerprintRecord.read(directory.storage, path)
    made = [each for each in before.versions if each.since < since][-1:] if before else []
    if not made or made[-1].fingerprint != fingerprint:
        made = [*made, FingerprintVersion(since=since, fingerprint=fingerprint)]
    record = FingerprintRecord(query_id=query_id, versions=made)
    if record != before:
        record.put(directory.storage, path)


def _path(query: str, query_id: str) -> str:
    return f"queries/{query}/fingerprints/{query_id}.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TopologyRecord(Document):
    """``queries/<query>/topologies/<query id>.json``: put when the query is first started.

    Attributes:
        sources: one name for each line in the offset log.
        operators: per stateful operator its ``id``, ``kind``, ``sources`` above it, ``name`` in the
            job, and ``keys``, a join's key columns; None when not known.
    """

    CONTENTS = Contents.FACTS
    PLACES = ("topologies/{query_id}.json",)

    query_id: Name
    sources: list[str | None]
    operators: list[OperatorValues] | None

    @property
    def topology(self) -> Topology:
        operators = self.operators
        return Topology(
            sources=tuple(self.sources),
            operators=None if operators is None else tuple(map(OperatorShape.of, operators)),
        )


def put_topology(
    directory: JobDirectory, query: str, query_id: str, topology: Topology, *, replace: bool = False
) -> None:
    """Store what a query consists of. Idempotent: the first record of an id stays.

    *replace* replaces it, for a query of which nothing was ever planned.
    """
    operators = topology.operators
    record = TopologyRecord(
        query_id=query_id,
        sources=list(topology.sources),
        operators=None if operators is None else [each._asdict() for each in operators],
    )
    path = _topology_path(query, query_id)
    if replace:
        record.put(directory.storage, path)
    else:
        record.put_if_absent(directory.storage, path)


def keep_topology(
    directory: JobDirectory, query: str, topology: Topology, *, replace: bool
) -> None:
    """Store what a query that has been started consists of; see :func:`put_topology`."""
    query_id = CheckpointLogs(directory.checkpoint(query)).query_id()
    if query_id is not None:
        put_topology(directory, query, query_id, topology, replace=replace)


def kept_topology(directory: JobDirectory, query: str) -> Topology | None:
    """Return the topology of the checkpoint's query, without Spark; None without a checkpoint.

    Without a record, the checkpoint has the number of sources and the operators, not the names.
    """
    checkpoint = directory.checkpoint(query)
    logs = CheckpointLogs(checkpoint)
    query_id = logs.query_id()
    if query_id is None:
        return None
    record = TopologyRecord.read(directory.storage, _topology_path(query, query_id))
    known = record.topology if record is not None else None
    if known is not None and known.operators is not None:
        return known
    # Spark describes the operators while the first batch runs: before its commit any may be missing
    operators = _operators_in(checkpoint) if logs.batches("commits") else None
    if known is not None:
        return dataclasses.replace(known, operators=operators)
    planned = logs.batches("offsets")
    lines = logs.offsets(planned[-1]).sources if planned else ()
    return Topology(sources=(None,) * len(lines), operators=operators)


def _operators_in(checkpoint: Storage) -> tuple[OperatorShape, ...] | None:
    found = []
    for number in numbers_in(checkpoint.list("state")):
        try:
            metadata = describe_operator(checkpoint, number)
        except (FileNotFoundError, CheckpointError):
            return None  # Spark itself compares them when the query starts
        found.append(OperatorShape(metadata.id, metadata.name))
    return tuple(sorted(found))


def _topology_path(query: str, query_id: str) -> str:
    return f"queries/{query}/topologies/{query_id}.json"
