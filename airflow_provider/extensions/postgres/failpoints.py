"""The failpoints of this extension, as in :mod:`.runtime.base.failpoints`."""

from __future__ import annotations

from typing import Final

ALL: Final = (
    #: Epoch N is not visible in the table: the next start finds `commits/N` and publishes what is
    #: not there yet.
    "postgres.committing",
    #: Epoch N is in the table, and the job directory does not record it: the next start finds
    #: `commits/N` and publishes what is not there yet.
    "postgres.committed",
    #: The table is unchanged: the same command, which `status` names, reverts what is left.
    "postgres.reverting",
    #: The epochs are removed from the table, which refuses them from then on: the same command,
    #: which `status` names, reverts what is left.
    "postgres.reverted",
)
