"""Folding of the journal: old operations become one document, which has what still counts of them.

=====================================  ============================================================
a death                                the next driver
=====================================  ============================================================
before ``1-<n>.json``                  folds
after it                               finds operations up to *n* folded; removes their documents
                                       with the next fold
=====================================  ============================================================

Two that fold the same operations, since one was paused, put the same document. One that is late
puts an older document, which a newer one has replaced, and removes what is folded there, too.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.errors import SparkStreamError
from airflow_provider.runtime.jobdir.checkpoint_locations import made_locations
from airflow_provider.runtime.jobdir.journal import (
    FoldedOperations,
    Journal,
    SetBack,
    folded_path,
    old_documents,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.jobdir.journal import OperationRecord

log = logging.getLogger(__name__)

KEEP_OPERATIONS: Final = 50
"""The newest ones keep their documents, and as many more until they are folded."""
KEEP_CORRECTIONS: Final = 200
"""Of folded ones: a watcher of events that was paused for longer misses the older ones."""


def fold_operations(job: Storage, is_start: Callable[[OperationRecord], bool]) -> None:
    """Fold old operations; never raises for what is left.

    The caller holds the lease of a job with no open restore. *is_start* tells a restore with which
    the job began from a rewind.

    Crash safety: calling it again completes it. Idempotent.
    """
    try:
        _fold_old(job, is_start)
    except (OSError, SparkStreamError) as error:  # this start does not need it
        log.warning("%s: old operations could not be folded: %s", job.url, error)


def _fold_old(job: Storage, is_start: Callable[[OperationRecord], bool]) -> None:
    journal = Journal(job)
    old = journal.numbers[KEEP_OPERATIONS:]
    if len(old) < KEEP_OPERATIONS:
        return
    last = journal.last_restore()
    if last is not None and last.is_open:
        return
    folded = fold(journal, old[0], made_locations(job), is_start)
    folded.put_if_absent(job, folded_path(folded.through))
    failpoints.hit("operations.folded")
    for path in old_documents(job, folded.through):
        job.delete(path)


def fold(
    journal: Journal,
    through: int,
    there: Iterable[int],
    is_start: Callable[[OperationRecord], bool],
) -> FoldedOperations:
    """Return what is left of the operations up to one.

    Args:
        journal: all operations.
        through: the newest that is folded.
        there: the operations of which a query has a location.
        is_start: whether a restore is no rewind.
    """
    restores = [each for each in journal.restores() if each.number <= through]
    starts = {
        (each.plan.savepoint, each.plan.taken): each
        for each in reversed([*filter(is_start, restores), *journal.folded.starts])
    }
    made = {str(number): journal.made(number) for number in sorted(there) if number <= through}
    return FoldedOperations(
        through=through,
        changes={
            name: old
            for name, changes in journal.changes().items()
            if (old := meaningful(each for each in changes if each.number <= through))
        },
        last=restores[0] if restores else journal.folded.last,
        starts=sorted(starts.values(), key=lambda each: -each.number),
        made={number: each for number, each in made.items() if each is not None},
        corrections=_corrections(journal, through) or None,
    )


def _corrections(journal: Journal, through: int) -> list[OperationRecord]:
    return [
        dataclasses.replace(each, restore=None, relocates=[], locations={})
        for each in journal.corrections()
        if each.number <= through
    ][-KEEP_CORRECTIONS:]


def meaningful(changes: Iterable[SetBack]) -> list[SetBack]:
    """Return the changes of a query, newest first, without those that a later one outdoes.

    A savepoint from before a change may be refused if it was taken behind its batch, or if output
    was kept: a later change to the same batch or an earlier one says so as well.
    """
    left: list[SetBack] = []
    for change in changes:
        if not any(_says_as_much(each, change) for each in left):
            left.append(change)
    return left


def _says_as_much(later: SetBack, change: SetBack) -> bool:
    return (
        later.batch <= change.batch
        and later.keeps_output >= change.keeps_output
        and later.has_ended >= change.has_ended
    )
