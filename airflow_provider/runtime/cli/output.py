"""Output for people: progress on a terminal, and rows as text tables."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.cli.live_block import live_block
from airflow_provider.runtime.cli.progress_lines import progress_lines
from airflow_provider.runtime.cli.rates import Rates
from airflow_provider.runtime.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from airflow_provider.runtime.jobdir.run_records import ProgressRecord


@contextlib.contextmanager
def live_progress() -> Iterator[Callable[[ProgressRecord], None] | None]:
    """Show lines on stderr's terminal that follow the run; yields what takes each progress.

    They go when the run has ended well, for its summary says more; else they stay as they were.
    """
    with live_block(sys.stderr) as block:
        if block is None:
            yield None
            return
        rates = Rates(SystemClock())

        def show(record: ProgressRecord) -> None:
            paces = rates.look(record)
            block.update(progress_lines(record, paces, columns=block.columns()))

        yield show
        block.update([])


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
