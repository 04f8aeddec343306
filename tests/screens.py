"""A terminal that a test looks at: a pseudo-terminal, and what it shows as a person sees it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import termios
import threading
from collections.abc import Callable, Iterator
from typing import TextIO

import pyte

ROWS = 40


class Screen:
    """A terminal of a given size.

    Args:
        columns: how wide it is.
        looks: called with the lines after whatever was written; those that have left the screen
            are not among them.
    """

    def __init__(self, columns: int, looks: Callable[[list[str]], object] | None = None) -> None:
        self.columns = columns
        self._looks = looks
        self._screen = pyte.HistoryScreen(columns, ROWS, history=10_000)
        self._stream = pyte.ByteStream(self._screen)
        self._ours, self.terminal = os.openpty()
        self.resize(columns)
        self._reader = threading.Thread(target=self._read, name="screen", daemon=True)

    def __enter__(self) -> Screen:
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.terminal)
        self._reader.join(30)
        os.close(self._ours)

    def resize(self, columns: int) -> None:
        """Let programs see another width."""
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))

    @contextlib.contextmanager
    def stream(self) -> Iterator[TextIO]:
        """Yield a stream that writes on it, which takes the place of standard output."""
        with os.fdopen(os.dup(self.terminal), "w", buffering=1) as stream:
            yield stream

    @property
    def is_cursor_hidden(self) -> bool:
        """Whether a program has hidden the cursor, and not shown it again."""
        return bool(self._screen.cursor.hidden)

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the last writer has closed it
            while data := os.read(self._ours, 65536):
                self._stream.feed(data)
                if self._looks is not None:
                    self._looks(self.lines())

    def lines(self) -> list[str]:
        """Return what is on the screen and above it, without what is empty at its end."""
        above = [
            "".join(line[x].data for x in range(self.columns)) for line in self._screen.history.top
        ]
        shown = [line.rstrip() for line in (*above, *self._screen.display)]
        while shown and not shown[-1]:
            shown.pop()
        return shown
