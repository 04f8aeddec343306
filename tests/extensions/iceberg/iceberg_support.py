"""Iceberg tables in a SQL catalog, staged for by hand and read independently of the sink."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider.extensions.iceberg.schema import as_staged
from airflow_provider.extensions.iceberg.sink import IcebergSink
from airflow_provider.extensions.iceberg.tables import folder_of
from airflow_provider.runtime.api.sinks import Committable, EpochId, Staged
from airflow_provider.runtime.testing.sink_bench import QUERY_ID, stage_epoch
from tests.unit.frames import FrameBase

TABLE = "ns.events"
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
ROOT = Path(__file__).resolve().parents[3]


def catalog_properties(root: Path, uri: str | None = None) -> dict[str, str]:
    """Make a catalog with one namespace, and return its properties."""
    from pyiceberg.catalog import load_catalog

    properties = {
        "name": "test",
        "type": "sql",
        "uri": uri or f"sqlite:///{root}/catalog.db",
        "warehouse": f"file://{root}/warehouse",
    }
    catalog = load_catalog("test", **{k: v for k, v in properties.items() if k != "name"})
    catalog.create_namespace("ns")
    catalog.close()
    return properties


def path_of(address: str) -> Path:
    """Return the path of a file's address, which Java writes with one slash."""
    return Path(urlsplit(address).path)


def catalog_of(properties: dict[str, str]) -> Any:
    """Open a catalog."""
    from pyiceberg.catalog import load_catalog

    rest = {k: v for k, v in properties.items() if k != "name"}
    return load_catalog(properties["name"], **rest)


def load(properties: dict[str, str], table: str = TABLE) -> Any:
    """Return the table through a catalog of its own."""
    return catalog_of(properties).load_table(table)


def rows_of(properties: dict[str, str], table: str = TABLE) -> list[tuple[Any, ...]]:
    """Return the rows that a scan by pyiceberg sees, sorted."""
    read = load(properties, table).scan().to_arrow()
    return sorted(tuple(row.values()) for row in read.to_pylist())


def rows_of_files(properties: dict[str, str]) -> list[tuple[Any, ...]]:
    """Return the rows of the data files that a scan plans, read by pyarrow alone, sorted."""
    planned = [task.file.file_path for task in load(properties).scan().plan_files()]
    found = []
    for path in planned:
        found += pq.ParquetFile(path_of(path)).read().to_pylist()
    return sorted(tuple(row.values()) for row in found)


class Frame(FrameBase):
    """Rows that stand for a DataFrame: groups of rows, each of which becomes a file."""

    columns: list[str]

    def __init__(self, schema: pa.Schema, *files: list[dict[str, Any]]) -> None:
        self.arrow = schema
        self.files = files
        self.columns = schema.names


def make_frame(rows: Sequence[tuple[int, str]], files: int = 2) -> Frame:
    """Return rows, spread over *files*."""
    named = [{"id": number, "name": name} for number, name in rows]
    return Frame(SCHEMA, *filter(None, (named[i::files] for i in range(files))))


class HandStagedTable(IcebergSink):
    """The sink, whose staging writes Parquet with pyarrow instead of Spark."""

    def __init__(
        self,
        properties: dict[str, str] | str,
        table: str = TABLE,
        partition_by: tuple[str, ...] = (),
        clock: Any = None,
    ) -> None:
        super().__init__(table, properties, partition_by, {}, clock)

    def _arrow_schema(self, df: Any) -> pa.Schema:
        return as_staged(df.arrow)

    def stage(self, df: Any, epoch: EpochId) -> Staged:
        table = self._ensure_table(self._arrow_schema(df))
        folder = folder_of(table, epoch)
        local = path_of(folder)
        names = []
        for number, rows in enumerate(df.files):
            local.mkdir(parents=True, exist_ok=True)
            name = f"part-{number:05d}-{uuid.uuid4()}-c000.snappy.parquet"
            pq.write_table(pa.Table.from_pylist(rows, schema=self._arrow_schema(df)), local / name)
            names.append(name)
        facts = {"table_uuid": str(table.metadata.table_uuid), "folder": folder, "files": names}
        return Staged(facts, sum(map(len, df.files)))

    def staged(
        self,
        epoch: int,
        *names: str,
        token: int = 1,
        query_id: str = QUERY_ID,
        files: int = 1,
    ) -> Committable:
        """Stage one row per name, spread over *files*."""
        frame = make_frame([(epoch * 1000 + i, name) for i, name in enumerate(names)], files)
        return stage_epoch(self, frame, epoch, token=token, query_id=query_id)


def append(properties: dict[str, str], *names: str) -> None:
    """Append rows as another program does, with pyiceberg's own writer."""
    rows = [{"id": -1, "name": name} for name in names]
    load(properties).append(pa.Table.from_pylist(rows, schema=SCHEMA))
