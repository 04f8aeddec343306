"""Output for people: progress on a terminal, and rows as text tables."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import sys
import threading
from typing import TYPE_CHECKING, Any, Final, TextIO

from airflow_provider.runtime.base.clock import Due, SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rich.text import Text

    from airflow_provider.runtime.jobdir.run_records import ProgressRecord


_PART_S: Final = 0.5  # a line that does not end, such as a question, is shown after so long
_READ_BYTES: Final = 65536
_LEAST_COLUMNS: Final = 20
_PLAIN_S: Final = 10.0


class LiveBlock:
    """Draws lines at the bottom of a terminal with ``rich``, in the place of those before.

    Crash safety: each step is one write that leaves the cursor visible at the beginning of a line.
    Thread safety: any thread may call any method.
    """

    def __init__(self, terminal: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self._terminal = terminal
        self._lock = threading.Lock()
        self._lines: Sequence[str] = ()
        self._part = b""  # of a line above that has not ended
        self._console = Console(
            file=terminal, force_terminal=True, force_interactive=True, color_system=None
        )
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )
        self._fit()
        self._live.start()
        self._console.show_cursor()

    def columns(self) -> int:
        return self._fit()

    def update(self, lines: Sequence[str]) -> None:
        """Draw these lines in the place of the last ones; what is too wide or too many is cut."""
        with self._lock, _ignoring_a_closed_terminal():
            self._lines = ["".join(c if c.isprintable() else "?" for c in line) for line in lines]
            self._fit()
            self._live.update(self._text([*self._lines, ""]), refresh=True)

    def write(self, data: bytes) -> None:
        """Write above the block; an unfinished line waits for its end."""
        with self._lock:
            whole, end, self._part = (self._part + data).rpartition(b"\n")
            self._print(whole + end)

    def flush(self) -> None:
        with self._lock:
            part, self._part = self._part, b""
            self._print(part + b"\n" if part else b"")

    def close(self) -> None:
        """Leave the last lines as they are, and the cursor below them."""
        with self._lock, _ignoring_a_closed_terminal():
            self._live.transient = not self._lines
            self._live.update(self._text(self._lines))
            self._live.stop()

    def _print(self, above: bytes) -> None:
        if above:
            with _ignoring_a_closed_terminal():
                self._fit()
                text = above.decode(errors="backslashreplace").replace("\r\n", "\n")
                self._console.out(text, end="", highlight=False)

    def _text(self, lines: Sequence[str]) -> Text:
        from rich.text import Text

        return Text("\n".join(lines), no_wrap=True, overflow="ellipsis")

    def _fit(self) -> int:
        from rich.console import ConsoleDimensions

        try:
            columns, rows = os.get_terminal_size(self._terminal.fileno())
        except OSError:
            columns, rows = shutil.get_terminal_size()
        columns = max(columns or 80, _LEAST_COLUMNS)
        # A line of the whole width would wrap the cursor; one row is of what was written last.
        self._console.size = ConsoleDimensions(columns - 1, max((rows or 24) - 1, 2))
        return columns


@contextlib.contextmanager
def _ignoring_a_closed_terminal() -> Iterator[None]:
    with contextlib.suppress(OSError):
        yield


@contextlib.contextmanager
def live_block(stream: TextIO) -> Iterator[LiveBlock | None]:
    """Yield a block at the bottom of a stream's terminal; None without a terminal or ``rich``.

    All other output goes through the block: this process's log and prints, and output of the JVM
    and the Python workers to their inherited descriptors.
    """
    if not _is_drawable(stream) or not _has_rich():
        yield None
        return
    with os.fdopen(os.dup(stream.fileno()), "w", encoding="utf-8", errors="replace") as terminal:
        block = LiveBlock(terminal)
        try:
            with _led_through(block):
                yield block
        finally:
            block.close()


def _has_rich() -> bool:
    try:
        import rich  # noqa: F401 - the drivers of a cluster may not have it
    except ImportError:
        return False
    return True


def _is_drawable(stream: TextIO) -> bool:
    try:
        return stream.isatty() and os.isatty(stream.fileno()) and os.environ.get("TERM") != "dumb"
    except (OSError, ValueError):  # it has no descriptor, or is closed
        return False


@contextlib.contextmanager
def _led_through(block: LiveBlock) -> Iterator[None]:
    reads, writes = os.pipe()
    ended_reads, ended_writes = os.pipe()
    before = {target: os.dup(target) for target in (1, 2) if os.isatty(target)}
    _flush()
    for target in before:
        os.dup2(writes, target)
    os.close(writes)
    reader = threading.Thread(
        target=_pass_on, args=(reads, ended_reads, block), name="terminal", daemon=True
    )
    reader.start()
    try:
        yield
    finally:
        _flush()
        for target, saved in before.items():
            os.dup2(saved, target)
            os.close(saved)
        # Not by the end of the pipe: a JVM that has not ended yet still holds it.
        os.close(ended_writes)
        reader.join()
        for end in (reads, ended_reads):
            os.close(end)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def _pass_on(reads: int, ended: int, block: LiveBlock) -> None:
    is_over = False
    while True:
        awaited, wait_s = ([reads], 0.0) if is_over else ([reads, ended], _PART_S)
        ready, _, _ = select.select(awaited, [], [], wait_s)
        if reads in ready:
            data = os.read(reads, _READ_BYTES)
            if not data:
                break
            block.write(data)
        elif ended in ready:
            is_over = True
        elif is_over:
            break
        else:
            block.flush()
    block.flush()


@contextlib.contextmanager
def live_progress() -> Iterator[Callable[[ProgressRecord], None] | None]:
    """Show on stderr's terminal how a run proceeds; yield its callback, or None without a terminal.

    Lines that follow a successful run are removed. Without ``rich`` a plain line is written every
    ten seconds.
    """
    # Not above: a command that gives its run to a warm driver would spend a third of its time here.
    from airflow_provider.runtime.cli.progress_lines import Rates, plain_line, progress_lines

    with live_block(sys.stderr) as block:
        clock = SystemClock()
        rates, is_due = Rates(clock), Due(clock, _PLAIN_S)

        def show(record: ProgressRecord) -> None:
            if block is not None:
                lines = progress_lines(record, rates.update(record), columns=block.columns())
                block.update(lines)
            elif is_due():
                print(plain_line(record), file=sys.stderr)

        yield show if block is not None or _is_drawable(sys.stderr) else None
        if block is not None:
            block.update([])


def print_json(document: Mapping[str, Any]) -> None:
    """Print a document for machines on stdout."""
    print(json.dumps(document, indent=1))


def text_table(columns: Sequence[str], rows: Sequence[Sequence[str | None]]) -> Iterator[str]:
    """Yield the lines of a table: the names of its columns, then its rows; None is NULL."""
    cells = [list(columns), *([_line(cell) for cell in row] for row in rows)]
    widths = [max(len(row[position]) for row in cells) for position in range(len(columns))]
    for row in cells:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(padded).rstrip()


def _line(cell: str | None) -> str:
    return "NULL" if cell is None else cell.replace("\n", "\\n")
