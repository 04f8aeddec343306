"""Data files in Delta's log: the partition, the size, the range of values."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

from airflow_provider.runtime.api.kit.typed_json import read_json

if TYPE_CHECKING:
    from collections.abc import Mapping

_NULL: Final = "__HIVE_DEFAULT_PARTITION__"  # Spark's folder for null, and for an empty text
_COLUMNS: Final = 32  # as many as Delta itself keeps figures of by default
_TEXT: Final = 32  # a longer text would have to be cut, and a cut upper bound is none
# Not floats, whose footers leave NaN out, nor decimals, which JSON's readers round.
_TIMES: Final = frozenset({"timestamp", "timestamp_ntz"})
_BOUNDED: Final = _TIMES | {"byte", "short", "integer", "long", "date", "string"}


class DataFile(NamedTuple):
    """A staged file: its escaped path, and the stats of Delta's ``add`` action."""

    path: str
    size: int
    partition: dict[str, str | None]
    stats: str


def partition_of(path: str) -> dict[str, str | None]:
    """Return the partition's values by column from the folders ``column=value`` of *path*."""
    found: dict[str, str | None] = {}
    for folder in path.split("/")[:-1]:
        column, equals, value = folder.partition("=")
        if equals:
            found[unquote(column)] = None if value == _NULL else unquote(value)
    return found


def partition_text(value: Any) -> str | None:
    """Return a partition's value as Delta's log has it: an empty text is null."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, dt.date) else str(value)


def read_data_file(filesystem: Any, path: str, size: int, schema: Mapping[str, Any]) -> DataFile:
    """Read the footer of a file, whose path is relative to the table; *schema* is the table's."""
    import pyarrow.parquet as pq

    with filesystem.open_input_file(path) as source:
        footer = pq.ParquetFile(source).metadata
    types = {field["name"]: field["type"] for field in schema["fields"]}
    stats = _stats_of(footer, types)
    return DataFile(path, size, partition_of(path), json.dumps(stats, separators=(",", ":")))


def has_rows(file: DataFile) -> bool:
    """Whether the file has a row."""
    return int(read_json(file.stats)["numRecords"]) > 0


def _stats_of(footer: Any, types: Mapping[str, Any]) -> dict[str, Any]:
    stats: dict[str, Any] = {"numRecords": footer.num_rows}
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for index in range(min(footer.num_columns, _COLUMNS)):
        # A nested column has its leaves here, under longer paths.
        column = footer.schema.column(index).path
        kind = types.get(column)
        if not isinstance(kind, str):
            continue
        chunks = [
            footer.row_group(n).column(index).statistics for n in range(footer.num_row_groups)
        ]
        if not chunks or any(chunk is None or not chunk.has_null_count for chunk in chunks):
            continue
        nulls[column] = sum(chunk.null_count for chunk in chunks)
        bounds = _bounds_of(chunks, kind)
        if bounds is not None:
            lowest[column], highest[column] = bounds
    if footer.num_rows:
        stats |= {"minValues": lowest, "maxValues": highest, "nullCount": nulls}
    return stats


def _bounds_of(chunks: list[Any], kind: str) -> tuple[Any, Any] | None:
    if kind not in _BOUNDED:
        return None
    full = [chunk for chunk in chunks if chunk.num_values]
    if not full or any(not chunk.has_min_max for chunk in full):
        return None
    try:
        low, high = min(chunk.min for chunk in full), max(chunk.max for chunk in full)
    except (ValueError, OverflowError):  # a time that Python's datetime does not have
        return None
    return (_as_json(low, kind), _as_json(high, kind)) if _is_exact(low, high, kind) else None


def _is_exact(low: Any, high: Any, kind: str) -> bool:
    if kind in _TIMES:
        return isinstance(low, dt.datetime) and isinstance(high, dt.datetime)
    if kind == "string":
        return isinstance(high, str) and len(low) <= _TEXT and len(high) <= _TEXT
    return True


def _as_json(value: Any, kind: str) -> Any:
    if isinstance(value, dt.datetime):
        zone = "Z" if kind == "timestamp" else ""
        return value.replace(tzinfo=None).isoformat(timespec="microseconds") + zone
    return value.isoformat() if isinstance(value, dt.date) else value
