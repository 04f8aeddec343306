"""What a start has to do for a query's epochs: decided from the records and Spark's log alone.

=====================================  ==========================================================
the driver died                        the next start
=====================================  ==========================================================
while staging                          Spark runs the batch again; what was staged is removed
before Spark's commit                  the same; the pre-commit waits, because the Spark of a
                                       driver taken for dead may still commit the batch
before or while publishing             publishes it again
before the record of the publication   publishes it again, which changes nothing, and records it
=====================================  ==========================================================
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from airflow_provider.runtime.errors import CheckpointError

if TYPE_CHECKING:
    from airflow_provider.runtime.sinks.records import Found, HistoryRecord

Precommit = tuple[int, int]  # epoch and token


@dataclasses.dataclass(frozen=True)
class Recovery:
    """The pre-commits, by what becomes of them; each of ``(epoch, token)``, ascending.

    Attributes:
        publish: Spark has committed the batch.
        waiting: Spark has not; the batch is run again.
        obsolete: another driver's staging of the same epoch counts instead.
        recorded: published and recorded; only the record of the pre-commit is left.
    """

    publish: tuple[Precommit, ...] = ()
    waiting: tuple[Precommit, ...] = ()
    obsolete: tuple[Precommit, ...] = ()
    recorded: tuple[Precommit, ...] = ()


def plan_recovery(
    found: Found, last_commit: int, *, published_token: dict[int, int | None]
) -> Recovery:
    """Decide about every pre-commit that was found.

    Args:
        found: the records.
        last_commit: the last batch in Spark's commit log; -1 when there is none.
        published_token: for each published epoch that has pre-commits, whose staging it was.
    """
    publish: list[Precommit] = []
    waiting: list[Precommit] = []
    obsolete: list[Precommit] = []
    recorded: list[Precommit] = []
    published = set(found.published)
    for epoch, tokens in found.precommitted.items():
        if epoch in published:
            for token in tokens:
                same = token == published_token[epoch]
                (recorded if same else obsolete).append((epoch, token))
            continue
        # Records are put once under their own token, so a driver that was overtaken cannot change
        # which one is the highest; and it publishes only a batch whose commit it saw before its
        # lease was taken, which the driver after it sees too and does not run again.
        (publish if epoch <= last_commit else waiting).append((epoch, tokens[-1]))
        obsolete += [(epoch, token) for token in tokens[:-1]]
    return Recovery(tuple(publish), tuple(waiting), tuple(obsolete), tuple(recorded))


def check_complete(
    found: Found, history: HistoryRecord, last_commit: int, *, where: str, log: str
) -> None:
    """Refuse records that contradict Spark's commit log.

    Args:
        found: the records.
        history: what is left of older ones.
        last_commit: the last batch in Spark's commit log; -1 when there is none.
        where: the records' address, named in errors.
        log: the checkpoint's.

    Raises:
        CheckpointError: an epoch is published that Spark has not committed, or the last one that it
            has committed is recorded nowhere.
    """
    newest = max((history.last_epoch, *found.published))
    if newest > last_commit:
        msg = (
            f"{log}: epoch {newest} is published, but Spark's log ends with batch {last_commit}; "
            "the checkpoint was removed or rolled back by hand, and running on would publish the "
            "same rows again: restore it, or start a new job directory and output"
        )
        raise CheckpointError(msg)
    first = newest + 1 if newest >= 0 else max(min([last_commit, *found.precommitted]), 0)
    missing = [e for e in range(first, last_commit + 1) if e not in found.precommitted]
    if missing:
        msg = (
            f"{log}: batch {missing[0]} is committed, but what it wrote is not recorded in "
            f"{where}; another program ran the query on this checkpoint"
        )
        raise CheckpointError(msg)
