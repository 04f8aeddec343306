"""Verification of a savepoint: every file is there, with its size and its checksum."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.checkpoint.checksums import has_hadoop_checksum, has_spark_checksum
from airflow_provider.runtime.savepoints.catalog import folder_of
from airflow_provider.runtime.storage.file_tree import files_under
from airflow_provider.runtime.storage.open import open_storage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from airflow_provider.runtime.savepoints.catalog import Savepoint
    from airflow_provider.runtime.savepoints.record import QuerySavepoint, SavedFile
    from airflow_provider.runtime.storage.base import Storage

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
    place: Storage,
    name: str,
    query: QuerySavepoint,
    verified_bytes: int | None,
    *,
    just_copied: bool = False,
) -> list[str]:
    """Compare one query's files with the savepoint's record.

    Args:
        place: the savepoint's folder.
        name: the query's.
        query: what the record says of it.
        verified_bytes: how many bytes to read and compare with checksums, the smallest files
            first; None for all.
        just_copied: that the sizes of its own files were compared when they were copied, so that
            only those that older savepoints hold are looked at.

    Returns:
        What is wrong, a line each, sizes first.
    """
    folders = _Folders(place, name, {file.holder for file in query.files})
    unsized = [file for file in query.files if file.holder or not just_copied]
    wrong = list(folders.without_right_size(unsized))
    if wrong:
        return wrong
    return [
        f"{folders.url(file)}: its content does not have the checksum that was stored with it"
        for file, checksum in _with_checksums(query, verified_bytes)
        if not folders.is_intact(file, checksum)
    ]


class _Folders:
    """The folders in which one query's files lie: the savepoint's own, and those of its holders."""

    def __init__(self, place: Storage, name: str, holders: Iterable[str | None]) -> None:
        self._at = {holder: folder_of(place, name, holder) for holder in holders}

    def without_right_size(self, files: Sequence[SavedFile]) -> Iterator[str]:
        """Yield a line for each file of another size, or missing; each folder is listed once."""
        holders = {file.holder for file in files}
        listed = {holder: dict(files_under(self._at[holder])) for holder in holders}
        for file in files:
            size = listed[file.holder].get(file.path)
            if size is None:
                yield f"{self.url(file)}: is missing"
            elif size != file.size:
                yield f"{self.url(file)}: has {size} bytes instead of {file.size}"

    def is_intact(self, file: SavedFile, checksum: SavedFile) -> bool:
        """Whether a file has the checksum that lies beside it."""
        data, summed = (self._at[each.holder].read(each.path) for each in (file, checksum))
        is_hadoops = checksum.path.rpartition("/")[2].startswith(".")
        check = has_hadoop_checksum if is_hadoops else has_spark_checksum
        return check(data, summed, where=self.url(checksum))

    def url(self, file: SavedFile) -> str:
        """Return a file's address."""
        return f"{self._at[file.holder].url}/{file.path}"


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
