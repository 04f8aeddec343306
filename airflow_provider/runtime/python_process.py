"""Processes of Python that this package starts, and what a process inherits.

``python -m`` puts the working directory in front of the import path, so that a module of that
folder, such as a ``uuid.py`` in ``/tmp``, would run in place of Python's own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

_STATUS: Final = Path("/proc/self/status")  # Linux has it


def module_command(module: str) -> list[str]:
    """Return the command that runs a module, and imports nothing from the working directory."""
    if sys.version_info >= (3, 11):
        return [sys.executable, "-P", "-m", module]
    # ``sys`` is built in; no other import comes before the working directory has left the path.
    program = (
        "import sys; sys.path[:1] = []; import runpy; "
        f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    )
    return [sys.executable, "-c", program]


def current_umask() -> int:
    """Return this process's umask."""
    try:
        lines = _STATUS.read_text(encoding="utf-8").splitlines()
        return int(next(line for line in lines if line.startswith("Umask:")).split()[1], 8)
    except (OSError, StopIteration):
        umask = os.umask(0o077)  # for a moment, which other threads may see
        os.umask(umask)
        return umask
