"""Changes to an Iceberg table's files and state, below the catalog's own transactions."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.iceberg.schema import new_partition_fields, new_schema
from airflow_provider.runtime.api.errors import SinkError
from airflow_provider.runtime.api.kit.staging import folder_name, is_inside
from airflow_provider.runtime.api.sink_errors import reading, tampered_record_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table, Transaction
    from pyiceberg.types import NestedField

    from airflow_provider.runtime.api.sinks import Committable, EpochId

_FOOTER_READERS: Final = 8
_FIRST_TASK: Final = "part-00000-"
_NEW_TABLE: Final = {
    # Every commit adds a manifest and copies the list of all; merged, they are a hundred at most.
    "commit.manifest-merge.enabled": "true",
    # Every commit leaves a metadata file that grows with the snapshots; keep the newest hundred.
    "write.metadata.delete-after-commit.enabled": "true",
}


def create_table(
    catalog: Catalog, table: str, sink: str, arrow: pa.Schema, partition_by: Sequence[str]
) -> Table:
    """Make the table for rows of *arrow*, or return the one that another writer makes meanwhile."""
    from pyiceberg.exceptions import TableAlreadyExistsError
    from pyiceberg.partitioning import PartitionSpec

    schema = new_schema(arrow, sink)
    spec = PartitionSpec(*new_partition_fields(schema, partition_by, sink))
    try:
        return catalog.create_table(table, schema, partition_spec=spec, properties=dict(_NEW_TABLE))
    except TableAlreadyExistsError:
        return catalog.load_table(table)


class DataFiles:
    """Makes the entries of the Parquet files *paths*, and keeps them while the schema stays."""

    def __init__(self, name: str, paths: Sequence[str]) -> None:
        self._name, self._paths = name, paths
        self._made_for: tuple[int, int] | None = None
        self._made: list[DataFile] = []

    def get(self, table: Table) -> list[DataFile]:
        from pyiceberg.io.pyarrow import parquet_files_to_data_files

        key = (table.metadata.current_schema_id, table.metadata.default_spec_id)
        if key != self._made_for:

            def make(path: str) -> list[DataFile]:
                return list(parquet_files_to_data_files(table.io, table.metadata, iter([path])))

            with ThreadPoolExecutor(_FOOTER_READERS) as pool:
                made = [entry for entries in pool.map(make, self._paths) for entry in entries]
            for entry in made:
                self._check_partition(table, entry)
            self._made, self._made_for = made, key
        return self._made

    def _check_partition(self, table: Table, entry: DataFile) -> None:
        """Refuse a partition value that some row may lack: pyiceberg overlooks nulls beside it."""
        for position, field in enumerate(table.spec().fields):
            nulls = (entry.null_value_counts or {}).get(field.source_id)
            expected = entry.record_count if entry.partition[position] is None else 0
            if nulls != expected:
                raise SinkError(
                    f"{self._name}: the statistics of {entry.file_path} do not tell the partition "
                    f"{field.name!r}; see the table's write.metadata.metrics properties"
                )


def name_mapping_of(table: Table) -> dict[str, str]:
    """Return the property by which readers find columns: Spark's files have no field ids."""
    if table.metadata.name_mapping() is not None:
        return {}
    return {"schema.name-mapping.default": table.schema().name_mapping.model_dump_json()}


def data_folder(table: Table) -> str:
    """Return the folder of the table's data files."""
    configured = table.metadata.properties.get("write.data.path")
    return (configured or f"{table.metadata.location.rstrip('/')}/data").rstrip("/")


def folder_of(table: Table, epoch: EpochId) -> str:
    """Return the folder in which an epoch is staged, and stays."""
    return f"{data_folder(table)}/{epoch.query_id}/{folder_name(epoch)}"


def paths_of(committable: Committable) -> list[str]:
    """Return the staged files' addresses as in the table's metadata; refuse other files."""
    epoch, kind = committable.epoch, "iceberg"
    with reading(kind, committable):
        folder, names = str(committable.data["folder"]), list(committable.data["files"])
    if not folder.endswith(f"/{epoch.query_id}/{folder_name(epoch)}"):
        raise tampered_record_error(kind, epoch, folder)
    for name in names:
        if not is_inside(name):
            raise tampered_record_error(kind, epoch, name)
    return [f"{folder}/{name}" for name in names]


def is_below(table: Table, folder: str) -> bool:
    """Whether *folder* is below a folder of the table's files."""
    tops = (data_folder(table), table.metadata.location.rstrip("/"))
    return any(folder.startswith(f"{top}/") and is_inside(folder[len(top) + 1 :]) for top in tops)


