"""Data files of an Iceberg table's snapshots, in the order in which they are read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow_provider.runtime.api.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile, FileFormat
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

_MOST_LISTS: Final = 256  # of snapshots that are kept; a batch is listed twice, one after the other


class DeleteFile(NamedTuple):
    """A file of position deletes, or of deletion vectors."""

    path: str
    format: FileFormat


class ListedFile(NamedTuple):
    """A data file, without the statistics that fill the memory.

    Attributes:
        rows: as the table has it, before deletes and filters.
        partition: the values of the partition that the spec *spec_id* describes.
        is_match: whether rows of the file may match the filter.
    """

    path: str
    format: FileFormat
    rows: int
    bytes: int
    spec_id: int
    partition: tuple[Any, ...]
    deletes: tuple[DeleteFile, ...]
    is_match: bool


class Listing:
    """Lists the files of snapshots, which never change, and keeps the last lists."""

    def __init__(self, name: str, metadata: TableMetadata, where: str | None) -> None:
        """Take *metadata* with the schema in which *where* names columns."""
        self._name = name
        self._metadata = metadata
        self._where = where
        self._lists: dict[tuple[int, bool], list[ListedFile]] = {}

    def knows(self, specs: Mapping[int, PartitionSpec]) -> bool:
        """Whether files of all partition specs can be listed; a table may get new ones."""
        return specs.keys() <= self._metadata.specs().keys()

    def added(self, snapshot: Snapshot, io: FileIO) -> list[ListedFile]:
        """Return the data files that a snapshot added, by path.

        Raises:
            ConfigError: pyiceberg cannot read a file's format.
        """
        return self._kept((snapshot.snapshot_id, False), lambda: self._added(snapshot, io))

    def whole(self, snapshot: Snapshot, io: FileIO) -> list[ListedFile]:
        """Return all data files of the table as of a snapshot, by path, with their deletes.

        Raises:
            ConfigError: the snapshot has equality deletes, or files of an unknown format.
        """
        return self._kept((snapshot.snapshot_id, True), lambda: self._whole(snapshot, io))

    def _kept(
        self, key: tuple[int, bool], list_files: Callable[[], list[ListedFile]]
    ) -> list[ListedFile]:
        if key not in self._lists:
            found = sorted(list_files(), key=lambda file: file.path)
            while len(self._lists) >= _MOST_LISTS:
                del self._lists[next(iter(self._lists))]
            self._lists[key] = found
        return self._lists[key]

    def _added(self, snapshot: Snapshot, io: FileIO) -> list[ListedFile]:
        from pyiceberg.manifest import ManifestContent, ManifestEntryStatus

        own = snapshot.snapshot_id
        entries = [
            entry.data_file
            for manifest in snapshot.manifests(io)
            if manifest.content == ManifestContent.DATA
            and manifest.added_snapshot_id == own
            and manifest.has_added_files()
            for entry in manifest.fetch_manifest_entry(io)
            if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == own
        ]
        return self._listed((file, ()) for file in entries)

    def _whole(self, snapshot: Snapshot, io: FileIO) -> list[ListedFile]:
        from pyiceberg.table import ManifestGroupPlanner

        planner = ManifestGroupPlanner(self._metadata, io)
        try:
            tasks = list(planner.plan_files(snapshot.manifests(io)))
        except ValueError as error:
            if "equality deletes" not in str(error):
                raise
            raise ConfigError(
                f"{self._name}: the table has equality deletes as of snapshot "
                f"{snapshot.snapshot_id}, which pyiceberg cannot apply; compact the table "
                "(rewrite_data_files), or read only what comes next with starts='now'"
            ) from None
        return self._listed((task.file, task.delete_files) for task in tasks)

    def _listed(self, files: Iterable[tuple[DataFile, Iterable[DataFile]]]) -> list[ListedFile]:
        may_match = self._matcher()
        found = []
        for file, deletes in files:
            self._check_format(file)
            found.append(
                ListedFile(
                    path=file.file_path,
                    format=file.file_format,
                    rows=file.record_count,
                    bytes=file.file_size_in_bytes,
                    spec_id=file.spec_id,
                    partition=tuple(file.partition[i] for i in range(len(file.partition))),
                    deletes=tuple(sorted(DeleteFile(d.file_path, d.file_format) for d in deletes)),
                    is_match=may_match(file),
                )
            )
        return found

    def _check_format(self, file: DataFile) -> None:
        from pyiceberg.manifest import FileFormat

        if file.file_format not in {FileFormat.PARQUET, FileFormat.ORC}:
            raise ConfigError(
                f"{self._name}: {file.file_path} is of the format {file.file_format.value}, and "
                "pyiceberg reads Parquet and ORC; compact the table into one of these, and start a "
                "new query"
            )

    def _matcher(self) -> Callable[[DataFile], bool]:
        """Return whether a file may have rows that match, by its partition and its statistics."""
        if self._where is None:
            return lambda _: True
        from pyiceberg.table import ManifestGroupPlanner
        from pyiceberg.typedef import EMPTY_DICT

        planner = ManifestGroupPlanner(self._metadata, _NO_IO, self._where, options=EMPTY_DICT)
        by_statistics = planner._build_metrics_evaluator()
        by_spec: dict[int, Callable[[DataFile], bool]] = {}

        def may_match(file: DataFile) -> bool:
            if file.spec_id not in by_spec:
                by_spec[file.spec_id] = planner._build_partition_evaluator(file.spec_id)
            return by_spec[file.spec_id](file) and by_statistics(file)

        return may_match


_NO_IO: Any = None  # evaluators read no file
