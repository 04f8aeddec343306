"""Files that an older savepoint beside a new one holds already.

A hard link needs no sharing: each savepoint has all its files, and the disk has them once. In a
bucket a new savepoint names the older one in whose folder the bytes lie. Removing that one leaves
what others name; see keeping.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider.runtime.savepoint.catalog import find_savepoints
from airflow_provider.runtime.savepoint.records import COLLECTING, SavedFile
from airflow_provider.runtime.storage import local_path_of, open_storage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_provider.runtime.checkpoint import NeededFile
    from airflow_provider.runtime.storage import Storage
    from airflow_provider.runtime.storage.trees import FileFacts

_Key = tuple[str, str, int, str]  # query id, path, size, tag


class Held:
    """Which files lie where.

    Args:
        holders: the savepoint's folder for each file that one holds.
    """

    def __init__(self, holders: Mapping[_Key, str]) -> None:
        self._holders = holders

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


def held_beside(target: Storage) -> Held:
    """Return what the savepoints beside *target* hold; nothing on a local filesystem.

    Call it with *target* claimed: whoever removes garbage looks for claims after it has put
    ``collecting.json``, so either it sees the claim and removes nothing shared, or this sees it.
    """
    root_url, _, _ = target.url.rpartition("/")
    if local_path_of(target.url) is not None:
        return Held({})
    root = open_storage(root_url)
    if root.exists(COLLECTING):
        return Held({})
    holders: dict[_Key, str] = {}
    for savepoint in find_savepoints(root)[0]:
        for query in savepoint.record.queries.values():
            for file in query.files:
                if file.tag is not None:
                    key = (query.query_id, file.path, file.size, file.tag)
                    holders.setdefault(key, file.holder or savepoint.folder)
    return Held(holders)
