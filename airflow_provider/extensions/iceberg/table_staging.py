"""Staging of an epoch's rows: by Spark or, in an object store, by the table's own ``io``.

Where a table lies in an object store, Spark's tasks write the files with the credentials by which
its manifests are, those that its catalog lends. Spark needs no Hadoop jars for it, and nothing is
renamed: a store would copy each file.

A task may run twice, because Spark repeats it or speculates. Each attempt writes files under names
of its own, and Spark hands the driver the files of one attempt. Those of others are removed.
"""

from __future__ import annotations

import dataclasses
import itertools
import uuid
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.iceberg.catalogs import writing_without_secrets
from airflow_provider.extensions.iceberg.lent_store import (
    LentStore,
    files_in,
    is_in_object_store,
    remove_folder,
)
from airflow_provider.extensions.iceberg.schema import staged_schema
from airflow_provider.runtime.api.errors import ConfigError
from airflow_provider.runtime.api.kit.extras import require_extra
from airflow_provider.runtime.api.kit.keyed_rows import as_schema, write_parquet
from airflow_provider.runtime.api.kit.locations import spark_url
from airflow_provider.runtime.api.kit.staging import PARQUET, StagedFiles, settings, stage_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyiceberg.table import Table
    from pyspark.sql import Column, DataFrame

_LIBRARIES: Final = ("pyarrow", "pyiceberg.catalog")
_WRITTEN: Final = "rows long, paths array<string>, bytes array<long>"
_PARTITION: Final = "spark_stream_partition"
_WRITABLE: Final = frozenset({"none", "snappy", "gzip", "zstd", "brotli", "lz4"})
_CODECS: Final = {"uncompressed": "none", "lz4raw": "lz4", "lz4_raw": "lz4"}


def codec_of(options: Mapping[str, str]) -> str:
    """Return pyarrow's name of the codec that *options* of Spark's Parquet writer ask for."""
    named = _option(options, "compression") or "snappy"
    return _CODECS.get(named.lower(), named.lower())


def check_options(options: Mapping[str, str], name: str) -> None:
    """Refuse options that the table's own ``io`` does not know.

    Raises:
        ConfigError: there is another option than the compression, or pyarrow does not have that.
    """
    unknown = sorted(option for option in options if option.lower() != "compression")
    if unknown:
        raise ConfigError(
            f"{name}: the option {unknown[0]!r} is of Spark's Parquet writer, which does not write "
            "a table in an object store: the table's own io does. Leave it out; there is "
            "'compression'"
        )
    if codec_of(options) not in _WRITABLE:
        raise ConfigError(
            f"{name}: pyarrow does not have the compression {codec_of(options)!r}; use one of "
            f"{', '.join(sorted(_WRITABLE))}"
        )


def _option(options: Mapping[str, str], name: str) -> str | None:
    return next((value for key, value in options.items() if key.lower() == name), None)


def stage_rows(
    df: DataFrame,
    folder: str,
    table: Table,
    name: str,
    *,
    options: Mapping[str, str],
    partition_by: Sequence[Column] = (),
) -> StagedFiles:
    """Execute *df* once and write its rows under *folder*.

    Args:
        df: the rows.
        folder: an address below the table; its content is removed.
        table: loaded just now.
        name: the sink's.
        options: of Spark's Parquet writer.
        partition_by: expressions that are equal within each partition; a file has one partition.
    """
    if is_in_object_store(table):
        check_options(options, name)
        remove_folder(table, folder)
        partitioned = _by_partition(df, partition_by)
        task = WriteTask(
            LentStore.of(name, table),
            folder,
            uuid.uuid4().hex[:8],
            staged_schema(df, name),
            codec_of(options),
            is_partitioned=bool(partition_by),
        )
        return _run(partitioned, task, table)
    # Spark makes folders of columns, and takes them out of the files, which need all: so it gets
    # copies to take.
    copies = {f"__partition_{number}": column for number, column in enumerate(partition_by)}
    if copies:
        df = df.withColumns(copies).hint("rebalance", *copies)
    url, columns = spark_url(folder), tuple(copies)
    with settings(df.sparkSession, PARQUET):
        return stage_files(df, url, "parquet", partition_by=columns, options=options)


