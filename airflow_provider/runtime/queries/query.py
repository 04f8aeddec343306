"""Query definition: one streaming query as the job declares it.

A query some of whose sources end, or fall silent, while others go on has markers for its sources.
The sources that end do so together, when the query has caught up with what was there as the run's
first attempt read it; that is recorded before any of them is announced as ended.

==================================  ================================================================
a crash                             the next attempt
==================================  ================================================================
while the query catches up          catches up, with what was there (fixed_ends.py)
with the record put                 reads none of them, and announces them as ended
with markers put                    the same; two markers say what one says
==================================  ================================================================
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.api.sinks import LocatedSink, ObservedSink
from airflow_provider.runtime.checkpoint.inventory import provider_name
from airflow_provider.runtime.checkpoint.topology import Topology
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.errors.ways_out import words
from airflow_provider.runtime.jobdir.datasets import FILE_FORMATS, datasets_of
from airflow_provider.runtime.jobdir.end_of_input import is_marker, marker_name
from airflow_provider.runtime.queries.canonical_plan import fingerprint_of
from airflow_provider.runtime.queries.output_locations import location_key
from airflow_provider.runtime.queries.plan import (
    asked_state_provider,
    is_streaming,
    source_names,
    sources_under_a_watermark,
)
from airflow_provider.runtime.queries.source import UNKNOWN_FORMAT, SourceBinding, SourceDefinition
from airflow_provider.runtime.queries.stateful_plan import plan_operators, shapes_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import DataFrame

    from airflow_provider.runtime.api.sinks import Dataset, NamedSink, OnePhaseSink, Sink
    from airflow_provider.runtime.checkpoint.topology import Fingerprint, OperatorShape
    from airflow_provider.runtime.jobdir.end_of_input import EndedSources
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.queries.stateful_plan import PlannedOperator

log = logging.getLogger(__name__)

_BY_CLOCK: Final = ("ProcessingTimeTimeout", ":ProcessingTime")


@dataclasses.dataclass(frozen=True)
class QueryDefinition:
    """What ``ctx.write`` was called with.

    Attributes:
        sinks: the two-phase sinks that share its epochs; none when it has a native one.
        native: Spark's own sink, or None.
        sources: the query's sources in the order in which Spark logs their offsets.
        operators: names of its stateful operators in plan order; empty for ``0``, ``1``, …
        operations: Spark's names of what its plan does.
        takes_over: a checkpoint of plain Spark's that it goes on from when its job begins, or None.
    """

    name: str
    df: DataFrame
    sinks: tuple[Sink, ...]
    output_mode: str
    operators: tuple[str, ...]
    sources: tuple[SourceDefinition, ...]
    native: OnePhaseSink | None = None
    operations: tuple[str, ...] = ()
    takes_over: str | None = None

    @property
    def goes_by_clock(self) -> bool:
        """Whether time alone may produce output: it has timers or timeouts in processing time."""
        return any(each.endswith(_BY_CLOCK) for each in self.operations)

    @property
    def sink_names(self) -> tuple[str, ...]:
        """Return the names of all its sinks."""
        return tuple(sink.name for sink in self.sinks) or (
            (self.native.name,) if self.native else ()
        )

    @property
    def written_places(self) -> set[str]:
        """Return the folders that its sinks write, as :func:`location_key` names them."""
        sinks = [*self.sinks, *([self.native] if self.native is not None else [])]
        found = [sink.location for sink in sinks if isinstance(sink, LocatedSink)]
        return {location_key(location) for location in found if location is not None}

    def datasets(self) -> dict[str, Any]:
        """Return the datasets that it reads and writes, by source and sink, as plain JSON values.

        Sources and sinks without a location have none; nothing depends on them.
        """
        sinks: list[Sink | OnePhaseSink] = [*self.sinks]
        if self.native is not None:
            sinks.append(self.native)
        return {
            "sources": {
                source.name: _plain(datasets_of(source.format, source.path, source.options))
                for source in self._sources_of_rows
            },
            "sinks": {sink.name: _plain(_datasets_of_sink(sink)) for sink in sinks},
        }

    @property
    def bounded(self) -> bool:
        """Whether all its sources end."""
        return all(source.bounded for source in self.sources)

    @property
    def ending(self) -> tuple[str, ...]:
        """Return the sources that end while others of the query continue (a mixed query).

        A source that another query of the job writes ends with that query.
        """
        if self.bounded:
            return ()
        own = [source for source in self._sources_of_rows if not source.is_internal]
        return tuple(dict.fromkeys(source.name for source in own if source.bounded))

    @property
    def ended(self) -> tuple[str, ...]:
        """Return the sources that have ended, and are read no more."""
        return tuple(dict.fromkeys(s.name for s in self._sources_of_rows if s.ended))

    @property
    def yet_to_end(self) -> tuple[str, ...]:
        """Return the sources that end while others continue, and have not ended yet."""
        return tuple(name for name in self.ending if name not in self.ended)

    @property
    def marked(self) -> tuple[str, ...]:
        """Return the sources that need markers: those with a timeout, and all if some end."""
        is_mixed = bool(self.ending)
        named = [
            source.name
            for source in self._sources_of_rows
            if source.watermark is not None and (is_mixed or source.idle_timeout_s is not None)
        ]
        return tuple(dict.fromkeys(named))

    @property
    def _sources_of_rows(self) -> tuple[SourceDefinition, ...]:
        return tuple(source for source in self.sources if not is_marker(source.name))

    @functools.cached_property
    def topology(self) -> Topology:
        """The query's sources and operators, from a plan of the stream, which takes a moment."""
        names = tuple(source.name for source in self.sources)
        if not is_streaming(self.df):
            return Topology(sources=names, operators=())  # a batch job keeps no state
        provider = asked_state_provider(self.df)
        return Topology(
            sources=names,
            operators=(
                None
                if self._planned is None
                else name_operators(shapes_of(self._planned), self.operators)
            ),
            provider=provider_name(provider) if provider is not None else None,
        )

    def planning_error(self) -> Exception | None:
        """Return why Spark cannot plan the query as a stream; None when it can."""
        from pyspark.errors import PySparkException

        try:
            _ = self._planned
        except PySparkException as error:
            return error
        return None

    @functools.cached_property
    def _planned(self) -> tuple[PlannedOperator, ...] | None:
        names = tuple(source.name for source in self.sources)
        return plan_operators(self.df, self.output_mode, names)

    @functools.cached_property
    def fingerprint(self) -> Fingerprint | None:
        """The query's fingerprint; None when Spark's plan cannot be read."""
        if not is_streaming(self.df):
            return None
        return fingerprint_of(
            self.df,
            output_mode=self.output_mode,
            sources=[source.name for source in self.sources],
            planned=self._planned,
        )


