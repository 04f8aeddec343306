"""Fingerprint records: what made the state that lies in a query's checkpoint.

A job may be changed between two runs. The record has what the query was at each batch that still
matters: a change is put before the query starts with it, with the first batch that it can run, and
counts only when that batch has committed. So a start that was cut short has changed nothing.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from airflow_provider.runtime.base.typed_json import Name, NonNegative
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.checkpoint.topology import (
    Fingerprint,  # noqa: TC001 - the document is read by its annotations
)
from airflow_provider.runtime.storage.documents import Contents, Document

if TYPE_CHECKING:
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
        versions: ascending; the first one made the oldest state that is there.
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
    """Return what made the state of a query.

    Args:
        directory: the job directory.
        query: the query's name.
        batch: the state after this one; None for after the last commit.

    Returns:
        None where it was never kept: the checkpoint is of an older version of this package, or of
        none.
    """
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
    """Store what a query is from a batch on; nothing is stored if it is what it was.

    Args:
        directory: the job directory.
        query: the query's name; Spark has given it an id.
        fingerprint: None where it is not known: what was kept stays.
        since: the first batch that it can run.

    Crash safety: what no batch has run with does not count.
    Idempotent: by query id, batch and fingerprint.
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
