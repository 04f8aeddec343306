"""Delta tables, staged for by hand and read independently of the sink."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from pyspark.sql.types import StructType

from airflow_provider.extensions.delta.delta_log import folder_of
from airflow_provider.extensions.delta.sink import DeltaSink
from airflow_provider.runtime.api.sinks import Committable, EpochId, Staged
from airflow_provider.runtime.testing.sink_bench import QUERY_ID, stage_epoch
from tests.unit.frames import FrameBase

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
ROOT = Path(__file__).resolve().parents[3]
# As Spark writes names of folders: org.apache.spark.sql.catalyst.catalog.ExternalCatalogUtils.
_ESCAPED = frozenset("\"#%'*/:=?\\\x7f{[]^")
_NULL = "__HIVE_DEFAULT_PARTITION__"


class SparkSchema:
    """What the sink asks of ``df.schema``."""

    def __init__(self, arrow: pa.Schema) -> None:
        self._arrow = arrow

    def jsonValue(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return json.loads(Schema.from_arrow(self._arrow).to_json())

    @property
    def fields(self) -> list[Any]:
        return StructType.fromJson(self.jsonValue()).fields


class Frame(FrameBase):
    """A streaming frame's schema, and its rows."""

    schema: Any

    def __init__(self, rows: Sequence[Any] = (), arrow: pa.Schema = SCHEMA) -> None:
        self.schema = SparkSchema(arrow)
        names = ("id", "name")
        self.table = pa.Table.from_pylist(
            [dict(zip(names, row, strict=True)) for row in rows], SCHEMA
        )


class HandStagedDelta(DeltaSink):
    """The ``delta`` sink, whose staging writes Parquet with pyarrow, a file per partition."""

    def __init__(self, folder: Path, partition_by: tuple[str, ...] = ()) -> None:
        super().__init__(str(folder), partition_by, {}, {})
        self.folder = folder

    def stage(self, df: Any, epoch: EpochId) -> Staged:
        rows: pa.Table = df.table if isinstance(df, Frame) else df
        schema = SparkSchema(rows.schema).jsonValue()
        files = []
        for number, (part, table) in enumerate(self._parts(rows)):
            path = f"{folder_of(epoch)}/{part}part-{number:05d}-x.parquet"
            target = self.folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(table, target)
            files.append([path, target.stat().st_size])
        return Staged({"schema": schema, "files": files}, rows.num_rows)

    def _parts(self, rows: pa.Table) -> list[tuple[str, pa.Table]]:
        if not rows.num_rows:
            return []
        if not self._partition_by:
            return [("", rows)]
        keys = [tuple(row[c] for c in self._partition_by) for row in rows.to_pylist()]
        parts = []
        for key in dict.fromkeys(keys):
            chosen = rows.filter(pa.array([k == key for k in keys]))
            folders = zip(self._partition_by, key, strict=True)
            part = "".join(f"{column}={escaped(value)}/" for column, value in folders)
            parts.append((part, chosen.drop_columns(list(self._partition_by))))
        return parts


def escaped(value: Any) -> str:
    """Return the text of *value* in the name of a folder, as Spark writes it."""
    if value is None or value == "":
        return _NULL
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return "".join(f"%{ord(c):02X}" if c in _ESCAPED or c < " " else c for c in text)


def rows_of_epoch(epoch: int, *names: str) -> pa.Table:
    """Return an epoch's rows."""
    columns = {"id": [epoch * 1000 + n for n in range(len(names))], "name": list(names)}
    return pa.table(columns, schema=SCHEMA)


def staged(
    folder: Path, epoch: int, *names: str, token: int = 1, query_id: str = QUERY_ID
) -> Committable:
    """Stage an epoch by hand."""
    rows = rows_of_epoch(epoch, *names)
    return stage_epoch(HandStagedDelta(folder), rows, epoch, token=token, query_id=query_id)


def visible(folder: Path) -> list[str]:
    """Return the names that a reader of the table sees, sorted, with any duplicates."""
    if not DeltaTable.is_deltatable(str(folder)):
        return []
    return sorted(DeltaTable(str(folder)).to_pyarrow_table().column("name").to_pylist())
