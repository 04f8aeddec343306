"""Which queries and sources of a job have read their last row: put down before anything follows.

From the intent on no attempt of any run reads that query's input again: rows that have arrived
since would come after MAX_WATERMARK, and be dropped as late. An intent is of one query id, so it
ends with the checkpoint that it is about: a restored or rewound query has another id. The same
holds for the sources of a query that have ended while others of it go on.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from airflow_provider.runtime.checkpoint import CheckpointLogs
from airflow_provider.runtime.storage import Document

if TYPE_CHECKING:
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
        reached: latest event time in milliseconds of those sources that go on, as far as it is
            known.
    """

    query_id: str
    run_id: str
    sources: list[str]
    batch: int
    at: str
    reached: dict[str, int] = dataclasses.field(default_factory=dict)


def ended_sources(directory: JobDirectory, query: str) -> EndedSources | None:
    """Return what has ended of the query, as it is now, while other sources go on; None if none."""
    query_id = CheckpointLogs(directory.checkpoint(query)).query_id()
    if query_id is None:
        return None
    ended = EndedSources.read(directory.storage, _ended_path(query, query_id))
    if ended is None or directory.run(ended.run_id).rewound() is not None:
        return None
    return ended


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
