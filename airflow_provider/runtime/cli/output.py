"""Output for people: progress on a terminal, if rich is installed, and rows as text tables."""

from __future__ import annotations

import contextlib
import json
import sys
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TextIO

from airflow_provider.runtime.cli.batch_lines import BATCH_COLUMNS, backlog_text, batch_cells
from airflow_provider.runtime.cli.catching_up import CatchingUp
from airflow_provider.runtime.clock import SystemClock
from airflow_provider.runtime.jobdir.batch_history import NO_WATERMARK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rich.live import Live
    from rich.table import Table

    from airflow_provider.runtime.cli.batch_lines import Batches
    from airflow_provider.runtime.jobdir.run_records import ProgressRecord


_DRAINED: Final = "9999-12-31"


@contextlib.contextmanager
def live_progress() -> Iterator[Callable[[ProgressRecord], None] | None]:
    """Show a table on stderr that follows the run; yields what takes each progress."""
    with live_on(sys.stderr) as live:
        catching_up = CatchingUp(SystemClock())
        yield (
            None
            if live is None
            else lambda record: live.update(progress_table(record, bars=catching_up.look(record)))
        )


@contextlib.contextmanager
def live_on(stream: TextIO) -> Iterator[Live | None]:
    """Yield what draws in place on a terminal; None where there is none, or no rich."""
    try:
        from rich.console import Console
        from rich.live import Live
    except ImportError:  # a cluster's driver has PySpark and fsspec only
        yield None
        return
    if not stream.isatty():
        yield None
        return
    with Live(console=Console(file=stream), refresh_per_second=4, transient=False) as live:
        yield live


def progress_table(
    record: ProgressRecord,
    batches: Batches | None = None,
    bars: Mapping[str, str] = MappingProxyType({}),
) -> Table:
    """Return the progress of a run as a table, a row a query.

    Args:
        record: the progress.
        batches: the last ones of each query; None to leave them out.
        bars: what :meth:`CatchingUp.look` says of each query.
    """
    from rich.table import Table

    title = f"{record.phase} · attempt {record.attempt} · {record.rows_per_second:,.0f} rows/s"
    table = Table(title=title, title_justify="left")
    shown = ("query", "phase", "rows read", "batch", "watermark", "state rows", "backlog")
    for column in (*shown, *(BATCH_COLUMNS if batches is not None else ())):
        table.add_column(column)
    for name, query in record.queries.items():
        table.add_row(
            name,
            query.get("phase", "-"),
            _number(query.get("rows_read")),
            _number(query.get("batch")),
            _watermark(query.get("watermark")),
            _number(query.get("state_rows")),
            "\n".join(filter(None, (backlog_text(query.get("backlog")), bars.get(name)))),
            *(batch_cells(batches.get(name)) if batches is not None else ()),
        )
    return table


def _watermark(text: str | None) -> str:
    """Return it without what a table has no room for; a dash before the first event."""
    if text is None or text == NO_WATERMARK:
        return "-"
    return "end" if text.startswith(_DRAINED) else f"{text[:10]} {text[11:19]}Z"


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
