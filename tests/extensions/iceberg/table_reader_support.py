"""Iceberg tables that other programs change, and Spark's part in reading them, without Spark."""

from __future__ import annotations

import datetime as dt
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestWriterV2,
)
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update import RemoveSnapshotRefUpdate
from pyiceberg.table.update.snapshot import _FastAppendFiles, _OverwriteFiles
from pyiceberg.typedef import Record
from pyroaring import BitMap
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable

from airflow_provider.extensions.iceberg import iceberg_table
from airflow_provider.extensions.iceberg.data_source import IcebergDataSource
from tests.extensions.iceberg.iceberg_support import SCHEMA, TABLE, catalog_of, load, path_of


class Table:
    """A table, and what other programs do to it."""

    def __init__(self, catalog: dict[str, str], **options: Any) -> None:
        self.properties = catalog
        options = {"schema": SCHEMA, **options}
        catalog_of(catalog).create_table(TABLE, **options)

    @property
    def now(self) -> Any:
        return load(self.properties)

    def append(self, *ids: int) -> int:
        """Append one file with these ids; return the snapshot's id."""
        rows = [{"id": number, "name": f"n{number}"} for number in ids]
        self.now.append(pa.Table.from_pylist(rows, schema=SCHEMA))
        return self.head()

    def append_table(self, rows: pa.Table) -> None:
        """Append rows as other writers do: pyiceberg's own makes empty lists of null ones."""
        table = self.now
        path = path_of(table.location()) / "data" / "whole.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, path)
        table.add_files([f"file://{path}"])

    def append_files(self, *files: list[int]) -> int:
        """Append several files in one snapshot."""
        table = self.now
        paths = []
        for number, ids in enumerate(files):
            path = path_of(table.location()) / "data" / f"f{number}-{ids[0]}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            rows = [{"id": each, "name": f"n{each}"} for each in ids]
            pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), path)
            paths.append(f"file://{path}")
        table.add_files(paths)
        return self.head()

    def append_avro(self) -> None:
        """Append a file of a format that pyiceberg cannot read."""
        table = self.now
        file = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"{table.location()}/data/rows.avro",
            file_format=FileFormat.AVRO,
            partition=Record(),
            record_count=1,
            file_size_in_bytes=1,
        )
        file.spec_id = 0
        with table.transaction() as change, change.update_snapshot().fast_append() as producer:
            producer.append_data_file(file)

    def head(self) -> int:
        return int(self.now.current_snapshot().snapshot_id)

    def expire(self, *ids: int) -> None:
        """Expire snapshots as Iceberg's own procedure does: their children still name them."""
        snapshots = json.loads(self.now.metadata.model_dump_json())["snapshots"]
        self._set_snapshots([s for s in snapshots if s["snapshot-id"] not in ids])

    def set_times(self, times: dict[int, int]) -> None:
        """Let snapshots, by sequence number, be of a time in milliseconds."""
        snapshots = json.loads(self.now.metadata.model_dump_json())["snapshots"]
        for snapshot in snapshots:
            moment = times.get(snapshot["sequence-number"], snapshot["timestamp-ms"])
            snapshot["timestamp-ms"] = moment
        self._set_snapshots(snapshots)

    def _set_snapshots(self, snapshots: list[dict[str, Any]]) -> None:
        table, catalog = self.now, catalog_of(self.properties)
        metadata = json.loads(table.metadata.model_dump_json())
        path = path_of(table.metadata_location)
        path = path.with_name(f"{len(list(path.parent.iterdir())):05d}-edited.metadata.json")
        path.write_text(json.dumps({**metadata, "snapshots": snapshots, "snapshot-log": []}))
        catalog.drop_table(TABLE)
        catalog.register_table(TABLE, f"file://{path}")

    def expire_by_pyiceberg(self, *ids: int) -> None:
        """Expire snapshots as pyiceberg does: their children forget their parents."""
        self.now.maintenance.expire_snapshots().by_ids(list(ids)).commit()

    def compact(self, *, lost_rows: int = 0) -> int:
        """Replace all files by one, as a compaction of Spark's does."""
        compact(self.now, lost_rows=lost_rows)
        return self.head()

    def change_rows(self, *ids: int) -> int:
        """Replace all files by one with other rows, as an update does that copies on write."""
        rows = pa.Table.from_pylist([{"id": n, "name": "changed"} for n in ids], schema=SCHEMA)
        return self._commit(_Overwrite, self.now, rows, replaces=True)

    def overwrite_nothing(self, *ids: int) -> int:
        """Commit an overwrite that only adds, as one of an empty partition does."""
        rows = pa.Table.from_pylist([{"id": n, "name": f"n{n}"} for n in ids], schema=SCHEMA)
        return self._commit(_Overwrite, self.now, rows, replaces=False)

    def replace(self, *ids: int) -> None:
        """Replace the table's rows as CREATE OR REPLACE TABLE does: by a snapshot without parent."""
        with self.now.transaction() as change:
            change._stage((RemoveSnapshotRefUpdate.model_validate({"ref-name": "main"}),))
        self.append(*ids)

    def delete_positions(
        self, path: str, *positions: int, by_value: bool = False, as_vector: bool = False
    ) -> int:
        """Delete rows of a file: by positions in a file or in a vector, or by an equality delete."""
        table = self.now
        target = path_of(table.location()) / "data" / "deletes"
        if as_vector:
            target.write_bytes(_puffin_of(path, positions))
        else:
            _write_positions(target, path, positions)
        content = DataFileContent.EQUALITY_DELETES if by_value else DataFileContent.POSITION_DELETES
        file = DataFile.from_args(
            content=content,
            file_path=f"file://{target}",
            file_format=FileFormat.PUFFIN if as_vector else FileFormat.PARQUET,
            partition=Record(),
            record_count=len(positions),
            file_size_in_bytes=target.stat().st_size,
            equality_ids=[1] if by_value else None,
        )
        file.spec_id = 0
        with table.transaction() as change:
            producer = _RowDelta(Operation.DELETE, change, table.io)
            producer.delete_file = file
            producer.commit()
        return self.head()

    def _commit(self, kind: Any, table: Any, rows: pa.Table, *, replaces: bool) -> int:
        _commit(kind, table, rows, replaces=replaces)
        return self.head()


