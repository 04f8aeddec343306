"""Rows of an Iceberg table's data files, read on Spark's executors."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.iceberg.catalogs import errors_without_secrets
from airflow_provider.extensions.iceberg.columns import as_spark_batch, projected
from airflow_provider.extensions.iceberg.lent_store import LentStore
from airflow_provider.runtime.api.errors import LostInputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.metadata import TableMetadata
    from pyspark.sql.types import StructType

    from airflow_provider.extensions.iceberg.listing import DeleteFile, ListedFile
    from airflow_provider.extensions.iceberg.table_options import TableOptions

_TASK_BYTES: Final = 128 * 1024 * 1024
_OPEN_BYTES: Final = 4 * 1024 * 1024  # what opening a file costs, as Spark counts it
_NAME_MAPPING: Final = "schema.name-mapping.default"


@dataclasses.dataclass(frozen=True)
class FileTask:
    """The files of one task, and all that an executor needs to read them.

    Attributes:
        metadata: the table's metadata without its snapshots.
        store: the store of the table's files, with its credentials.
    """

    files: tuple[ListedFile, ...]
    metadata: TableMetadata = dataclasses.field(repr=False)
    store: LentStore


def pinned(metadata: TableMetadata, schema: Schema) -> TableMetadata:
    """Return metadata that reads files as *schema*, whatever the table's schema is by now.

    It is small, since every task gets it, and has no property that could be a secret.
    """
    mapping = metadata.properties.get(_NAME_MAPPING)
    return metadata.model_copy(
        update={
            "schemas": [schema],
            "current_schema_id": schema.schema_id,
            "snapshots": [],
            "snapshot_log": [],
            "metadata_log": [],
            "current_snapshot_id": None,
            "refs": {},
            "statistics": [],
            "partition_statistics": [],
            "properties": {} if mapping is None else {_NAME_MAPPING: mapping},
        }
    )


def tasks_of(
    name: str, files: Sequence[ListedFile], table: Table, metadata: TableMetadata
) -> list[FileTask]:
    """Return tasks of about 128 MiB each, without the files that cannot match; none is split."""
    groups: list[list[ListedFile]] = []
    room = 0
    for file in files:
        if not file.is_match:
            continue
        cost = file.bytes + _OPEN_BYTES
        if not groups or cost > room:
            groups.append([])
            room = _TASK_BYTES
        groups[-1].append(file)
        room -= cost
    store = LentStore.of(name, table)
    return [FileTask(tuple(group), metadata, store) for group in groups]


def read_files(
    task: FileTask, options: TableOptions, schema: StructType
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task's files, of which a few batches are in memory at a time.

    Raises:
        ConfigError: pyiceberg cannot read a file.
        LostInputError: a file is gone.
        OutageError: the store does not answer.
    """
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.table import _parse_row_filter
    from pyspark.sql.pandas.types import to_arrow_schema

    from airflow_provider.extensions.iceberg.file_rows import FileReader

    wanted = to_arrow_schema(schema, timezone="UTC")
    columns = projected(task.metadata.schema(), options.columns, options.name)
    where = AlwaysTrue() if options.where is None else _parse_row_filter(options.where)
    with errors_without_secrets(options, store=task.store.properties):
        reader = FileReader(task.metadata, task.store.io(), columns, where)
    for file in task.files:
        with errors_without_secrets(options, file.path, task.store.properties):
            try:
                for batch in reader.read(_scan_task(file)):
                    yield as_spark_batch(batch, wanted)
            except FileNotFoundError:
                raise LostInputError(
                    f"{options.name}: {file.path} is gone, or one of its delete files; its "
                    "snapshot has expired, or the file was removed by hand. Restore it, or start "
                    "a new query"
                ) from None


def _scan_task(file: ListedFile) -> FileScanTask:
    from pyiceberg.manifest import DataFile, DataFileContent
    from pyiceberg.table import FileScanTask
    from pyiceberg.typedef import Record

    data = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=file.path,
        file_format=file.format,
        partition=Record(*file.partition),
        record_count=file.rows,
        file_size_in_bytes=file.bytes,
    )
    data.spec_id = file.spec_id
    return FileScanTask(data, delete_files={_delete_file(each) for each in file.deletes})


def _delete_file(file: DeleteFile) -> DataFile:
    from pyiceberg.manifest import DataFile, DataFileContent

    made: Any = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES, file_path=file.path, file_format=file.format
    )
    return made  # type: ignore[no-any-return]
