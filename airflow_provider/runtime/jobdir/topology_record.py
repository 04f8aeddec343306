"""Topology records: what each query of a job consisted of when it was first started.

Spark's own checkpoint knows a source only by its place, so the names are stored beside it. A
record is of one query id, as an intent to drain is: a query that starts over has another one.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from airflow_provider.runtime.base.names import numbers_in
from airflow_provider.runtime.base.typed_json import Name
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.checkpoint.operators import describe_operator
from airflow_provider.runtime.checkpoint.topology import OperatorShape, Topology
from airflow_provider.runtime.errors import CheckpointError
from airflow_provider.runtime.jobdir.record_shapes import OperatorValues
from airflow_provider.runtime.storage.documents import Contents, Document

if TYPE_CHECKING:
    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.jobdir.layout import JobDirectory


@dataclasses.dataclass(frozen=True, kw_only=True)
class TopologyRecord(Document):
    """``queries/<query>/topologies/<query id>.json``: put when the query is first started.

    Attributes:
        sources: one name for each line in the offset log.
        operators: per stateful operator its ``id``, ``kind``, ``sources``, the names of the
            sources above it, ``name``, what the job calls it, and ``keys``, what a join's key is
            called in the streams; None when they were not known.
    """

    CONTENTS = Contents.FACTS
    PLACES = ("topologies/{query_id}.json",)

    query_id: Name
    sources: list[str | None]
    operators: list[OperatorValues] | None

    @property
    def topology(self) -> Topology:
        """Return it as what is compared."""
        operators = self.operators
        return Topology(
            sources=tuple(self.sources),
            operators=None if operators is None else tuple(map(OperatorShape.of, operators)),
        )


def put_topology(
    directory: JobDirectory, query: str, query_id: str, topology: Topology, *, replace: bool = False
) -> None:
    """Store what a query consists of. Idempotent: the first record of an id stays.

    Args:
        directory: the job directory.
        query: the query's name.
        query_id: Spark's id of it.
        topology: what it consists of.
        replace: replace the record; for a query of which nothing was ever planned.
    """
    operators = topology.operators
    record = TopologyRecord(
        query_id=query_id,
        sources=list(topology.sources),
        operators=None if operators is None else [each._asdict() for each in operators],
    )
    path = _path(query, query_id)
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
    """Return what the query that the checkpoint is of consists of, without Spark.

    Where there is no record (an older version of this package, a driver that died at once), the
    checkpoint has the number of sources and the operators, not the names.

    Returns:
        None when there is no checkpoint.
    """
    checkpoint = directory.checkpoint(query)
    logs = CheckpointLogs(checkpoint)
    query_id = logs.query_id()
    if query_id is None:
        return None
    record = TopologyRecord.read(directory.storage, _path(query, query_id))
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
    """Return the stateful operators as Spark describes them; None where it does not."""
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