def _run(df: DataFrame, task: WriteTask, table: Table) -> StagedFiles:
    written = df.mapInArrow(task.run, _WRITTEN).collect()
    files = {
        str(path): int(size)
        for row in written
        for path, size in zip(row["paths"], row["bytes"], strict=True)
    }
    for path in files_in(table, task.folder):
        if path not in files:  # of an attempt that does not count
            table.io.delete(f"{task.folder}/{path}")
    return StagedFiles(sum(int(row["rows"]) for row in written), tuple(sorted(files.items())))


def _by_partition(df: DataFrame, partition_by: Sequence[Column]) -> DataFrame:
    """Return *df* with a last column that tells partitions apart; each task has them in turn."""
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

    if not partition_by:
        return df
    told = df.withColumn(_PARTITION, F.to_json(F.array(*partition_by)))
    return told.hint("rebalance", _PARTITION).sortWithinPartitions(_PARTITION)


@dataclasses.dataclass(frozen=True)
class WriteTask:
    """What a task needs; picklable, with the store's credentials, so it has no text."""

    store: LentStore
    folder: str
    own: str
    schema: pa.Schema
    codec: str
    is_partitioned: bool

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows of a task, and yield its files.

        Crash safety: what a task wrote that dies is not named; the driver removes it.
        """
        import pyarrow as pa
        from pyspark import TaskContext

        require_extra(f"{self.store.name}: the sink", "iceberg", *_LIBRARIES, on_executors=True)
        context = TaskContext.get()
        number = context.partitionId() if context is not None else 0
        files = _Files(self, f"{self.own}/part-{number:05d}-{uuid.uuid4()}")
        pieces = itertools.chain.from_iterable(map(self._pieces, batches))
        for _, same in itertools.groupby(pieces, key=lambda piece: piece[0]):
            rows = _Counted(self.schema, (piece for _, piece in same))
            paths, sizes = files.write(rows)
            yield pa.RecordBatch.from_pylist(
                [{"rows": rows.count, "paths": paths, "bytes": sizes}], schema=_written_schema()
            )

    def _pieces(self, batch: pa.RecordBatch) -> Iterator[tuple[str | None, pa.RecordBatch]]:
        if not self.is_partitioned:
            yield None, batch
            return
        data = batch.select(list(range(batch.num_columns - 1)))
        start = 0
        for value, same in itertools.groupby(batch.column(batch.num_columns - 1).to_pylist()):
            rows = sum(1 for _ in same)
            yield value, data.slice(start, rows)
            start += rows


class _Files:
    """The files of one attempt of a task."""

    def __init__(self, task: WriteTask, prefix: str) -> None:
        self._task, self._prefix = task, prefix
        self._numbers = itertools.count()
        self._io = task.store.io()

    def write(self, rows: _Counted) -> tuple[list[str], list[int]]:
        """Write the rows of a partition; return the files' paths and sizes."""
        paths: list[str] = []

        def open_file(_: int) -> Any:
            paths.append(f"{self._prefix}-c{next(self._numbers):03d}.parquet")
            return self._io.new_output(f"{self._task.folder}/{paths[-1]}").create()

        with writing_without_secrets(self._task.store.name, self._secrets):
            sizes = write_parquet(iter(rows), open_file, compression=self._task.codec)
        return paths, sizes

    def _secrets(self) -> tuple[Mapping[str, Any], ...]:
        # Of the io as well: it may have asked for new ones.
        store = self._task.store
        return store.catalog, store.properties, self._io.properties


def _written_schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [
            ("rows", pa.int64()),
            ("paths", pa.list_(pa.string())),
            ("bytes", pa.list_(pa.int64())),
        ]
    )


class _Counted:
    """Rows in the types of the table's files, counted as they pass."""

    def __init__(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        self._schema, self._batches = schema, batches
        self.count = 0

    def __iter__(self) -> Iterator[pa.Table]:
        import pyarrow as pa

        for batch in self._batches:
            self.count += batch.num_rows
            yield as_schema(pa.Table.from_batches([batch]), self._schema)
