"""Refuses outputs that belong to another job directory, before anything is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider.runtime.api.sinks import MarkedSink, Writer
from airflow_provider.runtime.jobdir.identity import check_writers, identity_of, lineage_of
from airflow_provider.runtime.savepoints.catalog import open_savepoint

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.jobdir.run_spec import RunSpec
    from airflow_provider.runtime.queries.query import QueryDefinition


def check_outputs(
    spec: RunSpec, directory: JobDirectory, queries: Iterable[QueryDefinition]
) -> None:
    """Refuse an output that another job directory has written under this one's address.

    The lineage of this directory is allowed: its own identity, its predecessors', those of the
    savepoint that it is begun from, and the one that the request gives up.

    Raises:
        ConfigError: the message names the sink, the identity, and the ways out.
    """
    sinks = [s for query in queries for s in query.sinks if isinstance(s, MarkedSink)]
    if not sinks:
        return
    lineage = {*lineage_of(directory.storage), *followed_by(spec)}
    for sink in sinks:
        check_writers(sink.name, sink.writers(directory.url), directory.url, lineage)


def followed_by(spec: RunSpec) -> list[str]:
    """Return the identities that a request says its job directory follows."""
    given_up = [spec.replaces_job] if spec.replaces_job is not None else []
    if spec.from_savepoint is None:
        return given_up
    return [*open_savepoint(spec.from_savepoint).record.lineage, *given_up]


def writer_of(directory: JobDirectory) -> Writer | None:
    """Return the directory as what sinks record with an epoch; None if it has no identity."""
    identity = identity_of(directory.storage)
    return Writer(directory.url, identity) if identity is not None else None
