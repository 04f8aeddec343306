"""Finished sources: queries some of whose sources end or are idle while others go on.

Such a query is declared by itself: its sources have markers of their own, and those that have ended
are read no more. The sources of a query end together, when it has caught up with what was there as
the run's first attempt read it; that is recorded before any of them is announced as ended.

==================================  ================================================================
a crash                             the next attempt
==================================  ================================================================
while the query catches up          catches up, with what was there (fixed_ends.py)
with the record put                 reads none of them, and announces them as ended
with markers put                    the same; two markers say what one says
==================================  ================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.errors.ways_out import words
from airflow_provider.runtime.jobdir.read_range import FILE_FORMATS
from airflow_provider.runtime.queries.plan import sources_under_a_watermark
from airflow_provider.runtime.queries.source import SourceBinding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider.runtime.jobdir.end_of_input import EndedSources
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.queries.query import QueryDefinition

Declare = Callable[[Mapping[str, SourceBinding]], "Sequence[QueryDefinition]"]


def check_sources(query: QueryDefinition) -> None:
    """Refuse a query whose sources cannot end, or fall silent, as they say they do.

    Args:
        query: as the job declares it, without markers.

    Raises:
        ConfigError: the message names the source and the way out.
    """
    by_name = {source.name: source for source in query.sources}
    ending = query.ending
    for name in ending:
        if by_name[name].format.lower() not in FILE_FORMATS:
            msg = (
                f"query {query.name!r}: source {name!r} ({by_name[name].format}) is bounded beside "
                "sources that are not, and only files can end there; keep it in files, or "
                f"{words()['ONE_END']}"
            )
            raise ConfigError(msg)
    unmarked = [name for name in ending if by_name[name].watermark is None]
    if unmarked and (late := sorted(sources_under_a_watermark(query.df).intersection(unmarked))):
        msg = (
            f"query {query.name!r}: the watermark of source {late[0]!r} would stop when it "
            f"has ended, because it is set behind the source; {words()['MARK_SOURCE']}"
        )
        raise ConfigError(msg)
    silent = [source.name for source in query.sources if source.idle_timeout_s is not None]
    if silent and query.native is not None:
        msg = (
            f"query {query.name!r}: nothing tells whether source {silent[0]!r} is idle when "
            f"Spark's own sink {query.native.name} takes the output; use another sink, or leave "
            "idle_timeout out"
        )
        raise ConfigError(msg)


def bind(
    query: QueryDefinition, directory: JobDirectory, end: EndedSources | None, declare: Declare
) -> QueryDefinition:
    """Return the query with markers, and without reading what has ended.

    Args:
        query: the query.
        directory: the job directory, where markers lie.
        end: the record of those sources that are read no more; None when there are none.
        declare: calls the job's function.

    Raises:
        ConfigError: the function declares something else than before.
    """
    ended = set(end.sources) if end is not None else set()
    is_bound = all(s.markers is not None for s in query.sources if s.name in query.marked)
    if is_bound and set(query.ended) == ended:
        return query
    bindings = {
        name: SourceBinding(
            markers=directory.markers(query.name, name) if name in query.marked else None,
            ended=name in ended,
        )
        for name in {*query.marked, *ended}
    }
    for found in declare(bindings):
        if found.name == query.name:
            return found
    msg = (
        f"query {query.name!r}: the job's function did not write it when it was called again; it "
        "must declare the same whenever it is called"
    )
    raise ConfigError(msg)
