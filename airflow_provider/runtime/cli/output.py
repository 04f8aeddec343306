"""Output for people: progress on a terminal, if rich is installed, and rows as text tables."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from airflow_provider.runtime.jobdir.run_records import ProgressRecord


@contextlib.contextmanager
def live_progress() -> Iterator[Callable[[ProgressRecord], None] | None]:
    """Show a table on stderr that follows the run; yields what takes each progress."""
    try:
        from rich.console import Console
        from rich.live import Live
    except ImportError:  # a cluster's driver has PySpark and fsspec only
        yield None
        return
    if not sys.stderr.isatty():
        yield None
        return
    with Live(console=Console(stderr=True), refresh_per_second=4, transient=False) as live:
        yield lambda record: live.update(_table(record))


def _table(record: ProgressRecord) -> Any:
    from rich.table import Table

    title = f"{record.phase} · attempt {record.attempt} · {record.rows_per_second:,.0f} rows/s"
    table = Table(title=title, title_justify="left")
    for column in ("query", "phase", "rows read", "batch", "watermark", "state rows", "backlog"):
        table.add_column(column)
    for name, query in record.queries.items():
        backlog = query["backlog"] or {}
        table.add_row(
            name,
            query["phase"],
            _number(query["rows_read"]),
            _number(query["batch"]),
            query["watermark"] or "-",
            _number(query["state_rows"]),
            ", ".join(f"{key} {value:,}" for key, value in backlog.items()) or "-",
        )
    return table


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def print_json(document: Mapping[str, Any]) -> None:
    """Print a document for machines on stdout."""
    print(json.dumps(document, indent=1))


def text_table(columns: Sequence[str], rows: Sequence[Sequence[str | None]]) -> Iterator[str]:
    """Yield the lines of a table: the names of its columns, then its rows; None is NULL."""
    cells = [list(columns), *([_line(cell) for cell in row] for row in rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(columns))]
    for row in cells:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(padded).rstrip()


def _line(cell: str | None) -> str:
    return "NULL" if cell is None else cell.replace("\n", "\\n")
