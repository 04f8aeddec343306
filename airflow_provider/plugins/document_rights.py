"""The right that a document of a job directory needs, as its class declares it."""

from __future__ import annotations

import importlib
from typing import Final

from airflow_provider.runtime.storage.documents import Contents, Document

_MODULES: Final = (
    "hooks.log_tail",
    "hooks.replays",
    "hooks.watch_periods",
    "extensions.upgrades.upgrade_request",
    "runtime.control.bootstrap_request",
    "runtime.jobdir.batch_history",
    "runtime.jobdir.checkpoint_places",
    "runtime.jobdir.end_of_input",
    "runtime.jobdir.epoch_documents",
    "runtime.jobdir.expiry",
    "runtime.jobdir.fingerprint_record",
    "runtime.jobdir.identity",
    "runtime.jobdir.lease_records",
    "runtime.jobdir.requests",
    "runtime.jobdir.run_records",
    "runtime.jobdir.run_spec",
    "runtime.jobdir.submissions",
    "runtime.jobdir.topology_record",
    "runtime.jobdir.upgrade_record",
    "runtime.savepoints.record",
)
KINDS: Final[frozenset[type[Document]]] = frozenset(
    value
    for module in _MODULES
    for value in vars(importlib.import_module(f"airflow_provider.{module}")).values()
    if isinstance(value, type) and issubclass(value, Document) and value.PLACES
)
"""The documents that lie at a place of their own."""


def contents_at(path: str) -> Contents:
    """Return the contents of the document at a path; a file that is no known one may have a log."""
    found = {kind.CONTENTS for kind in KINDS if kind.is_placed_at(path)}
    return Contents.FACTS if found == {Contents.FACTS} else Contents.LOG
