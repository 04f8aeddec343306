"""The failpoints of this extension, as in :mod:`.runtime.base.failpoints`."""

from __future__ import annotations

from typing import Final

ALL: Final = (
    #: Epoch N not visible: the next start publishes it.
    "sql.committing",
    #: Epoch N in the table, unknown to the job directory: the next start finds the epoch in the
    #: table.
    "sql.committed",
    #: The table unchanged: the same command reverts it.
    "sql.reverting",
    #: The epochs removed from the table, and refused from then on: the same command finds them
    #: removed.
    "sql.reverted",
)
