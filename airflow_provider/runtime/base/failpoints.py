"""Failpoints: points where a test makes a process die or stop, if the environment arms one.

The comment of each says what a crash there leaves, and who repairs it; ``scripts/crash_table.py``
writes docs/crash-table.md from them. An extension has a module of this name beside its own.
"""

from __future__ import annotations

import os
import signal
from typing import Final

ALL: Final = (
    #: An intent without a process: the next try revokes it (`.process.json`, put if absent) and
    #: submits; a launcher that comes up later starts nothing. One for a cluster: the next try
    #: submits it again with the same token, which is one run there.
    "submission.intended",
    #: The same, or a launcher that comes up: the first one to put `.process.json` wins.
    "submission.launched",
    #: `.process.json` of a dead launcher, and no driver: the next try submits.
    "submission.entered",
    #: A driver without a launcher: the next try adopts it.
    "submission.started",
    #: A run on the cluster without `.handle.json`: the next try submits again with the same token,
    #: which is one run there.
    "launch.submitted",
    #: `identity.json`, which no other document names yet: the next submission or driver uses it.
    "identity.put",
    #: A lease without a heartbeat: the next driver takes over when the process is gone, or silent
    #: for 20 seconds.
    "lease.acquired",
    #: `settings/<n>.json` of a run that has not begun: the next start has the same settings.
    "settings.pinned",
    #: `run.json` without an attempt: the next attempt finds it.
    "run.recorded",
    #: An attempt without an end, as any killed attempt leaves it: nothing to repair.
    "attempt.recorded",
    #: The recorded ends of a run, its first batch planned, nothing staged: the next attempt ends
    #: at the same location.
    "ends.recorded",
    #: A planned batch beyond the ends: the next start checks an open batch before it starts the
    #: query, and replaces what is left of it, a position's own file last.
    "plan.refused",
    #: The same, with one file of a source's log replaced: the next start checks an open batch
    #: before it starts the query, and replaces what is left of it, a position's own file last.
    "plan.replaced_one",
    #: A planned batch within the ends: the next start runs it.
    "plan.replaced",
    #: Staged rows that no reader sees and no record names: the next start, or `spark-stream
    #: cleanup`, removes them.
    "sink.staged",
    #: The same, and staged quarantined rows: the next start, or `spark-stream cleanup`, removes
    #: them.
    "sink.quarantined",
    #: The pre-commit `<N>.<token>.json` of an open batch: without `commits/N` Spark runs batch N
    #: again, and the new staging counts.
    "sink.precommitted",
    #: Epoch N visible in all sinks, without its record: the next start finds `commits/N` and
    #: publishes what is not there yet.
    "sink.published",
    #: `<N>.json`, and the pre-commit that it replaces: the next start removes the pre-commit.
    "sink.committed",
    #: A published epoch with its record: nothing to repair.
    "sink.forgotten",
    #: What the driver before has left: the next start recovers again, and repeats no step that is
    #: done.
    "recover.planned",
    #: Obsolete stagings removed, perhaps not their records: the next start recovers again, and
    #: repeats no step that is done.
    "recover.aborted",
    #: All that Spark has committed published, and garbage: the next start recovers again, and
    #: repeats no step that is done.
    "recover.published",
    #: Old records that are not folded: the next start recovers again, and repeats no step that is
    #: done.
    "recover.cleaned",
    #: A folded record (`<first>-<last>.json` or `.packed.json`) and the records that it covers: the
    #: next start recovers again, and repeats no step that is done.
    "recover.folded",
    #: Some files of epoch N visible, each of them whole: the next start finds `commits/N` and
    #: publishes what is not there yet.
    "files.published_one",
    #: Some files of the epoch removed: the same command, which `status` names, reverts what is
    #: left.
    "files.reverted_one",
    #: `stop.json`, an accepted drain: the next attempt reads no more and drains.
    "stop.promised",
    #: The requested savepoint without a final checkpoint: after a drain the next attempt finds it
    #: by the request's id; without a drain the next attempt reads on.
    "stop.saved",
    #: `ended/<query id>.json`, sources read to their end but not announced: the next attempt does
    #: not read them again, and announces them.
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
    #: `batch.json` of a BATCH run, nothing published: the next attempt runs no query, calls
    #: finish() and publishes.
    "batch.committed",
    #: finish() was called, no final checkpoint: the next attempt calls finish() again.
    "final.finished",
    #: The next lease, which carries the final checkpoint, without `final.json`: the next driver
    #: puts it before its own lease.
    "final.sealed",
    #: `final.json`, which the same command returns, and a lease without a holder: nothing to
    #: repair.
    "final.put",
    #: A claimed folder: retention, or the next `take` of that name, removes it, because the claim's
    #: process is gone.
    "savepoint.claimed",
    #: Files of some queries without `savepoint.json`, which is no savepoint: retention, or the next
    #: `take` of that name, removes it, because the claim's process is gone.
    "savepoint.copied_one",
    #: The same of all queries: retention, or the next `take` of that name, removes it, because the
    #: claim's process is gone.
    "savepoint.copied",
    #: A savepoint, and a claim without effect, which a removal replaces: nothing to repair.
    "savepoint.put",
    #: A savepoint, and the `reader.<nonce>.json` of a dead restore: a removal sees that the
    #: reader's process is gone.
    "savepoint.pinned",
    #: A savepoint with a claim: the next removal or retention removes it.
    "savepoint.removing",
    #: A claim that marks garbage, without `savepoint.json`: the next removal or retention removes
    #: it.
    "savepoint.removed",
    #: The same, perhaps with fewer files: the next removal or retention removes it.
    "savepoint.collecting",
    #: An empty claimed folder: the next removal or retention removes it.
    "savepoint.collected",
    #: An operation that relocates queries, still in their old locations: the next driver relocates
    #: under number n+1, and removes a copy that no operation names.
    "relocation.intended",
    #: The same, with files in `checkpoint-<n>/`: the next driver relocates under number n+1, and
    #: removes a copy that no operation names.
    "relocation.copied",
    #: The queries in new locations, and the old locations: the next start removes the old ones.
    "relocation.done",
    #: Old operations folded into `operations/1-<n>.json`, their documents there: the next fold
    #: removes them.
    "operations.folded",
    #: An open operation, `operations/<n>.1.json`, and the marks of the runs that no longer count;
    #: no driver runs the job: the same command, which `status` names, takes number n+1 and does
    #: what is left.
    "restore.begun",
    #: The same, with one sink of the query reverted, others not: the same command, which `status`
    #: names, takes number n+1 and does what is left.
    "revert.removed_one",
    #: The same, with `reverted-<epoch>.json`: the same command, which `status` names, takes number
    #: n+1 and does what is left.
    "revert.done",
    #: The same, with a copy without `metadata`: the same command, which `status` names, takes
    #: number n+1 and does what is left.
    "restore.copied",
    #: The same, with a batch that repartitions the state (`--state-partitions`): the same command,
    #: which `status` names, takes number n+1 and does what is left.
    "restore.repartitioned",
    #: The same, with the number from which epochs continue: the same command, which `status` names,
    #: takes number n+1 and does what is left.
    "restore.numbered",
    #: One query restored, others perhaps not: the same command, which `status` names, takes number
    #: n+1 and does what is left.
    "restore.restored_one",
    #: A lease without a holder, former checkpoints, with `claim` still the savepoint: the next
    #: driver removes locations that do not count, `savepoint dispose` the savepoint.
    "restore.done",
    #: The same without former checkpoints: the next driver removes locations that do not count,
    #: `savepoint dispose` the savepoint.
    "restore.removed",
    #: A scratch job directory in which nothing has started: the same command continues; one with
    #: another history is refused.
    "bootstrap.recorded",
    #: History read, with `final.json` of the scratch job directory, and the offsets of the sources:
    #: the same command removes the offsets.
    "bootstrap.read",
    #: The offsets of one query removed, those of others not, and no savepoint: the same command
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
