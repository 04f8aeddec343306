"""Following a driver's log file from the task's log."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_CHUNK_BYTES: Final = (
    1 << 16
)  # its lines are logged in a few milliseconds: a triggerer may not stall


class LogFollower:
    """Reads what has been added to a file since it was last asked.

    Args:
        path: the file; None, or one on another machine, has nothing to say.
        offset: where to begin, in bytes.
    """

    def __init__(self, path: str | None, offset: int = 0) -> None:
        self._path = Path(path) if path is not None else None
        self.offset = offset

    def new_lines(self) -> list[str]:
        """Return the next whole lines, as many as fit into one read; empty when there are no more.

        A line still being written waits, unless it is too long for one read.
        """
        if self._path is None:
            return []
        try:
            if os.stat(self._path).st_size <= self.offset:  # mostly, and a quarter of the price
                return []
            with self._path.open("rb") as file:
                file.seek(self.offset)
                data = file.read(_CHUNK_BYTES)
        except OSError:
            return []
        end = data.rfind(b"\n") + 1
        if not end and len(data) == _CHUNK_BYTES:
            end = len(data)
        self.offset += end
        return data[:end].decode(errors="replace").splitlines()