def compact(table: Any, *, lost_rows: int = 0) -> None:
    """Replace all files of a table by as few as it can have, as a compaction of Spark's does."""
    _commit(_Compaction, table, table.scan().to_arrow().slice(lost_rows), replaces=True)


def _commit(kind: Any, table: Any, rows: pa.Table, *, replaces: bool) -> None:
    from pyiceberg.io.pyarrow import _dataframe_to_data_files

    with table.transaction() as change:
        producer = kind(kind.operation, change, table.io)
        if replaces:
            for task in table.scan().plan_files():
                producer.delete_data_file(task.file)
        for file in _dataframe_to_data_files(table.metadata, rows, table.io):
            producer.append_data_file(file)
        producer.commit()


def _field_id(number: int) -> dict[str, str]:
    return {"PARQUET:field_id": str(number)}


def _write_positions(target: Path, path: str, positions: Sequence[int]) -> None:
    columns = pa.schema(
        [
            pa.field("file_path", pa.string(), metadata=_field_id(2147483546)),
            pa.field("pos", pa.int64(), metadata=_field_id(2147483545)),
        ]
    )
    paths = pa.array([path] * len(positions), pa.string())
    pq.write_table(pa.table([paths, pa.array(positions, pa.int64())], schema=columns), target)


def _puffin_of(path: str, positions: Sequence[int]) -> bytes:
    """Return a Puffin file with one deletion vector, as the format's specification has it."""
    bitmaps = (1).to_bytes(8, "little") + (0).to_bytes(4, "little") + BitMap(positions).serialize()
    vector = bytes.fromhex("d1d33964") + bitmaps
    blob = len(vector).to_bytes(4, "big") + vector + zlib.crc32(vector).to_bytes(4, "big")
    magic = b"PFA1"
    entry = {
        "type": "deletion-vector-v1",
        "fields": [2147483546],
        "snapshot-id": -1,
        "sequence-number": -1,
        "offset": len(magic),
        "length": len(blob),
        "properties": {"referenced-data-file": path, "cardinality": str(len(positions))},
    }
    footer = json.dumps({"blobs": [entry]}).encode()
    end = len(footer).to_bytes(4, "little") + bytes(4) + magic
    return magic + blob + magic + footer + end


