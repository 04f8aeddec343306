"""The failpoints of this extension, as in :mod:`.runtime.base.failpoints`."""

from __future__ import annotations

from typing import Final

ALL: Final = (
    #: A claim on a folder without `savepoint.json`: the same command begins again, or retention
    #: removes it.
    "rewrite.claimed",
    #: A changed copy beside a folder without `savepoint.json`: the same command begins again, or
    #: retention removes it.
    "rewrite.changed",
)
