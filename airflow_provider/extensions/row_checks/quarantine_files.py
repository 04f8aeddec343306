"""The quarantined rows of a run, read from the published files of its sinks, without Spark."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from airflow_provider.runtime.base.clock import to_iso
from airflow_provider.runtime.base.extensions import require_extra
from airflow_provider.runtime.base.typed_json import read_json
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.epochs import EpochRecords
from airflow_provider.runtime.jobdir.query_reports import (
    FinalQuery,
    quarantine_sink,
    quarantine_totals,
)
from airflow_provider.runtime.jobdir.row_counts import add_quarantined
from airflow_provider.runtime.jobdir.run_commit import commit_log_of
from airflow_provider.runtime.queries.taps import QUARANTINE_FIELDS
from airflow_provider.runtime.sinks.files import is_name_of
from airflow_provider.runtime.storage.open import local_path_of, open_objects

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.jobdir.query_reports import QueryReport
    from airflow_provider.runtime.jobdir.row_counts import QuarantineTotals, RowCounts
    from airflow_provider.runtime.jobdir.run_records import RunRecord

_FILES: Final = "files:"
COLUMNS: Final = tuple(name for name, _ in QUARANTINE_FIELDS)
_ARROW: Final = ("parquet", "orc")
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class QuarantineOfQuery:
    """The quarantined rows of a query in a run.

    Attributes:
        sink: its sink for quarantined rows; None without one.
        files: the published files with their sizes in bytes, oldest first; None if the sink is none
            of files.
    """

    query: str
    sink: str | None
    row_counts: RowCounts
    files: tuple[tuple[str, int], ...] | None

    @property
    def folder(self) -> str:
        return (self.sink or "").removeprefix(_FILES)

    def rows(self) -> Iterator[Row]:
        """Yield the quarantined rows."""
        for path, _ in self.files or ():
            yield from _read(self.folder, path)

    def sample(self, *, files: int, at_most_bytes: int) -> Iterator[Row]:
        """Yield the rows of the newest files that are not too large to be read for a page."""
        small = [path for path, size_bytes in self.files or () if size_bytes <= at_most_bytes]
        for path in small[-files:]:
            yield from _read(self.folder, path)


def quarantine_of_run(directory: JobDirectory, record: RunRecord) -> list[QuarantineOfQuery]:
    """Return the quarantined rows of a run, by query, by its final checkpoint or last progress."""
    found = []
    for name, query in _counted(directory, record).items():
        sink = quarantine_sink(query)
        last = query.batch_id if isinstance(query, FinalQuery) else None
        files = _published(directory, record, name, sink, last)
        found.append(QuarantineOfQuery(name, sink, query.row_counts, files))
    return found


def quarantines_rows(directory: JobDirectory, record: RunRecord) -> bool:
    """Whether a query of a run has a sink for quarantined rows."""
    return any(quarantine_sink(query) for query in _counted(directory, record).values())


def totals_of_run(directory: JobDirectory, record: RunRecord) -> QuarantineTotals | None:
    """Return how many rows a run has quarantined; None if it has no sink for them."""
    found = quarantine_totals(_counted(directory, record))
    return found if found.has_any else None


def _counted(directory: JobDirectory, record: RunRecord) -> Mapping[str, QueryReport]:
    run = directory.run(record.run_id)
    counted = run.final() or run.progress()
    return counted.queries if counted is not None else {}


def describe_totals(quarantined: list[QuarantineOfQuery]) -> str:
    """Return how many rows were quarantined, and why, in words."""
    return str(add_quarantined(each.row_counts for each in quarantined))


def _published(
    directory: JobDirectory,
    record: RunRecord,
    query: str,
    sink: str | None,
    last: int | None,
) -> tuple[tuple[str, int], ...] | None:
    if sink is None or not sink.startswith(_FILES):
        return None
    log = commit_log_of(directory, directory.run(record.run_id), query, mode=record.mode)
    query_id = log.query_id()
    if query_id is None:
        return ()
    listing = EpochRecords(directory.committables(query), query_id).find()
    first = 0 if record.query_ids else record.starting.get(query, -1) + 1
    last = listing.newest if last is None else last
    own = [
        (name, size_bytes)
        for name, size_bytes in _files(sink.removeprefix(_FILES))
        if is_name_of(name, query_id) and first <= _epoch_of(name) <= last
    ]
    return tuple(
        sorted((each for each in own if listing.is_published(_epoch_of(each[0]))), key=_order)
    )


def _files(folder: str) -> list[tuple[str, int]]:
    local, objects = local_path_of(folder), open_objects(folder)
    if local is None:
        return [] if objects is None else objects.files()
    found = Path(local).rglob("part-*")
    return [(str(each.relative_to(local)), each.stat().st_size) for each in found]


def _epoch_of(name: str) -> int:
    return int(name.rpartition("/")[2].split("-")[1])


def _order(file: tuple[str, int]) -> tuple[int, str]:
    return _epoch_of(file[0]), file[0]


def _read(folder: str, path: str) -> Iterator[Row]:
    local, objects = local_path_of(folder), open_objects(folder)
    data = Path(str(local), path).read_bytes() if objects is None else objects.read(path)
    parts = (each.partition("=") for each in path.split("/")[:-1])
    in_path = {name: unquote(value) for name, _, value in parts}
    kind = next((each for each in (*_ARROW, "json", "csv") if f".{each}" in path), "")
    names = [name for name in COLUMNS if name not in in_path]
    for row in _rows_of(kind, data, names, f"{folder}/{path}"):
        yield {name: _text(row.get(name, in_path.get(name))) for name in COLUMNS}


def _rows_of(kind: str, data: bytes, names: list[str], where: str) -> Iterator[Row]:
    if not where.endswith(kind) or not kind:
        raise ConfigError(
            f"{where}: quarantined rows are read from Parquet, ORC, and JSON or CSV as text"
        )
    if kind == "json":
        yield from map(read_json, data.splitlines())  # of a text, those of Unicode end lines, too
    elif kind == "csv":
        lines = csv.reader(io.StringIO(data.decode()), escapechar="\\", doublequote=False)
        yield from (dict(zip(names, line, strict=False)) for line in lines if line != names)
    else:
        require_extra("spark-stream quarantine", "delta", "pyarrow")
        import pyarrow as pa
        from pyarrow import orc, parquet

        reader = parquet.read_table if kind == "parquet" else orc.read_table
        table = reader(pa.BufferReader(data))
        for position, field in enumerate(table.schema):
            if pa.types.is_timestamp(field.type):  # Spark's have no zone, and nanoseconds
                utc = table.column(position).cast(pa.timestamp("us", "UTC"), safe=False)
                table = table.set_column(position, field.name, utc)
        yield from table.to_pylist()


def _text(value: Any) -> str | None:
    if hasattr(value, "utcoffset"):
        return to_iso(value)
    return None if value is None else str(value)


def grouped(rows: Iterator[Row], samples: int) -> dict[tuple[str, str], tuple[int, list[Row]]]:
    """Return how many rows there are of each kind and location, with the first few of them."""
    counts: Counter[tuple[str, str]] = Counter()
    shown: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        key = str(row["kind"]), str(row["location"])
        counts[key] += 1
        if len(shown[key]) < samples:
            shown[key].append(row)
    return {key: (rows, shown[key]) for key, rows in sorted(counts.items())}
