"""The failpoints of this extension, as in :mod:`.runtime.base.failpoints`."""

from __future__ import annotations

from typing import Final

ALL: Final = (
    #: `upgrades/<n>.json` in step stopping, and the old version running: the same command requests
    #: the same stop and takes the savepoint of its end; no other process starts the old version.
    "upgrade.stopping",
    #: The savepoint of the old version, which has ended or is about to: the same command requests
    #: the same stop and takes the savepoint of its end; no other process starts the old version.
    "upgrade.stopped",
    #: `upgrades/<n>.json` in step trial, and neither version running: the same command tries the
    #: new version.
    "upgrade.trial",
    #: A decision that no document records; the new version is partly started: the same command
    #: tries the new version.
    "upgrade.decided",
    #: `upgrades/<n>.json` in step accepted: the same command, or another driver of the new version,
    #: continues when the driver of the trial is dead.
    "upgrade.accepted",
    #: `upgrades/<n>.json` in step rejected, and rows of the rejected version: the same command
    #: reverts what is left of them; no process starts either version before.
    "upgrade.rejected",
    #: The rows of the rejected version are reverted; the record is still open: the same command
    #: reverts what is left of them; no process starts either version before.
    "upgrade.reverted",
    #: `upgrades/<n>.json` in step rolled back: the same command, or another driver of the old
    #: version, runs the old version.
    "upgrade.rolled_back",
)
