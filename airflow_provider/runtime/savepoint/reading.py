"""Reading single files of a savepoint, wherever their bytes lie.

In a bucket a file may be held by an older savepoint beside this one; its record tells which.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider.runtime.checkpoint.logs import OffsetEntry
from airflow_provider.runtime.errors import CheckpointError
from airflow_provider.runtime.storage.file_tree import link_on_way
from airflow_provider.runtime.storage.open import open_storage

if TYPE_CHECKING:
    from airflow_provider.runtime.savepoint.catalog import Savepoint
    from airflow_provider.runtime.savepoint.records import SavedFile
    from airflow_provider.runtime.storage.base import Storage


def folder_of(place: Storage, name: str, holder: str | None) -> Storage:
    """Return where files of a query lie.

    Args:
        place: the savepoint.
        name: the query.
        holder: the older savepoint that holds them, None for this one.

    Raises:
        CheckpointError: a symbolic link leads there, perhaps out of the savepoint.
    """
    root, path = place.url, f"queries/{name}"
    if holder is not None:
        root, path = place.url.rpartition("/")[0], f"{holder}/{path}"
    if (link := link_on_way(root, [path])) is not None:
        msg = f"{root}/{link}: is a symbolic link, and a savepoint has none; use another one"
        raise CheckpointError(msg)
    return open_storage(f"{root}/{path}")


def read_saved(place: Storage, name: str, file: SavedFile) -> bytes:
    """Read a file of a query in the savepoint *place*."""
    return folder_of(place, name, file.holder).read(file.path)


def saved_offsets(savepoint: Savepoint, name: str, batch: int) -> OffsetEntry:
    """Return the offsets of a query's batch, or of the one in flight after it."""
    path = f"offsets/{batch}"
    file = next(file for file in savepoint.record.queries[name].files if file.path == path)
    data = read_saved(open_storage(savepoint.url), name, file)
    return OffsetEntry.parse(data, where=f"{savepoint.url}/queries/{name}/{path}")
