"""Query definition: one streaming query as the job declares it."""

from __future__ import annotations

import dataclasses
import functools
import logging
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.api.sinks import LocatedSink, ObservedSink
from airflow_provider.runtime.api.sources import ObservedSource
from airflow_provider.runtime.base.extensions import CONNECTORS, FINGERPRINTS, load_known
from airflow_provider.runtime.checkpoint.inventory import provider_name
from airflow_provider.runtime.checkpoint.operator_kinds import operator_title
from airflow_provider.runtime.checkpoint.topology import Topology
from airflow_provider.runtime.errors import ConfigError, NotAStreamError, SparkStreamError
from airflow_provider.runtime.errors.fixes import words
from airflow_provider.runtime.failures.classify import classify, refusal_of
from airflow_provider.runtime.jobdir.end_of_input import is_marker, marker_name
from airflow_provider.runtime.queries.known_bugs import bugs_of
from airflow_provider.runtime.queries.named_sources import why_unnamed
from airflow_provider.runtime.queries.output_locations import location_key
from airflow_provider.runtime.queries.plan import (
    analyzed,
    analyzed_json,
    asked_state_provider,
    check_supported,
    is_streaming,
    named_leaves,
    source_names,
    sources_under_a_watermark,
)
from airflow_provider.runtime.queries.plan_steps import Shape, steps_of
from airflow_provider.runtime.queries.planned_operators import plan_operators, shapes_of
from airflow_provider.runtime.queries.spark_options import refused_reads
from airflow_provider.runtime.sources.declared import ForeignSource, SourceBinding, SourceDefinition
from airflow_provider.runtime.sources.spark import is_registered

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from airflow_provider.runtime.api.sinks import Dataset, NamedSink, OnePhaseSink, Sink
    from airflow_provider.runtime.checkpoint.topology import Fingerprint, OperatorShape
    from airflow_provider.runtime.jobdir.end_of_input import EndedSources
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.queries.known_bugs import KnownBug
    from airflow_provider.runtime.queries.planned_operators import PlannedOperator
    from airflow_provider.runtime.queries.taps import Tap


log = logging.getLogger(__name__)

_FILTER: Final = "Filter"
_ROW_BY_ROW: Final = frozenset(
    {
        *("CollectMetrics", "EventTimeWatermark", "LogicalRelation", "Project", "SubqueryAlias"),
        *("DataSourceV2Relation", "StreamingRelation", "StreamingRelationV2"),
    }
)
"""Operations that give one row for each row."""
_BY_CLOCK: Final = ("ProcessingTimeTimeout", ":ProcessingTime")