class _Overwrite(_OverwriteFiles):
    operation = Operation.OVERWRITE


class _Compaction(_OverwriteFiles):
    """pyiceberg commits no snapshot of this operation itself."""

    operation = Operation.REPLACE

    def _summary(self, snapshot_properties: Any = None) -> Summary:
        previous: Any = self._transaction.table_metadata.current_snapshot()
        kept = previous.summary.additional_properties.get("total-position-deletes", "0")
        return Summary(Operation.REPLACE, **{"total-position-deletes": kept})


class _ManifestOfDeletes(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES


class _RowDelta(_FastAppendFiles):
    """Adds a file of deletes, which pyiceberg does not write itself."""

    delete_file: DataFile

    def _summary(self, snapshot_properties: Any = None) -> Summary:
        number = str(self.delete_file.record_count)
        return Summary(Operation.DELETE, **{"total-position-deletes": number})

    def _manifests(self) -> Any:
        from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus

        table = self._transaction.table_metadata
        output = self.new_manifest_output()
        with _ManifestOfDeletes(
            table.spec(), table.schema(), output, self._snapshot_id, "deflate"
        ) as writer:
            writer.add(
                ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED,
                    snapshot_id=self._snapshot_id,
                    sequence_number=None,
                    file_sequence_number=None,
                    data_file=self.delete_file,
                )
            )
        return [writer.to_manifest_file(), *self._existing_manifests()]


class Query:
    """A query as Spark runs it: offsets are texts, and a restart gets a reader of its own."""

    def __init__(self, properties: dict[str, str], **options: Any) -> None:
        self.source = iceberg_table(TABLE, catalog=properties, **options)
        self.committed: dict[str, Any] = {}
        self.restart()

    def restart(self, **options: Any) -> None:
        """Start again, with the columns of now and perhaps other options."""
        if options:
            given = {"catalog": self.source.options.catalog, **options}
            self.source = iceberg_table(TABLE, **given)
        self.reader, self.schema = reader_of(self.source)

    def plan(self, limit: Any = None) -> dict[str, Any]:
        """Return the end of the next batch."""
        wanted = self.reader.getDefaultReadLimit() if limit is None else limit
        return as_logged(self.reader.latestOffset(self.committed, wanted))

    def run(self, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the rows of a batch."""
        rows: list[dict[str, Any]] = []
        for task in self.reader.partitions(start, end):
            for batch in self.reader.read(task):
                assert to_arrow_schema(self.schema, timezone="UTC").equals(batch.schema)
                rows += batch.to_pylist()
        return rows

    def batch(self, limit: Any = None) -> list[int]:
        """Run one batch and commit it; return its ids, sorted."""
        end = self.plan(limit)
        rows = self.run(self.committed, end)
        self.committed = end
        return sorted(row["id"] for row in rows)

    def rows(self) -> list[dict[str, Any]]:
        """Run batches until nothing is left; return their rows."""
        found: list[dict[str, Any]] = []
        while (end := self.plan()) != self.committed:
            found += self.run(self.committed, end)
            self.committed = end
        return found

    def ids(self) -> list[int]:
        return sorted(row["id"] for row in self.rows())


def as_logged(offset: dict[str, Any]) -> dict[str, Any]:
    """Return an offset as Spark's offset log gives it back."""
    return json.loads(json.dumps(offset))


def reader_of(source: Any) -> tuple[Any, Any]:
    """Return the reader that Spark's worker makes, and the DataFrame's schema."""
    data_source = IcebergDataSource(source.bound().to_spark())
    schema = data_source.schema()
    return data_source.streamReader(schema), schema


ALL = ReadAllAvailable()
TOMORROW = dt.datetime.now(dt.timezone.utc) + dt.timedelta(days=1)
