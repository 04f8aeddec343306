"""Delta tables by key, staged for by hand, and read independently of the sink."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from airflow_provider.extensions.delta.keyed_sink import KeyedDeltaSink
from airflow_provider.runtime.api.sinks import Committable, EpochId, Staged
from airflow_provider.runtime.sinks.keyed_rows import KeyedRows
from airflow_provider.runtime.sinks.keyed_store import staged_folder
from airflow_provider.runtime.testing.sink_bench import QUERY_ID, stage_epoch
from tests.extensions.delta.delta_support import Frame, SparkSchema
from tests.extensions.keyed_support import KEYED, Change, table_of, write_changes


class HandStagedKeyedDelta(KeyedDeltaSink):
    """The ``delta`` sink by key, whose staging writes Parquet with pyarrow."""

    def __init__(self, folder: Path, partition_by: tuple[str, ...] = (), **words: Any) -> None:
        keyed = KeyedRows.of(words["keys"], words.get("sequence_by", ()), words.get("delete_when"))
        super().__init__(str(folder), partition_by, {}, {}, keyed=keyed)
        self.folder = folder

    def stage(self, df: Any, epoch: EpochId) -> Staged:
        rows: pa.Table = df.table if isinstance(df, Frame) else df
        home = staged_folder(epoch)
        found = write_changes(self.folder / home, rows, self._keyed)
        files = [(f"{home}/{name}", size) for name, size in found]
        return self._staged(SparkSchema(rows.schema).jsonValue(), files, len(rows), epoch)


def keyed(folder: Path, **words: Any) -> HandStagedKeyedDelta:
    """Return a sink of the table by id, ordered by ``at``; ``op`` deletes."""
    return HandStagedKeyedDelta(folder, **{**KEYED, **words})


def staged(
    folder: Path,
    epoch: int,
    *changes: Change,
    token: int = 1,
    query_id: str = QUERY_ID,
    **words: Any,
) -> Committable:
    """Stage an epoch of changes by hand."""
    return stage_epoch(
        keyed(folder, **words), table_of(changes), epoch, token=token, query_id=query_id
    )


def rows_of(folder: Path) -> list[tuple[Any, ...]]:
    """Return the rows that a reader of the table sees, sorted."""
    if not DeltaTable.is_deltatable(str(folder)):
        return []
    table = DeltaTable(str(folder)).to_pyarrow_table(columns=["id", "at", "name", "op"])
    return sorted(_plain(table.to_pylist()))


def _plain(rows: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in rows]