@dataclasses.dataclass(frozen=True)
class QueryDefinition:
    """What ``ctx.write`` was called with.

    Attributes:
        sinks: with that for quarantined rows.
        split: the tap whose rows, with those that it takes out, are *df*: they come from a stateful
            operator, which runs once a batch.
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
    quarantine: Sink | None = None
    taps: tuple[Tap, ...] = ()
    split: Tap | None = None

    @property
    def goes_by_clock(self) -> bool:
        """Whether time alone may produce output: it has timers or timeouts in processing time."""
        return any(each.endswith(_BY_CLOCK) for each in self.operations)

    @property
    def all_sinks(self) -> tuple[Sink | OnePhaseSink, ...]:
        return self.sinks if self.native is None else (*self.sinks, self.native)

    @property
    def output_sinks(self) -> tuple[Sink | OnePhaseSink, ...]:
        """Return the sinks without that for quarantined rows."""
        return tuple(sink for sink in self.all_sinks if sink is not self.quarantine)

    def operator_name(self, index: int) -> str:
        """Return the job's name of a stateful operator, by its position in the plan."""
        return self.operators[index] if index < len(self.operators) else str(index)

    @property
    def sink_names(self) -> tuple[str, ...]:
        return tuple(sink.name for sink in self.all_sinks)

    @property
    def written_locations(self) -> set[str]:
        found = [sink.location for sink in self.all_sinks if isinstance(sink, LocatedSink)]
        return {location_key(location) for location in found if location is not None}

    def datasets(self) -> dict[str, Any]:
        """Return the datasets that it reads and writes, by source and sink, as JSON values."""
        return {
            "sources": {
                source.name: _plain(_datasets_of_source(source)) for source in self._sources_of_rows
            },
            "sinks": {sink.name: _plain(_datasets_of_sink(sink)) for sink in self.all_sinks},
        }

    def scans_of(self, source: str) -> tuple[str, ...] | None:
        """Return a source with that of its corrected records; None if one is read several times."""
        names = [each.name for each in self.sources]
        also = next((each.also for each in self.sources if each.name == source), None)
        scans = (source,) if also is None else (source, also.name)
        return scans if all(names.count(name) <= 1 for name in scans) else None

    @functools.cached_property
    def is_row_by_row(self) -> bool:
        """Whether each row that is read, and not taken out, is one row of the output."""
        if not _ROW_BY_ROW.issuperset({*self.operations} - {_FILTER}):
            return False
        taking = sum(tap.takes for tap in self.taps if tap is not self.split)
        has_filters = _FILTER in self.operations  # else a walk over a large plan takes long
        filters = [kind for kind, _ in analyzed(self.df) if kind == _FILTER] if has_filters else []
        return len(filters) == taking

    @property
    def bounded(self) -> bool:
        return all(source.bounded for source in self.sources)

    @property
    def ending(self) -> tuple[str, ...]:
        """Return the sources that end while others of the query continue (a mixed query)."""
        if self.bounded:
            return ()
        own = [source for source in self._sources_of_rows if not source.is_internal]
        return tuple(dict.fromkeys(source.name for source in own if source.bounded))

    @property
    def ended(self) -> tuple[str, ...]:
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
        names = tuple(source.name for source in self.sources)
        if not is_streaming(self.df):
            return Topology(names, operators=(), unnamed=None)  # a batch job keeps no state
        provider = asked_state_provider(self.df)
        return Topology(
            sources=names,
            unnamed=why_unnamed(self.df, self.sources),
            kinds={s.name: kind for s in self.sources if (kind := s.kind_of_position)},
            operators=(
                None
                if self.planned is None
                else name_operators(shapes_of(self.planned), self.operators)
            ),
            provider=provider_name(provider) if provider is not None else None,
        )

    def planning_error(self) -> Exception | None:
        """Return why Spark cannot plan the query as a stream; None when it can."""
        from pyspark.errors import PySparkException

        try:
            _ = self.planned
        except PySparkException as error:
            return error
        return None

    @functools.cached_property
    def planned(self) -> tuple[PlannedOperator, ...] | None:
        names = tuple(source.name for source in self.sources)
        return plan_operators(self.df, self.output_mode, names)

    @functools.cached_property
    def known_bugs(self) -> tuple[KnownBug, ...]:
        """The bugs of this Spark that give the query wrong rows as a stream."""
        if not is_streaming(self.df):
            return ()
        return find_bugs(self.df, self.output_mode)

    @functools.cached_property
    def fingerprint(self) -> Fingerprint | None:
        if not is_streaming(self.df):
            return None
        found: Fingerprint | None = load_known(FINGERPRINTS, "plan")(
            self.df,
            output_mode=self.output_mode,
            sources=[source.name for source in self.sources],
            planned=self.planned,
        )
        return found


