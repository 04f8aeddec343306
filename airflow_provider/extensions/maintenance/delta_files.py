"""A Delta table as a maintenance needs it: its files, and the entries of its log. Only reads."""

from __future__ import annotations

import functools
import json
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

from airflow_provider.extensions.maintenance.decision import DataFile, Published
from airflow_provider.runtime.api.errors import ConfigError
from airflow_provider.runtime.api.kit.extras import require_extra
from airflow_provider.runtime.api.kit.locations import local_path_of
from airflow_provider.runtime.api.kit.refusals import refusal_of
from airflow_provider.runtime.api.kit.typed_json import read_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from deltalake import DeltaTable
    from pyarrow.fs import PyFileSystem

_STAGED: Final = re.compile(r"spark-stream-(?P<query>[\w-]+)/(?P<epoch>\d+)-\d+/")
_ENTRY: Final = re.compile(r"_delta_log/(\d{20})\.json")
_PARTITIONS: Final = frozenset({"string", "date", "boolean", "byte", "short", "integer", "long"})
# Features of a table whose files this package cannot rewrite.
_OBSTACLES: Final = (
    "delta.columnMapping.mode",
    "delta.enableRowTracking",
    "delta.enableIcebergCompatV1",
    "delta.enableIcebergCompatV2",
)
_OFF: Final = frozenset({"", "none", "false"})


class Removed(NamedTuple):
    """A file that an entry removes: its bytes, and when, in milliseconds since 1970."""

    size: int
    when_ms: int


class Entry(NamedTuple):
    """An entry of the log.

    Attributes:
        published: the epoch that it publishes; None if another program has written it.
        job_dir: of that epoch, as far as the entry says it.
        added: the paths that it adds.
        removed: the files that it removes, by path.
    """

    version: int
    published: Published | None
    job_dir: str
    added: frozenset[str]
    removed: Mapping[str, Removed]


class DeltaFiles:
    """The table at *url*, a local path or an address; *options* are delta-rs' for its store."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        local = local_path_of(url)
        self.url = (local if local is not None else url).rstrip("/")
        self.name = f"delta:{self.url}"
        self.is_local = local is not None
        self._address = re.sub(r"^gcs://", "gs://", self.url)
        self._options = dict(options) or None

    def load(self) -> DeltaTable:
        """Return the current table.

        Raises:
            ConfigError: there is none, or it cannot be read.
            OutageError: its store does not answer.
        """
        require_extra(f"{self.name}: maintain", "delta", "deltalake", "pyarrow")
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            return DeltaTable(self._address, storage_options=self._options)
        except TableNotFoundError as error:
            raise ConfigError(
                f"{self.name}: there is no Delta table (no _delta_log); check the path. A table "
                "of an Iceberg catalog is named namespace.table"
            ) from error
        except Exception as error:  # delta-rs has errors of its own for each store
            raise refusal_of(error, f"{self.name}: the table cannot be read: {error}") from error

    @functools.cached_property
    def filesystem(self) -> PyFileSystem:
        """The table's folder; paths are relative to it."""
        import pyarrow.fs as pafs
        from deltalake.fs import DeltaStorageHandler

        return pafs.PyFileSystem(DeltaStorageHandler(self._address, self._options))

    def names(self, folder: str, *, recursive: bool = False) -> list[Any]:
        """Return what pyarrow tells of the files and folders in a folder; none if it is missing."""
        import pyarrow.fs as pafs

        selector = pafs.FileSelector(folder, allow_not_found=True, recursive=recursive)
        try:
            return list(self.filesystem.get_file_info(selector))
        except FileNotFoundError:
            return []

    def versions(self) -> list[int]:
        """Return the versions whose entries the log has, ascending."""
        found = [_ENTRY.fullmatch(info.path) for info in self.names("_delta_log")]
        return sorted(int(match[1]) for match in found if match)

    def entry(self, version: int) -> Entry | None:
        """Return an entry of the log; None if it is not there."""
        try:
            with self.filesystem.open_input_stream(f"_delta_log/{version:020d}.json") as source:
                lines = source.readall().splitlines()
        except FileNotFoundError:
            return None
        return _entry_of(version, [read_json(line) for line in lines if line.strip()])

    def entries(self) -> Iterator[Entry]:
        """Yield the entries that the log has, oldest first."""
        for version in self.versions():
            entry = self.entry(version)
            if entry is not None:
                yield entry


