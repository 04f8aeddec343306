"""Files that an older savepoint beside a new one holds already.

A hard link needs no sharing: each savepoint has all its files, and the disk has them once. In a
bucket a new savepoint names the older one in whose folder the bytes lie. Removing that one leaves
what others name; see keeping.py.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from airflow_provider.runtime.savepoint.catalog import find_savepoints
from airflow_provider.runtime.savepoint.claims import REMOVE
from airflow_provider.runtime.savepoint.records import MANIFEST, SavedFile
from airflow_provider.runtime.storage.file_tree import folders_in
from airflow_provider.runtime.storage.open import local_path_of, open_storage
from airflow_provider.runtime.typed_json import is_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_provider.runtime.checkpoint.inventory import NeededFile
    from airflow_provider.runtime.clock import Clock
    from airflow_provider.runtime.storage.base import Storage
    from airflow_provider.runtime.storage.file_tree import FileFacts

_Key = tuple[str, str, int, str]  # query id, path, size, tag


class Held:
    """Which savepoints lie beside a new one, and which files lie where.

    Args:
        holders: the savepoint's folder for each file that one holds.
        savepoints: the folders of all of them.
    """

    def __init__(self, holders: Mapping[_Key, str], savepoints: Iterable[str] = ()) -> None:
        self._holders = holders
        self.savepoints = list(savepoints)

    def where(
        self, query_id: str, needed: Iterable[NeededFile], found: Mapping[str, FileFacts]
    ) -> list[SavedFile]:
        """Return for each needed file of a query what the savepoint's record says of it.

        Args:
            query_id: the query's.
            needed: its files.
            found: what the checkpoint's filesystem says of its files.
        """
        files: list[SavedFile] = []
        for file in needed:
            tag = found[file.path].tag
            holder = self._holders.get((query_id, file.path, file.size_bytes, tag)) if tag else None
            files.append(SavedFile(file.path, file.size_bytes, tag, holder))
        return files


def held_beside(target: Storage, clock: Clock) -> Held:
    """Return what the savepoints beside *target* hold; no files on a local filesystem.

    Call it with *target* claimed: whoever removes garbage claims that first and looks for takers'
    claims then. So either it sees this one and removes nothing shared, or this sees it.
    """
    root = open_storage(target.url.rpartition("/")[0])
    if local_path_of(target.url) is not None:
        with suppress(PermissionError):  # whoever may not list them can still take one
            names = [name for name in folders_in(root.url) if is_name(name)]
            return Held({}, [name for name in names if root.exists(f"{name}/{MANIFEST}")])
        return Held({})
    found, others = find_savepoints(root)
    savepoints = [savepoint for savepoint in found if is_name(savepoint.folder)]
    folders = [savepoint.folder for savepoint in savepoints]
    claims = [other.claim for other in others if other.claim is not None]
    if any(held.purpose == REMOVE and not held.has_ended(clock) for held in claims):
        return Held({}, folders)
    holders: dict[_Key, str] = {}
    for savepoint in savepoints:
        for query in savepoint.record.queries.values():
            for file in query.files:
                if file.tag is not None:
                    key = (query.query_id, file.path, file.size, file.tag)
                    holders.setdefault(key, file.holder or savepoint.folder)
    return Held(holders, folders)
