"""The failpoints of this extension, as in :mod:`.runtime.base.failpoints`."""

from __future__ import annotations

from typing import Final

ALL: Final = (
    #: A claimed directory without `savepoint.json`: the same command starts again, or retention
    #: removes the directory.
    "rewrite.claimed",
    #: A changed copy, and a claimed directory without `savepoint.json`: the same command starts
    #: again, or retention removes the directory.
    "rewrite.changed",
)
