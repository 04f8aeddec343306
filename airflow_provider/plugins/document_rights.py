"""The right that a document of a job directory needs, as its class declares it."""

from __future__ import annotations

from typing import Final

from airflow_provider.hooks import log_tail, replays, watch_periods
from airflow_provider.runtime.control import bootstrap_request, upgrade_request
from airflow_provider.runtime.jobdir import (
    batch_history,
    checkpoint_places,
    end_of_input,
    epoch_documents,
    expiry,
    fingerprint_record,
    identity,
    lease_records,
    requests,
    run_records,
    run_spec,
    source_ends,
    submissions,
    topology_record,
    upgrade_record,
    watches,
)
from airflow_provider.runtime.savepoints import claims, record
from airflow_provider.runtime.storage.documents import Contents, Document

_MODULES: Final = (
    batch_history,
    bootstrap_request,
    checkpoint_places,
    claims,
    end_of_input,
    epoch_documents,
    expiry,
    fingerprint_record,
    identity,
    lease_records,
    log_tail,
    record,
    replays,
    requests,
    run_records,
    run_spec,
    source_ends,
    submissions,
    topology_record,
    upgrade_record,
    upgrade_request,
    watch_periods,
    watches,
)
KINDS: Final[frozenset[type[Document]]] = frozenset(
    value
    for module in _MODULES
    for value in vars(module).values()
    if isinstance(value, type) and issubclass(value, Document) and value.PLACES
)
"""The documents that lie at a place of their own."""


def contents_at(path: str) -> Contents:
    """Return the contents of the document at a path; a file that is no known one may have a log."""
    found = {kind.CONTENTS for kind in KINDS if kind.is_placed_at(path)}
    return Contents.FACTS if found == {Contents.FACTS} else Contents.LOG