def find_bugs(df: DataFrame, output_mode: str) -> tuple[KnownBug, ...]:
    """Return the known bugs of this Spark that give *df* wrong rows as a stream."""
    from py4j.protocol import Py4JError

    try:
        shape = Shape(steps_of(analyzed_json(df)), output_mode)
        return bugs_of(shape, df.sparkSession.version)
    except (Py4JError, LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
        log.warning("known bugs of Spark are not looked for, this plan cannot be read: %r", error)
        return ()


def name_operators(
    found: Sequence[OperatorShape], names: Sequence[str]
) -> tuple[OperatorShape, ...]:
    """Return stateful operators, in plan order, with the job's names for them."""
    padded = [*names[: len(found)], *[None] * (len(found) - len(names))]
    return tuple(shape._replace(name=name) for shape, name in zip(found, padded, strict=True))


def sources_of(df: DataFrame, known: Sequence[SourceDefinition]) -> tuple[SourceDefinition, ...]:
    """Return the sources that *df* reads, in plan order."""
    by_name = {source.name: source for source in known}
    by_name |= {marker_name(s.name): s.of_its_markers() for s in known if s.markers is not None}
    found = []
    for position, name in enumerate(source_names(df)):
        source = by_name.get(name) if name is not None else None
        found.append(source or _foreign(position))
    return tuple(found)


def upstream_of(queries: Sequence[QueryDefinition]) -> dict[str, tuple[str, ...]]:
    """Return for each query the queries of the job whose output it reads, in the job's order."""
    upstream = {query.name: found for query in queries if (found := _writers_for(query, queries))}
    ended: set[str] = set()
    while ended != {query.name for query in queries}:
        ready = {q.name for q in queries if set(upstream.get(q.name, ())) <= ended}
        if ready == ended:
            circle = ", ".join(repr(q.name) for q in queries if q.name not in ended)
            raise ConfigError(
                f"queries {circle} read what they write, in a circle: none of them would end"
            )
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
    paths = (source.source.location().path for source in query.sources)
    read = [f"{location_key(path)}/" for path in paths if path is not None]
    return tuple(
        other.name
        for other in queries
        if any(location.startswith(f"{w}/") for location in read for w in other.written_locations)
    )


def _datasets_of_sink(sink: NamedSink) -> Sequence[Dataset]:
    try:
        return sink.datasets() if isinstance(sink, ObservedSink) else ()
    except Exception:
        log.warning("%s: it is not known where it writes", sink.name, exc_info=True)
        return ()


def _datasets_of_source(source: SourceDefinition) -> Sequence[Dataset]:
    return source.source.datasets() if isinstance(source.source, ObservedSource) else ()


def _plain(datasets: Iterable[Dataset]) -> list[dict[str, str]]:
    return [dataset._asdict() for dataset in datasets]


def _foreign(position: int) -> SourceDefinition:
    return SourceDefinition(
        name=f"source-{position}",
        source=ForeignSource(),
        bounded=False,
    )


Declare = Callable[[Mapping[str, SourceBinding]], "Sequence[QueryDefinition]"]


def check_sources(query: QueryDefinition) -> None:
    """Refuse a query, without markers yet, whose sources cannot end or fall silent as declared."""
    by_name = {source.name: source for source in query.sources}
    ending = query.ending
    for name in ending:
        if by_name[name].files is None:
            raise ConfigError(
                f"query {query.name!r}: source {name!r} ({by_name[name].kind}) is bounded beside "
                "sources that are not, and only files can end there; keep it in files, or "
                f"{words()['ONE_END']}"
            )
    both = [name for name in ending if by_name[name].also is not None]
    if both:
        raise ConfigError(
            f"query {query.name!r}: source {both[0]!r} ends while others continue, and nothing of "
            "it is read later, so corrected records never are; leave also out"
        )
    unmarked = [name for name in ending if by_name[name].watermark is None]
    if unmarked and (late := sorted(sources_under_a_watermark(query.df).intersection(unmarked))):
        raise ConfigError(
            f"query {query.name!r}: the watermark of source {late[0]!r} would stop when it "
            f"has ended, because it is set behind the source; {words()['MARK_SOURCE']}"
        )
    silent = [source.name for source in query.sources if source.idle_timeout_s is not None]
    if silent and query.native is not None:
        raise ConfigError(
            f"query {query.name!r}: nothing tells whether source {silent[0]!r} is idle when "
            f"Spark's own sink {query.native.name} takes the output; use another sink, or leave "
            "idle_timeout out"
        )


def bind(
    query: QueryDefinition, directory: JobDirectory, end: EndedSources | None, declare: Declare
) -> QueryDefinition:
    """Return the query with markers, and without its ended sources."""
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
    raise ConfigError(
        f"query {query.name!r}: the job's function did not write it when it was called again; it "
        "must declare the same whenever it is called"
    )


_OF_FILES: Final = "FileSource["
_NOT_FOUND: Final = ("DATA_SOURCE_NOT_FOUND", "Failed to find data source")


def check_query(query: QueryDefinition) -> None:
    """Refuse a query that Spark would refuse at its start; NotAStreamError if BATCH may run it."""
    found = list({str(each): each for each in (*_of_sink(query), *_of_plan(query))}.values())
    if not found:
        return
    first = found[0]
    if len(found) > 1:  # all of them at once
        what = "; ".join(each.parts.what for each in found)
        first.explanation = dataclasses.replace(first.parts, what=what)
    raise first


def _of_plan(query: QueryDefinition) -> Iterator[SparkStreamError]:
    as_stream = is_streaming(query.df)
    where = (
        f"query {query.name!r}: Spark cannot run it as a {'stream' if as_stream else 'batch job'}"
    )
    mistake = NotAStreamError if as_stream else ConfigError
    yield from refused_reads(query.name, query.df)
    sources = list(_of_sources(query, where)) if as_stream else []
    yield from sources
    refused = check_supported(query.df, query.output_mode)
    if refused is None and as_stream and not sources:
        refused = query.planning_error()
    if refused is not None:
        yield _refused(refused, f"{where}: {classify(refused).reason}", mistake=mistake)
    elif as_stream and not sources:
        for operator in query.planned or ():
            title = operator_title(None, operator.shape.id, operator.shape.kind)
            yield from (
                NotAStreamError(f"query {query.name!r}: {title}: {why}") for why in operator.stuck
            )


def _of_sources(query: QueryDefinition, where: str) -> Iterator[SparkStreamError]:
    """Yield what Spark's file sources refuse: each is made as at a start, and stopped.

    Its log goes to a temporary folder. Other sources are not made: they may connect to a server,
    whose rows would be lost.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    folder = Path(tempfile.mkdtemp(prefix="spark-stream-source-"))
    try:
        for number, (leaf, name) in enumerate(named_leaves(query.df)):
            if not _is_of_files(leaf):
                continue
            try:
                leaf.dataSource().createSource((folder / str(number)).as_uri()).stop()
            except PySparkException as error:
                what = f"{where}: {classify(error).reason}"
                yield _refused(error, what, source=name, mistake=NotAStreamError)
            except Py4JError as error:  # another version of Spark; it will say so itself
                log.debug("source %s cannot be looked at before the start: %s", name, error)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_of_files(leaf: Any) -> bool:
    is_plain = leaf.getClass().getSimpleName() == "StreamingRelation"
    return is_plain and str(leaf.sourceName()).startswith(_OF_FILES)


def _of_sink(query: QueryDefinition) -> Iterator[SparkStreamError]:
    if query.native is None or query.native.provider is None:
        return
    spark, provider = query.df.sparkSession, query.native.provider
    error = _missing_provider(spark, provider)
    if error is None:
        return
    what = f"query {query.name!r}: the sink {query.native.name}"
    if provider.lower() in CONNECTORS:
        yield load_known(CONNECTORS, provider.lower())(spark, what)
    else:
        yield _refused(error, f"{what}: {classify(error).reason}", mistake=ConfigError)


def _refused(
    error: Exception,
    what: str,
    *,
    source: str | None = None,
    mistake: type[ConfigError],
) -> SparkStreamError:
    refused = refusal_of(error, what, source=source, mistake=mistake)
    refused.__cause__ = error
    return refused


def _missing_provider(spark: SparkSession, provider: str) -> Exception | None:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    jvm: Any = spark._jvm
    state = spark._jsparkSession.sessionState()
    try:
        jvm.org.apache.spark.sql.execution.datasources.DataSource.lookupDataSource(
            provider, state.conf()
        )
    except (Py4JError, PySparkException) as error:
        is_missing = any(each in str(error) for each in _NOT_FOUND)
        return error if is_missing and not is_registered(spark, provider) else None
    return None
