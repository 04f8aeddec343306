"""Named places where a test can make a process die; silent unless the environment arms one.

Each name is a row of the crash table in ARCHITECTURE.md.
"""

from __future__ import annotations

import os
from typing import Final

ALL: Final = (
    "lease.acquired",
    "run.recorded",
    "attempt.recorded",
    "sink.staged",
    "sink.precommitted",
    "sink.published_one",
    "sink.published",
    "sink.committed",
    "drain.intended",
    "drain.planned",
    "drain.ended",
    "final.finished",
    "final.put",
)
CRASH_EXIT: Final = 137  # what a supervisor sees after SIGKILL
_VARIABLE: Final = "SPARK_STREAM_FAILPOINT"


def hit(name: str) -> None:
    """Die here, as by ``kill -9``, if *name* is armed.

    ``SPARK_STREAM_FAILPOINT=name`` arms the first hit, ``name:3`` the third.
    """
    armed = os.environ.get(_VARIABLE)
    if armed is None:
        return
    wanted, _, count = armed.partition(":")
    if wanted != name:
        return
    left = int(count or 1) - 1
    if left > 0:
        os.environ[_VARIABLE] = f"{name}:{left}"
        return
    os._exit(CRASH_EXIT)  # no finally, no atexit: exactly what a crash skips
