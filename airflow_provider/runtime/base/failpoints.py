"""Failpoints: points where a test makes a process die or stop, if the environment arms one.

The comment of each says what a crash there leaves, and how it is repaired;
``scripts/crash_table.py`` writes docs/internals/crash-table.md from them. An extension has a module
of this name beside its own.
"""

from __future__ import annotations

import os
import signal
from typing import Final

ALL: Final = (
    #: A recorded intent, and no process: the next try revokes the intent by a conditional create of
    #: `.process.json`, and submits another driver; a launcher that starts later does nothing. For a
    #: cluster the next try submits again with the same token, which is one run there.
    "submission.intended",
    #: A recorded intent, and perhaps a launcher that is starting: the first process that creates
    #: `.process.json` wins.
    "submission.launched",
    #: `.process.json` of a dead launcher, and no driver: the next try submits.
    "submission.entered",
    #: A running driver, and no launcher: the next try adopts it.
    "submission.started",
    #: A run on the cluster, and no `.handle.json`: the next try submits again with the same token,
    #: which is one run there.
    "launch.submitted",
    #: `identity.json`, which no other document names yet: the next submission or driver uses it.
    "identity.put",
    #: A lease without a heartbeat: the next driver takes over when the process is gone, or silent
    #: for 20 seconds.
    "lease.acquired",
    #: `settings/<n>.json` of a run that has not started: the next start has the same settings.
    "settings.pinned",
    #: `run.json` without an attempt: the next attempt finds it.
    "run.recorded",
    #: An attempt without an end, as after any killed attempt: nothing to repair.
    "attempt.recorded",
    #: The recorded ends of a run and its planned first batch; nothing is staged: the next attempt
    #: ends at the recorded positions.
    "ends.recorded",
    #: A planned batch that reads beyond the ends: the next start checks an open batch before it
    #: starts the query, and replaces what is left of it, a position's own file last.
    "plan.refused",
    #: A planned batch that reads beyond the ends, with one file of a source's log replaced: the
    #: next start checks an open batch before it starts the query, and replaces what is left of it,
    #: a position's own file last.
    "plan.replaced_one",
    #: A planned batch that stays within the ends: the next start runs it.
    "plan.replaced",
    #: Staged rows that no reader sees and no record names: the next start, or `spark-stream
    #: cleanup`, removes these rows.
    "sink.staged",
    #: Staged rows and staged quarantined rows, which no reader sees and no record names: the next
    #: start, or `spark-stream cleanup`, removes these rows.
    "sink.quarantined",
    #: The pre-commit `<N>.<token>.json` of an open batch: without `commits/N` Spark runs batch N
    #: again, and the new staging counts.
    "sink.precommitted",
    #: Epoch N is visible in all sinks, and has no record: the next start finds `commits/N` and
    #: publishes what is not there yet.
    "sink.published",
    #: `<N>.json` and the pre-commit that it replaces: the next start removes the pre-commit.
    "sink.committed",
    #: A published epoch and its record: nothing to repair.
    "sink.forgotten",
    #: The files of the previous driver: the next start recovers again, and repeats no step that is
    #: done.
    "recover.planned",
    #: Obsolete staged rows are removed, their records perhaps not: the next start recovers again,
    #: and repeats no step that is done.
    "recover.aborted",
    #: All epochs that Spark has committed are published; garbage remains: the next start recovers
    #: again, and repeats no step that is done.
    "recover.published",
    #: Old records that are not folded yet: the next start recovers again, and repeats no step that
    #: is done.
    "recover.cleaned",
    #: A folded record (`<first>-<last>.json` or `.packed.json`) and the records that it covers: the
    #: next start recovers again, and repeats no step that is done.
    "recover.folded",
    #: Some files of epoch N are visible, each of them complete: the next start finds `commits/N`
    #: and publishes what is not there yet.
    "files.published_one",
    #: Some files of the epoch are removed: the same command, which `status` names, reverts what is
    #: left.
    "files.reverted_one",
    #: `stop.json`, the record of an accepted drain: the next attempt reads no more and drains.
    "stop.promised",
    #: The requested savepoint, and no final checkpoint: after a drain the next attempt finds it by
    #: the request's id; without a drain the next attempt reads on.
    "stop.saved",
    #: `ended/<query id>.json` of sources that are read to their end, and not announced: the next
    #: attempt does not read them again, and announces them.
    "sources.ended",
    #: `drains/<query id>.json` of a query that has read its input: the next attempt does not read
    #: it again, and plans the drain.
    "drain.intended",
    #: `offsets/<N+1>` with MAX_WATERMARK: the next attempt runs this batch with `once`, never with
    #: `availableNow`.
    "drain.planned",
    #: `commits/<N+1>` of the drain, its epoch perhaps not published: the next attempt publishes it
    #: and calls finish().
    "drain.ended",
    #: `batch.json` of a BATCH run; nothing is published: the next attempt runs no query, calls
    #: finish() and publishes.
    "batch.committed",
    #: finish() was called, and there is no final checkpoint: the next attempt calls finish() again.
    "final.finished",
    #: The next lease, which carries the final checkpoint, and no `final.json`: the next driver
    #: writes it before it takes its own lease.
    "final.sealed",
    #: `final.json`, which the same command returns, and a lease without a holder: nothing to
    #: repair.
    "final.put",
    #: A claimed directory: retention, or the next `take` of that name, removes the directory,
    #: because the claim's process is gone.
    "savepoint.claimed",
    #: Files of some queries, and no `savepoint.json`, so no savepoint: retention, or the next
    #: `take` of that name, removes the directory, because the claim's process is gone.
    "savepoint.copied_one",
    #: Files of all queries, and no `savepoint.json`, so no savepoint: retention, or the next `take`
    #: of that name, removes the directory, because the claim's process is gone.
    "savepoint.copied",
    #: A savepoint, and a claim without effect, which a removal replaces: nothing to repair.
    "savepoint.put",
    #: A savepoint, and the `reader.<nonce>.json` of a dead restore: a removal sees that the
    #: reader's process is gone.
    "savepoint.pinned",
    #: A savepoint and a claim on it: the next removal or retention completes the removal.
    "savepoint.removing",
    #: A claim that marks garbage, and no `savepoint.json`: the next removal or retention completes
    #: the removal.
    "savepoint.removed",
    #: A claim that marks garbage, and perhaps fewer files: the next removal or retention completes
    #: the removal.
    "savepoint.collecting",
    #: An empty claimed directory: the next removal or retention completes the removal.
    "savepoint.collected",
    #: An operation that relocates queries; they are still in their old locations: the next driver
    #: relocates under number n+1, and removes a copy that no operation names.
    "relocation.intended",
    #: An operation that relocates queries, and some files in `checkpoint-<n>/`: the next driver
    #: relocates under number n+1, and removes a copy that no operation names.
    "relocation.copied",
    #: The queries in their new locations, and files in the old ones: the next start removes the old
    #: ones.
    "relocation.done",
    #: `operations/1-<n>.json`, and the documents of the operations that it covers: the next fold
    #: removes them.
    "operations.folded",
    #: An open operation, `operations/<n>.1.json`, and the marks of the runs that no longer count;
    #: no driver runs the job: the same command, which `status` names, takes number n+1 and does
    #: what is left.
    "restore.begun",
    #: An open operation; one sink of the query is reverted, others are not: the same command, which
    #: `status` names, takes number n+1 and does what is left.
    "revert.removed_one",
    #: An open operation, and `reverted-<epoch>.json`: the same command, which `status` names, takes
    #: number n+1 and does what is left.
    "revert.done",
    #: An open operation, and a copied checkpoint without `metadata`: the same command, which
    #: `status` names, takes number n+1 and does what is left.
    "restore.copied",
    #: An open operation, and a batch that repartitions the state (`--state-partitions`): the same
    #: command, which `status` names, takes number n+1 and does what is left.
    "restore.repartitioned",
    #: An open operation, and the number from which epochs continue: the same command, which
    #: `status` names, takes number n+1 and does what is left.
    "restore.numbered",
    #: An open operation; one query is restored, others perhaps not: the same command, which
    #: `status` names, takes number n+1 and does what is left.
    "restore.restored_one",
    #: A lease without a holder, and the former checkpoints; with `claim` also the savepoint: the
    #: next driver removes locations that do not count, `savepoint dispose` the savepoint.
    "restore.done",
    #: A lease without a holder; with `claim` also the savepoint: the next driver removes locations
    #: that do not count, `savepoint dispose` the savepoint.
    "restore.removed",
    #: A scratch job directory in which nothing has started: the same command continues; a command
    #: with another history is refused.
    "bootstrap.recorded",
    #: The history is read; `final.json` and the sources' offsets are in the scratch job directory:
    #: the same command removes the offsets.
    "bootstrap.read",
    #: The offsets of one query are removed, others are not; there is no savepoint: the same command
    #: removes the offsets.
    "bootstrap.reset_one",
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
    location, _, action = armed.partition("!")
    wanted, _, count = location.partition(":")
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
