"""The failpoints of this extension, as in :mod:`.runtime.base.failpoints`."""

from __future__ import annotations

from typing import Final

ALL: Final = (
    #: Epoch N is not visible in the table: the next start finds `commits/N` and publishes what is
    #: not there yet.
    "delta.committing",
    #: Epoch N is in the table, and the job directory does not record it: the next start finds
    #: `commits/N` and publishes what is not there yet.
    "delta.committed",
    #: The table has the epoch's new columns, null in all rows: the next start finds `commits/N` and
    #: publishes what is not there yet.
    "delta.columns_added",
    #: The table is unchanged: the same command, which `status` names, reverts what is left.
    "delta.reverting",
    #: The epochs are removed from the table, which refuses them from then on: the same command,
    #: which `status` names, reverts what is left.
    "delta.reverted",
)