def _entry_of(version: int, actions: list[Any]) -> Entry:
    added: set[str] = set()
    removed: dict[str, Removed] = {}
    published, job_dir = None, ""
    for action in actions:
        if "add" in action:
            added.add(unquote(action["add"]["path"]))
        elif "remove" in action:
            gone = action["remove"]
            when_ms = int(gone.get("deletionTimestamp") or 0)
            removed[unquote(gone["path"])] = Removed(int(gone.get("size") or 0), when_ms)
        elif "commitInfo" in action:
            facts = action["commitInfo"].get("sparkStream") or {}
            facts = read_json(facts) if isinstance(facts, str) else facts
            if "queryId" in facts and "epoch" in facts:
                published = Published(str(facts["queryId"]), int(facts["epoch"]))
                job_dir = str(facts.get("jobDir", ""))
    return Entry(version, published, job_dir, frozenset(added), removed)


def published_in(path: str) -> Published | None:
    """Return the staging that a path of the ``delta`` sink names; None for another path."""
    found = _STAGED.match(path)
    return Published(found["query"], int(found["epoch"])) if found else None


def obstacle_of(table: DeltaTable) -> str:
    """Return the feature of a table for which its files cannot be rewritten; empty for none."""
    metadata = table.metadata()
    for name in _OBSTACLES:
        if metadata.configuration.get(name, "").lower() not in _OFF:
            return f"the table's property {name}, which this command cannot write"
    types = types_of(table)
    for column in metadata.partition_columns:
        if types.get(column) not in _PARTITIONS:
            return f"the partition column {column!r} of type {types.get(column)}"
    return ""


def types_of(table: DeltaTable) -> dict[str, Any]:
    """Return the types of a table's columns, as Delta's log has them."""
    fields = read_json(table.schema().to_json())["fields"]
    return {field["name"]: field["type"] for field in fields}


class ActiveFiles(NamedTuple):
    """The files of a version, with what the log says of each."""

    files: list[DataFile]
    facts: dict[str, dict[str, Any]]


def active_files(table: DeltaTable) -> ActiveFiles:
    """Return the files of a table's version; groups are partitions, by their texts."""
    import pyarrow as pa

    obstacle, marked = obstacle_of(table), _with_deleted_rows(table)
    columns = table.metadata().partition_columns
    files: list[DataFile] = []
    facts: dict[str, dict[str, Any]] = {}
    for row in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        path = unquote(row["path"])
        group = tuple(_as_text(row.get(f"partition.{column}")) for column in columns)
        why = obstacle
        if not why and any(uri.endswith(path) for uri in marked):
            why = "deletion vectors; REORG TABLE … APPLY (PURGE) removes them"
        files.append(DataFile(path, row["size_bytes"], group, published_in(path), why))
        facts[path] = row
    return ActiveFiles(files, facts)


def _with_deleted_rows(table: DeltaTable) -> list[str]:
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return []
    import pyarrow as pa

    return [
        unquote(uri) for uri in pa.table(table.deletion_vectors()).column("filepath").to_pylist()
    ]


def _as_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return str(value).lower() if isinstance(value, bool) else str(value)


def merged_stats(rows: list[dict[str, Any]], columns: Mapping[str, Any]) -> str:
    """Return the statistics of a file with the rows of several; *columns* are types by name.

    A bound that one of them lacks is left out.
    """
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for column, kind in columns.items():
        counts: list[Any] = [row.get(f"null_count.{column}") for row in rows]
        if "." in column or not isinstance(kind, str) or None in counts:
            continue
        nulls[column] = sum(counts)
        full = [r for r, count in zip(rows, counts, strict=True) if count < (r["num_records"] or 0)]
        lows: list[Any] = [row.get(f"min.{column}") for row in full]
        highs: list[Any] = [row.get(f"max.{column}") for row in full]
        if full and kind in _BOUNDED and None not in lows and None not in highs:
            lowest[column] = _as_json(min(lows), kind)
            highest[column] = _as_json(max(highs), kind)
    stats: dict[str, Any] = {"numRecords": sum(row["num_records"] for row in rows)}
    stats |= {"minValues": lowest, "maxValues": highest, "nullCount": nulls}
    return json.dumps(stats, separators=(",", ":"))


# Not floats, for NaN, nor decimals, which readers of JSON round.
_BOUNDED: Final = frozenset(
    {"byte", "short", "integer", "long", "date", "string", "timestamp", "timestamp_ntz"}
)


def _as_json(value: Any, kind: str) -> Any:
    if kind in {"timestamp", "timestamp_ntz"}:
        zone = "Z" if kind == "timestamp" else ""
        return str(value.replace(tzinfo=None).isoformat(timespec="microseconds")) + zone
    return value.isoformat() if kind == "date" else value
