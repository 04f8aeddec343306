"""Documents of a job directory as they are stored, and the permission that each needs.

A path from a browser is accepted only if each part is in the listing of its folder, and is no
symbolic link.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.base.names import is_name
from airflow_provider.runtime.errors import CorruptDocumentError
from airflow_provider.runtime.jobdir.layout import ROOTS
from airflow_provider.runtime.storage.documents import Contents, Document, read_stored
from airflow_provider.runtime.storage.file_tree import folders_in
from airflow_provider.runtime.storage.open import open_storage

if TYPE_CHECKING:
    from airflow_provider.runtime.api.storages import Storage

_SUFFIX: Final = ".json"
_MOST_CHARS: Final = 200_000  # more stalls a browser; the rest is for other tools
_MOST_PARTS: Final = 12
_MODULES: Final = (
    "hooks.log_tail",
    "hooks.task_runs",
    "runtime.control.bootstrap_request",
    "runtime.jobdir.batch_history",
    "runtime.jobdir.journal",
    "runtime.jobdir.end_of_input",
    "runtime.jobdir.epoch_documents",
    "runtime.jobdir.expiry",
    "runtime.jobdir.query_records",
    "runtime.jobdir.source_identities",
    "runtime.jobdir.identity",
    "runtime.jobdir.lease_records",
    "runtime.jobdir.pinned_settings",
    "runtime.jobdir.requests",
    "runtime.jobdir.run_records",
    "runtime.jobdir.submissions",
    "runtime.jobdir.upgrade_record",
    "runtime.savepoints.checkpoint_claim",
    "runtime.savepoints.record",
)
KINDS: Final[frozenset[type[Document]]] = frozenset(
    value
    for module in _MODULES
    for value in vars(importlib.import_module(f"airflow_provider.{module}")).values()
    if isinstance(value, type) and issubclass(value, Document) and value.LOCATIONS
)
"""The documents that lie at a location of their own."""


@dataclasses.dataclass(frozen=True)
class Folder:
    """The names in a folder of the job directory: folders, and documents that can be read."""

    folder: str
    folders: list[str]
    documents: list[str]


@dataclasses.dataclass(frozen=True)
class StoredDocument:
    """One document of the job directory, as it is stored."""

    path: str
    text: str
    is_cut: bool


def contents_at(path: str) -> Contents:
    """Return the contents of the document at a path; a file that is no known one may have a log."""
    found = {kind.CONTENTS for kind in KINDS if kind.is_placed_at(path)}
    return Contents.FACTS if found == {Contents.FACTS} else Contents.LOG


def read_folder(job_dir: str, folder: str) -> Folder:
    """Return the names in a folder of the job directory."""
    storage = open_storage(job_dir)
    names = _names(storage, folder)
    inside = set(folders_in(storage.at(folder)))
    return Folder(
        folder=folder,
        folders=[name for name in names if name in inside],
        documents=[n for n in names if n.endswith(_SUFFIX) and n not in inside],
    )


def read_document(job_dir: str, path: str) -> StoredDocument:
    """Return a document of the job directory."""
    storage = open_storage(job_dir)
    folder, _, name = path.rpartition("/")
    if not name.endswith(_SUFFIX) or name not in _names(storage, folder):
        raise LookupError(path)
    try:
        text = read_stored(storage, path).decode(errors="replace")
    except (CorruptDocumentError, FileNotFoundError) as error:  # or a link, a folder, a pipe
        raise LookupError(path) from error
    return StoredDocument(path=path, text=text[:_MOST_CHARS], is_cut=len(text) > _MOST_CHARS)


def _names(storage: Storage, folder: str) -> list[str]:
    """Return the names in a folder that is reached from listing to listing."""
    names = sorted(ROOTS.intersection(storage.list("")))
    at = ""
    parts = folder.split("/") if folder else []
    if len(parts) > _MOST_PARTS:
        raise LookupError(folder)
    for part in parts:
        at = f"{at}/{part}" if at else part
        if part not in names:
            raise LookupError(folder)
        try:
            names = [name for name in storage.list(at) if is_name(name)]
        except CorruptDocumentError as error:  # a symbolic link
            raise LookupError(folder) from error
    return names
