"""Recovery of a query's epochs at a start: decided from the records and Spark's log alone.

=====================================  ==========================================================
the driver died                        the next start
=====================================  ==========================================================
while staging                          Spark runs the batch again; what was staged is removed
before Spark's commit                  the same; the pre-commit waits, because the Spark of a
                                       driver presumed dead may still commit the batch
before or while publishing             publishes it again
before the record of the publication   publishes it again, which changes nothing, and records it
=====================================  ==========================================================
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from airflow_provider.runtime.api.sinks import MarkedSink
from airflow_provider.runtime.errors import CheckpointError
from airflow_provider.runtime.errors.fixes import FROM_SCRATCH
from airflow_provider.runtime.jobdir.epochs import EpochRecords, query_ids

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.jobdir.epochs import EpochListing
    from airflow_provider.runtime.jobdir.lease import Lease


Precommit = tuple[int, int]  # epoch and token


@dataclasses.dataclass(frozen=True)
class Recovery:
    """The pre-commits, by their fate; each of ``(epoch, token)``, ascending.

    Attributes:
        waiting: the epoch is not published. When Spark has committed its batch, the highest token
            counts; until then a late commit may still need any of them.
        obsolete: another driver's staging of the same epoch was published.
        recorded: published and recorded; only the record of the pre-commit is left.
    """

    waiting: tuple[Precommit, ...] = ()
    obsolete: tuple[Precommit, ...] = ()
    recorded: tuple[Precommit, ...] = ()


def plan_recovery(found: EpochListing, published_token: Mapping[int, int | None]) -> Recovery:
    """Sort the pre-commits; *published_token* has the staging that each epoch has published."""
    waiting: list[Precommit] = []
    obsolete: list[Precommit] = []
    recorded: list[Precommit] = []
    for epoch, tokens in found.precommitted.items():
        for token in tokens:
            if epoch not in published_token:
                waiting.append((epoch, token))
            elif token == published_token[epoch]:
                recorded.append((epoch, token))
            else:
                obsolete.append((epoch, token))
    return Recovery(tuple(waiting), tuple(obsolete), tuple(recorded))


def check_complete(found: EpochListing, last_commit: int, *, where: str, log: str) -> int:
    """Refuse records that contradict Spark's commit log; *where* and *log* are named in errors."""
    _check_not_behind(found.newest, last_commit, log)
    folded = [first for first, _ in (*found.folded, *found.packed)]
    begin = max(min([last_commit, *folded, *found.published, *found.precommitted]), 0)
    missing = found.unpublished(begin, last_commit)
    lost = [epoch for epoch in missing if epoch not in found.precommitted]
    if lost:
        raise unrecorded(lost[0], where, log)
    return min([last_commit + 1, *missing]) - 1


def check_same_query(storage: Storage, query_id: str | None, log: str) -> None:
    """Refuse a checkpoint of another query than the one whose epochs are published."""
    for other in query_ids(storage):
        records = EpochRecords(storage, other)
        found = records.find()
        is_settled = found.reverted_from is not None or found.is_abandoned
        if other == query_id or is_settled or not found.published:
            continue
        raise CheckpointError(
            f"{records.url}: epochs of query id {other} are published, but the checkpoint {log} is "
            f"of {query_id or 'no query yet'}; it was removed or replaced by hand, and running on "
            f"would publish the same rows again: restore it, or {FROM_SCRATCH}"
        )


def _check_not_behind(published: int, last_commit: int, log: str) -> None:
    if published > last_commit:
        raise CheckpointError(
            f"{log}: epoch {published} is published, but Spark's log ends with batch {last_commit};"
            " the checkpoint was removed or rolled back by hand, and running on would publish the "
            f"same rows again: restore it, or {FROM_SCRATCH}"
        )


def check_none_left(found: EpochListing, last_commit: int, *, where: str, sink: str) -> None:
    """Refuse one of Spark's own sinks while epochs of others wait: nothing would publish them."""
    left = [e for e in found.precommitted if e <= last_commit and not found.is_published(e)]
    if left:
        raise CheckpointError(
            f"{where}: epoch {min(left)} is committed, and other sinks than {sink} have not "
            "published it yet; let the job write where it did until its run has ended"
        )


def unrecorded(epoch: int, where: str, log: str) -> CheckpointError:
    """Return the error for a batch whose rows are not recorded."""
    msg = (
        f"{log}: batch {epoch} is committed, but what it wrote is not recorded in {where}; another "
        "program ran the query on this checkpoint, or the record was removed by hand: restore a "
        f"savepoint from before it, or {FROM_SCRATCH}"
    )
    return CheckpointError(msg)


def check_not_ahead(sinks: Iterable[object], query_id: str, known: int) -> None:
    """Refuse to continue where a sink has epochs that the job directory does not know."""
    for sink in sinks:
        if not isinstance(sink, MarkedSink) or (last := sink.last_epoch(query_id)) <= known:
            continue
        ends = f"ends with epoch {known}" if known >= 0 else "has no epoch"
        raise CheckpointError(
            f"{sink.name}: epoch {last} of query id {query_id} is published, and the job directory "
            f"{ends}: it is an older copy, such as a backup, and running on would write rows twice "
            f"or leave them out. Put the newer directory back, or {FROM_SCRATCH}"
        )


class QueryFence:
    """A driver's lease as the sinks of one query see it.

    Another query that is started again takes the driver's next token, and not this one.
    """

    def __init__(self, lease: Lease, token: int) -> None:
        self._lease = lease
        self.token = token

    def check(self) -> None:
        """Stop here unless the driver may still commit."""
        self._lease.check()
