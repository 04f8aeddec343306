"""Live block: lines that stay at the bottom of a terminal, while others are written above them.

Whatever writes to the terminal meanwhile is led through here: this process's log and prints, and
what the JVM and Spark's Python workers write by themselves to the descriptors that they have
inherited. So no line of theirs begins in the middle of the block, and no part of the block is left
above them. Each step is one write that leaves the cursor at the beginning of a line: a process that
is killed between two of them leaves the terminal in order.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import sys
import threading
import unicodedata
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_ESC: Final = "\x1b["
_NO_WRAP: Final = f"{_ESC}?7l"  # what is wider than the terminal is cut by it, too
_WRAP: Final = f"{_ESC}?7h"
_ERASE_BELOW: Final = f"{_ESC}J"
_LEAST_COLUMNS: Final = 20
_PART_S: Final = 0.5  # a line that does not end, such as a question, is shown after so long
_READ_BYTES: Final = 65536
_SPARE_ROWS: Final = 2  # the cursor's line, and one of what was written last


class LiveBlock:
    """Draws lines at the bottom of a terminal, each time in the place of those before.

    Thread safety: any thread may call any method.

    Args:
        terminal: the descriptor of one.
    """

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._lock = threading.Lock()
        self._lines: list[str] = []
        self._drawn: list[str] = []
        self._part = b""  # of a line above that has not ended

    def columns(self) -> int:
        """Return how wide the terminal is now."""
        return max(self._size()[0], _LEAST_COLUMNS)

    def update(self, lines: Sequence[str]) -> None:
        """Draw these lines in the place of the last ones; what is too wide or too many is cut."""
        with self._lock:
            self._lines = list(lines)
            self._draw(b"")

    def write(self, data: bytes) -> None:
        """Write above the block; what follows the last end of a line waits for its own."""
        with self._lock:
            whole, end, self._part = (self._part + data).rpartition(b"\n")
            if end:
                self._draw(whole + end)

    def flush(self) -> None:
        """Write what waits for the end of its line."""
        with self._lock:
            part, self._part = self._part, b""
            if part:
                self._draw(part + b"\n")

    def _draw(self, above: bytes) -> None:
        columns, rows = self._size()
        up = sum(max(1, -(-width_of(line) // columns)) for line in self._drawn)
        back = f"\r{_ESC}{up}A{_ERASE_BELOW}" if up else f"\r{_ERASE_BELOW}"
        self._drawn = [cut(line, columns - 1) for line in self._lines[: max(rows - _SPARE_ROWS, 1)]]
        block = "".join(f"{line}\r\n" for line in self._drawn)
        text = above.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
        _write_all(
            self._terminal,
            back.encode() + text + f"{_NO_WRAP}{block}{_WRAP}".encode(errors="replace"),
        )

    def _size(self) -> tuple[int, int]:
        try:
            columns, rows = os.get_terminal_size(self._terminal)
        except OSError:
            columns, rows = shutil.get_terminal_size()
        return columns or 80, rows or 24


@contextlib.contextmanager
def live_block(stream: TextIO) -> Iterator[LiveBlock | None]:
    """Yield what draws at the bottom of a stream's terminal; None where it is no terminal.

    While the block runs, standard output and standard error are led through it as far as they lead
    to a terminal. What they have drawn last stays on the screen.
    """
    if not _is_drawable(stream):
        yield None
        return
    terminal = os.dup(stream.fileno())
    block = LiveBlock(terminal)
    try:
        with _led_through(block):
            yield block
    finally:
        os.close(terminal)


def _is_drawable(stream: TextIO) -> bool:
    try:
        return stream.isatty() and os.isatty(stream.fileno()) and os.environ.get("TERM") != "dumb"
    except (OSError, ValueError):  # it has no descriptor, or is closed
        return False


@contextlib.contextmanager
def _led_through(block: LiveBlock) -> Iterator[None]:
    """Let a pipe take the place of the descriptors 1 and 2, as far as those are terminals."""
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
    """Write above the block what comes, until the end is said and nothing is left."""
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


def _write_all(target: int, data: bytes) -> None:
    """Write to a terminal; one that was closed takes nothing more, and no run fails for it."""
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(target, data) :]


def width_of(text: str) -> int:
    """Return how many columns of a terminal a line takes."""
    return sum(_columns_of(character) for character in text)


def cut(text: str, columns: int) -> str:
    """Return a line that takes so many columns at most; one that was cut ends with a mark."""
    clean = "".join(each if each.isprintable() else "?" for each in text)
    if width_of(clean) <= columns:
        return clean
    kept, width = [], 0
    for character in clean:
        width += _columns_of(character)
        if width > columns - 1:
            break
        kept.append(character)
    return "".join(kept).rstrip() + "…"


def _columns_of(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
