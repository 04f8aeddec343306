"""The guard of a query's start: what its sources read is still what its positions are of."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

from airflow_provider.runtime.api.sources import IdentifiedSource
from airflow_provider.runtime.checkpoint.drain_step import is_of_drain
from airflow_provider.runtime.checkpoint.source_end import NO_OFFSET
from airflow_provider.runtime.errors import LostInputError
from airflow_provider.runtime.errors.fixes import FROM_SCRATCH
from airflow_provider.runtime.jobdir.source_identities import (
    find_replaced,
    keep_identities,
    kept_identities,
    with_found,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider.runtime.checkpoint.drain_step import LogPosition
    from airflow_provider.runtime.checkpoint.logs import CommitLog
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.jobdir.source_identities import Identities, Replaced
    from airflow_provider.runtime.queries.running import Stream

log = logging.getLogger(__name__)


@contextlib.contextmanager
def identified(directory: JobDirectory, query: Stream) -> Iterator[None]:
    """Record what the sources of a query read that is started in the block.

    Sources that tell no identities, or have ended, are not asked, and neither are those of a query
    that drains. A query without others costs no request, and no look at its logs.

    Raises:
        LostInputError: something was replaced since the query has read it; nothing is recorded.
        ConfigError, OutageError: a source cannot be asked.
    """
    asked = _asked(query)
    before = query.logs.position() if asked else None
    if before is None or is_of_drain(before.watermark_ms):
        yield
        return
    now = {name: source.identities(name) for name, source in asked.items()}
    known = _with_position(query.logs, before, query, kept_identities(directory, query.name))
    for replaced in find_replaced(known, now):
        _check(query, asked[replaced.source], replaced)
    found = with_found(known, now)
    has_id = query.logs.query_id() is not None
    if has_id:
        keep_identities(directory, query.name, found, before=before)
    yield
    if not has_id:
        keep_identities(directory, query.name, found, before=before)


def _asked(query: Stream) -> dict[str, IdentifiedSource]:
    return {
        each.name: each.source
        for each in query.definition.sources
        if isinstance(each.source, IdentifiedSource) and not each.ended
    }


def _with_position(
    logs: CommitLog, before: LogPosition, query: Stream, known: Identities
) -> Identities:
    """Leave out the sources that have no position, such as those that a savepoint has reset."""
    if before.last_offsets < 0 or not known:
        return {}
    entry = logs.offsets(before.last_offsets)
    if entry.has_spark_ids:  # which say nothing here
        return known
    names = [source.name for source in query.definition.sources]
    lines = zip(names, entry.lines_of(names), strict=False)
    placed = {name for name, line in lines if line != NO_OFFSET}
    return {name: found for name, found in known.items() if name in placed}


def _check(query: Stream, source: IdentifiedSource, replaced: Replaced) -> None:
    name, thing, before, now = replaced
    why = source.why_not_continue(thing, before, now)
    if why is None:
        log.warning(
            "query=%s source=%s: DATA LOSS: %s is another one than the query has read (%s before, "
            "%s now), and the options accept that: what it has before the query's position is not "
            "read",
            query.name,
            name,
            thing,
            before,
            now,
        )
        return
    raise LostInputError(
        f"source {name!r} of query {query.name!r}: {why}. To read it from its beginning, begin "
        "from a savepoint in which 'spark-stream state rewrite SAVEPOINT --to URL --reset-source "
        f"{name}' has reset it, or {FROM_SCRATCH}"
    )