def has_rows(table: Table, path: str) -> bool:
    """Whether a staged file has rows; Spark's first task writes one even without any."""
    import pyarrow.parquet as pq

    if not path.rpartition("/")[2].startswith(_FIRST_TASK):
        return True
    with table.io.new_input(path).open() as stream:
        return int(pq.read_metadata(stream).num_rows) > 0


def begin_change(table: Table, columns: Sequence[NestedField] = ()) -> Transaction:
    """Begin a change of the table's current state, which adds *columns*, for :func:`swap`.

    It begins from the current snapshot alone: pyiceberg copies the whole state a dozen times, and
    with a thousand snapshots that would take longer than everything else.
    """
    from pyiceberg.table import Table as Handle
    from pyiceberg.table.refs import MAIN_BRANCH

    metadata, current = table.metadata, table.metadata.current_snapshot()
    slim = metadata.model_copy(
        update={
            "snapshots": [current] if current else [],
            "snapshot_log": [],
            "metadata_log": [],
            "refs": {name: ref for name, ref in metadata.refs.items() if name == MAIN_BRANCH},
        }
    )
    handle = Handle(
        table.name(), slim, table.metadata_location, table.io, table.catalog, dict(table.config)
    )
    change = handle.transaction()
    if columns:
        with change.update_schema() as update:
            for field in columns:
                update.add_column(field.name, field.field_type)
    return change


def changed(table: Table, change: Transaction) -> Table:
    """Return the table as *change* will leave it, to make entries of files for."""
    from pyiceberg.table import Table as Handle

    if not change._updates:
        return table
    return Handle(
        table.name(),
        change.table_metadata,
        table.metadata_location,
        table.io,
        table.catalog,
        dict(table.config),
    )


def change_files(
    change: Transaction,
    facts: Mapping[str, str],
    properties: Mapping[str, str],
    *,
    added: Iterable[DataFile] = (),
    removed: Sequence[DataFile] = (),
    merges: bool = False,
) -> Transaction:
    """Let *change* add and remove files in one snapshot, for :func:`swap`.

    It makes a snapshot even without files: that makes the commits fail that are on their way.

    Args:
        change: see :func:`begin_change`.
        facts: the snapshot's summary.
        properties: of the table, which the change sets.
        added: the files that the snapshot adds.
        removed: the files of the current snapshot that it removes.
        merges: whether small manifests are merged.
    """
    update = change.update_snapshot(dict(facts))
    appending = update.merge_append if merges else update.fast_append
    producer: Any = update.overwrite() if removed else appending()
    with producer:
        for data_file in removed:
            producer.delete_data_file(data_file)
        for data_file in added:
            producer.append_data_file(data_file)
    change.set_properties(dict(properties))
    return change


def swap(table: Table, change: Transaction) -> None:
    """Replace the state that *change* was made for.

    Not by ``commit_transaction``. After a conflict that adds the same files again by itself,
    without checking whether the winner was another committer of the same epoch, and then removes
    the manifests of a commit that a retried request reports as failed.

    Raises:
        CommitFailedException: another writer was faster; the manifests stay as orphans.
    """
    from pyiceberg.table.update import AssertCurrentSchemaId, AssertDefaultSpecId, AssertTableUUID

    base = table.metadata
    # A change of the schema makes no snapshot, but the entries' ids and the name mapping are of it.
    same = (
        AssertTableUUID(uuid=base.table_uuid),
        AssertCurrentSchemaId.model_validate({"current-schema-id": base.current_schema_id}),
        AssertDefaultSpecId.model_validate({"default-spec-id": base.default_spec_id}),
    )
    table._do_commit(updates=change._updates, requirements=(*change._requirements, *same))


def live_files(table: Table, paths: set[str]) -> Iterator[DataFile]:
    """Yield the data files of the current snapshot that are among *paths*."""
    snapshot = table.metadata.current_snapshot()
    if snapshot is None or not paths:
        return
    for manifest in snapshot.manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            if entry.data_file.file_path in paths:
                yield entry.data_file


def is_referenced(table: Table, folder: str) -> bool:
    """Whether any snapshot names a file in *folder*; reads every manifest once."""
    seen: set[str] = set()
    for snapshot in table.metadata.snapshots:
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path in seen:
                continue
            seen.add(manifest.manifest_path)
            entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
            if any(entry.data_file.file_path.startswith(f"{folder}/") for entry in entries):
                return True
    return False
