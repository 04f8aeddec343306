"""Failpoints: places where a test makes a process die or stop, if the environment arms one.

Each name is a row of the crash table in ARCHITECTURE.md.
"""

from __future__ import annotations

import os
import signal
from typing import Final

ALL: Final = (
    "submission.intended",
    "submission.launched",
    "submission.entered",
    "submission.started",
    "launch.requested",
    "launch.submitted",
    "identity.put",
    "lease.acquired",
    "run.recorded",
    "attempt.recorded",
    "ends.recorded",
    "plan.refused",
    "plan.replaced_one",
    "plan.replaced",
    "sink.staged",
    "sink.precommitted",
    "sink.published",
    "sink.committed",
    "sink.forgotten",
    "recover.planned",
    "recover.aborted",
    "recover.published",
    "recover.cleaned",
    "recover.folded",
    "revert.intended",
    "revert.removed_one",
    "revert.done",
    "files.published_one",
    "files.reverted_one",
    "bucket.publishing_one",
    "bucket.published_one",
    "bucket.reverted_one",
    "sql.committing",
    "sql.committed",
    "sql.reverting",
    "sql.reverted",
    "delta.committing",
    "delta.committed",
    "delta.reverting",
    "delta.reverted",
    "iceberg.committing",
    "iceberg.committed",
    "iceberg.reverting",
    "iceberg.reverted",
    "stop.promised",
    "stop.saved",
    "sources.ended",
    "drain.intended",
    "drain.planned",
    "drain.ended",
    "batch.committed",
    "final.finished",
    "final.sealed",
    "final.put",
    "savepoint.claimed",
    "savepoint.copied_one",
    "savepoint.copied",
    "savepoint.put",
    "savepoint.pinned",
    "savepoint.removing",
    "savepoint.removed",
    "savepoint.collecting",
    "savepoint.collected",
    "rewind.reverted",
    "rewind.intended",
    "rewind.recorded",
    "relocation.intended",
    "relocation.copied",
    "relocation.done",
    "restore.copied",
    "restore.repartitioned",
    "restore.numbered",
    "restore.restored_one",
    "restore.done",
    "restore.removed",
    "bootstrap.recorded",
    "bootstrap.read",
    "bootstrap.reset_one",
    "rewrite.claimed",
    "rewrite.changed",
    "upgrade.stopping",
    "upgrade.stopped",
    "upgrade.trial",
    "upgrade.decided",
    "upgrade.accepted",
    "upgrade.rejected",
    "upgrade.reverted",
    "upgrade.rolled_back",
)
CRASH_EXIT: Final = 137  # what a supervisor sees after SIGKILL
_VARIABLE: Final = "SPARK_STREAM_FAILPOINT"


def hit(name: str) -> None:
    """Die here, as by ``kill -9``, if *name* is armed.

    ``SPARK_STREAM_FAILPOINT=name`` arms the first hit, ``name:3`` the third; with ``!stop`` at its
    end the process stops instead, once, until it gets SIGCONT: a driver in a long pause.
    """
    armed = os.environ.get(_VARIABLE)
    if armed is None:
        return
    place, _, action = armed.partition("!")
    wanted, _, count = place.partition(":")
    if wanted != name:
        return
    left = int(count or 1) - 1
    if left > 0:
        os.environ[_VARIABLE] = f"{name}:{left}" + (f"!{action}" if action else "")
        return
    if action == "stop":
        del os.environ[_VARIABLE]
        os.kill(os.getpid(), signal.SIGSTOP)
        return
    os._exit(CRASH_EXIT)  # no finally, no atexit: exactly what a crash skips