def name_operators(
    found: Sequence[OperatorShape], names: Sequence[str]
) -> tuple[OperatorShape, ...]:
    """Return stateful operators, in plan order, with the job's names for them."""
    padded = [*names[: len(found)], *[None] * (len(found) - len(names))]
    return tuple(shape._replace(name=name) for shape, name in zip(found, padded, strict=True))


def sources_of(df: DataFrame, known: Sequence[SourceDefinition]) -> tuple[SourceDefinition, ...]:
    """Return the sources that *df* reads, in plan order.

    A stream that the job opened without ``ctx.read`` counts as an unbounded source.
    """
    by_name = {source.name: source for source in known}
    by_name |= {marker_name(s.name): s.of_its_markers() for s in known if s.markers is not None}
    found = []
    for position, name in enumerate(source_names(df)):
        source = by_name.get(name) if name is not None else None
        found.append(source or _foreign(position))
    return tuple(found)


def upstream_of(queries: Sequence[QueryDefinition]) -> dict[str, tuple[str, ...]]:
    """Return for each query the queries of the job whose output it reads, in the job's order.

    A source reads what a sink writes when it names the same folder, or one inside of it.

    Raises:
        ConfigError: queries wait for each other, or one for itself.
    """
    upstream = {query.name: found for query in queries if (found := _writers_for(query, queries))}
    ended: set[str] = set()
    while ended != {query.name for query in queries}:
        ready = {q.name for q in queries if set(upstream.get(q.name, ())) <= ended}
        if ready == ended:
            circle = ", ".join(repr(q.name) for q in queries if q.name not in ended)
            msg = f"queries {circle} read what they write, in a circle: none of them would end"
            raise ConfigError(msg)
        ended = ready
    return upstream


def ending_alone(queries: Sequence[QueryDefinition]) -> frozenset[str]:
    """Return the queries that end while others continue; none when all of them end."""
    upstream = upstream_of(queries)
    found: set[str] = set()
    for _ in queries:  # each round adds at least the next in a chain
        found |= {
            q.name for q in queries if q.bounded and found.issuperset(upstream.get(q.name, ()))
        }
    return frozenset(found) if len(found) < len(queries) else frozenset()


def _writers_for(query: QueryDefinition, queries: Sequence[QueryDefinition]) -> tuple[str, ...]:
    read = [f"{location_key(s.path)}/" for s in query.sources if s.path is not None]
    return tuple(
        other.name
        for other in queries
        if any(place.startswith(f"{w}/") for place in read for w in other.written_places)
    )


def _datasets_of_sink(sink: NamedSink) -> Sequence[Dataset]:
    try:
        return sink.datasets() if isinstance(sink, ObservedSink) else ()
    except Exception:
        log.warning("%s: it is not known where it writes", sink.name, exc_info=True)
        return ()


def _plain(datasets: Iterable[Dataset]) -> list[dict[str, str]]:
    return [dataset._asdict() for dataset in datasets]


def _foreign(position: int) -> SourceDefinition:
    return SourceDefinition(
        name=f"source-{position}",
        format=UNKNOWN_FORMAT,
        path=None,
        schema=None,
        options={},
        bounded=False,
        watermark=None,
    )


Declare = Callable[[Mapping[str, SourceBinding]], "Sequence[QueryDefinition]"]


def check_sources(query: QueryDefinition) -> None:
    """Refuse a query whose sources cannot end, or fall silent, as declared; it has no markers yet.

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
    """Return the query with markers, and without its ended sources.

    Args:
        query: the query.
        directory: the job directory, which has the markers.
        end: the record of the ended sources; None when there is none.
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
