"""Delta tables, staged for by hand and read independently of the sink."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema

from airflow_provider.extensions.delta.log import folder_of
from airflow_provider.extensions.delta.sink import DeltaSink
from airflow_provider.runtime.api.sinks import Committable, EpochId, Staged
from tests.unit.frames import FrameBase

QUERY_ID = "0b9f6c1e-3a55-4d43-8f2b-2f6a51c3d9aa"
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


class Frame(FrameBase):
    """A streaming frame's schema."""

    schema: Any

    def __init__(self, arrow: pa.Schema = SCHEMA) -> None:
        self.schema = SparkSchema(arrow)


class HandStagedDelta(DeltaSink):
    """The ``delta`` sink, whose staging writes Parquet with pyarrow, a file per partition."""

    def __init__(self, folder: Path, partition_by: tuple[str, ...] = ()) -> None:
        super().__init__(str(folder), partition_by, {}, {})
        self.folder = folder

    def stage(self, df: Any, epoch: EpochId) -> Staged:
        rows: pa.Table = df
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
    made = EpochId("q", query_id, epoch, token)
    return Committable(made, HandStagedDelta(folder).stage(rows_of_epoch(epoch, *names), made).data)


def visible(folder: Path) -> list[str]:
    """Return the names that a reader of the table sees, sorted, with any duplicates."""
    if not DeltaTable.is_deltatable(str(folder)):
        return []
    return sorted(DeltaTable(str(folder)).to_pyarrow_table().column("name").to_pylist())


_ACT = """
import json, os, sys, time
from pathlib import Path
from airflow_provider.extensions.delta.sink import delta
from airflow_provider.runtime.api.sinks import Committable, EpochId
task = json.load(sys.stdin)
class Gate:
    token = 9
    def check(self):
        if task["gate"]:
            Path(task["gate"] + ".reached").touch()
            while not os.path.exists(task["gate"]):
                time.sleep(0.005)
committables = [Committable(EpochId(*epoch), data) for epoch, data in task["committables"]]
sink = delta(task["folder"])
if task["action"] == "commit":
    for committable in committables:
        sink.commit(committable, Gate())
else:
    sink.revert(committables, Gate())
"""


def act(
    folder: Path,
    action: str,
    committables: list[Committable],
    *,
    fails_at: str = "",
    gate: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Let a process of its own commit each, or revert all.

    Args:
        folder: the table.
        action: ``commit`` or ``revert``.
        committables: of what.
        fails_at: the failpoint at which it dies.
        gate: a file without which the fence lets nobody pass; ``.reached`` tells of one who waits.
    """
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    env.pop("SPARK_STREAM_FAILPOINT", None)
    if fails_at:
        env["SPARK_STREAM_FAILPOINT"] = fails_at
    process = subprocess.Popen([sys.executable, "-c", _ACT], stdin=subprocess.PIPE, env=env)
    epochs = [
        ([c.epoch.query, c.epoch.query_id, c.epoch.epoch, c.epoch.token], c.data)
        for c in committables
    ]
    task = {
        "folder": str(folder),
        "action": action,
        "committables": epochs,
        "gate": str(gate) if gate else "",
    }
    assert process.stdin is not None
    process.stdin.write(json.dumps(task).encode())
    process.stdin.close()
    return process
