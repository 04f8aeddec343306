"""The failpoints of this extension, as in :mod:`.runtime.base.failpoints`."""

from __future__ import annotations

from typing import Final

ALL: Final = (
    #: `upgrades/<n>.json`, stopping, and the old version running: the same command requests the
    #: same stop and takes the savepoint of its end; no other process starts the old version.
    "upgrade.stopping",
    #: The savepoint of the old version, which has ended or is about to: the same command requests
    #: the same stop and takes the savepoint of its end; no other process starts the old version.
    "upgrade.stopped",
    #: `upgrades/<n>.json`, trial, and neither version running: the same command tries the new
    #: version.
    "upgrade.trial",
    #: A decision that no document holds, the new version half way: the same command tries the new
    #: version.
    "upgrade.decided",
    #: `upgrades/<n>.json`, accepted: the same command, or another driver of the new version,
    #: continues when the driver of the trial is dead.
    "upgrade.accepted",
    #: `upgrades/<n>.json`, rejected, and rows of the rejected version: the same command reverts
    #: what is left of them; no process starts either version before.
    "upgrade.rejected",
    #: The rows of the rejected version reverted, the record still open: the same command reverts
    #: what is left of them; no process starts either version before.
    "upgrade.reverted",
    #: `upgrades/<n>.json`, rolled back: the same command, or another driver of the old version,
    #: runs the old version.
    "upgrade.rolled_back",
)
