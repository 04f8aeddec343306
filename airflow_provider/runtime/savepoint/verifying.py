"""Is a savepoint what its record says: every file there, of its size, and of its checksum."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.checkpoint import has_hadoop_checksum, has_spark_checksum
from airflow_provider.runtime.storage import open_storage
from airflow_provider.runtime.storage.trees import files_under

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider.runtime.savepoint.catalog import Savepoint
    from airflow_provider.runtime.savepoint.records import QuerySavepoint, SavedFile
    from airflow_provider.runtime.storage import Storage

VERIFIED_BYTES: Final = 4 * 1024 * 1024
"""How much a taker reads again by default: enough for logs, not so much that state shows."""


def verify_savepoint(savepoint: Savepoint) -> list[str]:
    """Read all of a savepoint that has a checksum, and look for every file.

    Returns:
        What is wrong, a line each; empty when nothing is.
    """
    place = open_storage(savepoint.url)
    return [
        line
        for name, query in savepoint.record.queries.items()
        for line in find_damage(place, name, query, verified_bytes=None)
    ]


def find_damage(
    place: Storage, name: str, query: QuerySavepoint, verified_bytes: int | None
) -> list[str]:
    """Compare one query's files with the savepoint's record.

    Args:
        place: the savepoint's folder.
        name: the query's.
        query: what the record says of it.
        verified_bytes: how many bytes to read and compare with checksums, the smallest files
            first; None for all.

    Returns:
        What is wrong, a line each, sizes first.
    """
    found = _sizes(place, name, query)
    wrong = []
    for file in query.files:
        size = found.get(file)
        where = _url(place, name, file)
        if size is None:
            wrong.append(f"{where}: is missing")
        elif size != file.size:
            wrong.append(f"{where}: has {size} bytes instead of {file.size}")
    if wrong:
        return wrong
    return [
        f"{_url(place, name, file)}: its content does not have the checksum that was stored with it"
        for file, checksum in _with_checksums(query, verified_bytes)
        if not _is_intact(place, name, file, checksum)
    ]


def _sizes(place: Storage, name: str, query: QuerySavepoint) -> dict[SavedFile, int]:
    """Return the sizes of the files that are there; one listing for each folder they lie in."""
    holders = {file.holder for file in query.files}
    listed = {holder: dict(files_under(_folder(place, name, holder))) for holder in holders}
    return {
        file: listed[file.holder][file.path]
        for file in query.files
        if file.path in listed[file.holder]
    }


def _with_checksums(
    query: QuerySavepoint, budget: int | None
) -> Iterator[tuple[SavedFile, SavedFile]]:
    """Yield files with what holds their checksum: Hadoop's own if there is one, else Spark's."""
    by_path = {file.path: file for file in query.files}
    read = 0
    for file in sorted(query.files, key=lambda file: file.size):
        folder, _, name = file.path.rpartition("/")
        if name.startswith(".") and name.endswith(".crc"):
            continue  # Hadoop's own, of which there are no checksums
        inside = f"{folder}/" if folder else ""
        checksum = by_path.get(f"{inside}.{name}.crc") or by_path.get(f"{file.path}.crc")
        if checksum is None:
            continue
        read += file.size
        if budget is not None and read > budget:
            return
        yield file, checksum


def _is_intact(place: Storage, name: str, file: SavedFile, checksum: SavedFile) -> bool:
    data, summed = (_read(place, name, each) for each in (file, checksum))
    is_hadoops = checksum.path.rpartition("/")[2].startswith(".")
    check = has_hadoop_checksum if is_hadoops else has_spark_checksum
    return check(data, summed, where=_url(place, name, checksum))


def _read(place: Storage, name: str, file: SavedFile) -> bytes:
    return open_storage(_folder(place, name, file.holder)).read(file.path)


def _url(place: Storage, name: str, file: SavedFile) -> str:
    return f"{_folder(place, name, file.holder)}/{file.path}"


def _folder(place: Storage, name: str, holder: str | None) -> str:
    own, _, _ = place.url.rpartition("/")
    return f"{place.url if holder is None else f'{own}/{holder}'}/queries/{name}"
