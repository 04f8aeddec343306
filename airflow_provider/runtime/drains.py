"""Which queries and sources of a job have read their last row: put down before anything follows.

From the intent on no attempt of any run reads that query's input again: rows that have arrived
since would come after MAX_WATERMARK, and be dropped as late. An intent is of one query id, so it
ends with the checkpoint that it is about: a restored or rewound query has another id. The same
holds for the sources of a query that have ended while others of it go on.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from airflow_provider.runtime import failpoints
from airflow_provider.runtime.checkpoint import CheckpointLogs
from airflow_provider.runtime.clock import to_iso
from airflow_provider.runtime.storage import Document

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence

    from airflow_provider.runtime.jobdir import JobDirectory


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrainIntent(Document):
    """``queries/<query>/drains/<query id>.json``: from here the query only drains.

    Attributes:
        run_id: the run that has read its last row.
        batch: the last batch that read input, -1 for none.
    """

    query_id: str
    run_id: str
    batch: int
    at: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class EndedSources(Document):
    """``queries/<query>/ended/<query id>.json``: from here the query reads these no more.

    Attributes:
        run_id: the run that has read their last rows.
        sources: all those of the query's that end.
        batch: the last batch that read any of them, -1 for none.
    """

    query_id: str
    run_id: str
    sources: list[str]
    batch: int
    at: str


def ended_sources(directory: JobDirectory, query: str) -> tuple[str, ...]:
    """Return the sources that have ended while others of the query, as it is now, go on."""
    query_id = CheckpointLogs(directory.checkpoint(query)).query_id()
    if query_id is None:
        return ()
    ended = EndedSources.read(directory.storage, _ended_path(query, query_id))
    if ended is None or directory.run(ended.run_id).rewound() is not None:
        return ()
    return tuple(ended.sources)


def end_sources(
    directory: JobDirectory, query: str, sources: Sequence[str], *, run_id: str, now: dt.datetime
) -> None:
    """Put down that these have ended, at the last batch. Idempotent: the first record stays."""
    logs = CheckpointLogs(directory.checkpoint(query))
    ended = EndedSources(
        query_id=str(logs.query_id()),
        run_id=run_id,
        sources=list(sources),
        batch=logs.position().last_commit,
        at=to_iso(now),
    )
    put_ended_sources(directory, query, ended)
    failpoints.hit("sources.ended")


def put_ended_sources(directory: JobDirectory, query: str, ended: EndedSources) -> None:
    """Store the record. Idempotent: the first one stays."""
    ended.put_if_absent(directory.storage, _ended_path(query, ended.query_id))


def drain_intent(directory: JobDirectory, query: str) -> DrainIntent | None:
    """Return the intent to drain the query as it is now; None while it reads."""
    query_id = CheckpointLogs(directory.checkpoint(query)).query_id()
    if query_id is None:
        return None
    intent = DrainIntent.read(directory.storage, _path(query, query_id))
    if intent is None or directory.run(intent.run_id).rewound() is not None:
        return None
    return intent


def begin_drain(directory: JobDirectory, query: str, *, run_id: str, now: dt.datetime) -> None:
    """Put down that the query has read its last row. Idempotent: the first intent stays."""
    logs = CheckpointLogs(directory.checkpoint(query))
    intent = DrainIntent(
        query_id=str(logs.query_id()),
        run_id=run_id,
        batch=logs.position().last_commit,
        at=to_iso(now),
    )
    put_drain_intent(directory, query, intent)
    failpoints.hit("drain.intended")


def put_drain_intent(directory: JobDirectory, query: str, intent: DrainIntent) -> None:
    """Store the intent. Idempotent: the first one stays."""
    intent.put_if_absent(directory.storage, _path(query, intent.query_id))


def draining_run(directory: JobDirectory) -> str | None:
    """Return the run that has begun to drain the whole job, finished or not; None if none has.

    While some query still reads, another run may go on with it.
    """
    intents = [drain_intent(directory, query) for query in directory.query_names()]
    known = [intent for intent in intents if intent is not None]
    if not known or len(known) < len(intents):
        return None
    return max(known, key=lambda intent: intent.at).run_id


def _path(query: str, query_id: str) -> str:
    return f"queries/{query}/drains/{query_id}.json"


def _ended_path(query: str, query_id: str) -> str:
    return f"queries/{query}/ended/{query_id}.json"
