"""Job context: the API of a job's function."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from airflow_provider.runtime.api.sinks import OnePhaseSink, Sink
from airflow_provider.runtime.base.clock import parse_duration
from airflow_provider.runtime.base.extensions import check_api_version
from airflow_provider.runtime.base.names import check_name
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.errors.ways_out import set_param, words
from airflow_provider.runtime.jobdir.run_records import BATCH
from airflow_provider.runtime.queries.output_locations import OutputLocations, location_key
from airflow_provider.runtime.queries.plan import is_streaming, operations
from airflow_provider.runtime.queries.query import QueryDefinition, check_query, sources_of
from airflow_provider.runtime.queries.read_options import check_end, check_options, check_read_order
from airflow_provider.runtime.queries.source import (
    MODIFIED,
    EndOption,
    SourceBinding,
    SourceDefinition,
    load_table,
)
from airflow_provider.runtime.sinks.files import FilesSink
from airflow_provider.runtime.sinks.spark_sink import DiscardSink

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


OUTPUT_MODES = ("append", "update", "complete")
Callback = Callable[[], None]
Sinks: TypeAlias = "tuple[Sink | OnePhaseSink, ...]"


class JobContext:
    """Given to the job's function, which declares sources and queries with it and returns.

    The function only declares: nothing is read or written while it runs, and it may be called
    several times: for STREAMING and for BATCH, and again for a query some of whose sources have
    ended.

    Attributes:
        spark: a Spark session of this job alone.
        params: the run's parameters, by name.
        run_id: the run's id.
        mode: ``STREAMING`` or ``BATCH``.
        interval: start and end of the run's data interval, or None.
        holding: what the declaration holds open until the attempt has ended in whatever way.
    """

    def __init__(
        self,
        spark: SparkSession,
        *,
        params: Mapping[str, Any],
        run_id: str,
        mode: str,
        interval: tuple[dt.datetime, dt.datetime] | None = None,
        target_batch_s: float | None = None,
        discards_output: bool = False,
        bindings: Mapping[str, SourceBinding] | None = None,
        job_dir: str | None = None,
    ) -> None:
        self.spark = spark
        self.params = Params(params)
        self.run_id = run_id
        self.mode = mode
        self.interval = interval
        self._target_batch_s = target_batch_s
        self._discards_output = discards_output
        self._bindings = bindings or {}
        self._outputs = OutputLocations(job_dir)
        self._sources: list[SourceDefinition] = []
        self._queries: list[QueryDefinition] = []
        self._on_finish: list[Callback] = []
        self._on_published: list[Callback] = []
        self._on_poll: list[Callback] = []
        self._on_close: list[Callback] = []
        self.holding = contextlib.ExitStack()

    def read(
        self,
        name: str,
        *,
        format: str,
        path: str | None = None,
        schema: StructType | str | None = None,
        options: Mapping[str, str] | None = None,
        bounded: bool = False,
        ends: EndOption | None = None,
        watermark: tuple[str, str] | None = None,
        adaptive_batches: bool = True,
        idle_timeout: str | float | None = None,
        read_order: str = MODIFIED,
    ) -> DataFrame:
        """Declare a source and return it: a streaming DataFrame, in BATCH a static one.

        Args:
            name: the source's stable identity in this job.
            format: any streaming source of Spark's: ``csv``, ``json``, ``parquet``, ``kafka``, …;
                ``spark-stream-kafka``, which needs no jar; or ``table``, whose name is the path.
            path: for sources that have one.
            schema: as for ``DataStreamReader.schema``; file sources need one.
            options: the source's options.
            bounded: whether the source ends: where it reaches when the run's first attempt reads
                it. Every later attempt of the run ends there, too.
            ends: where it ends otherwise: ``"latest"`` takes the answer of a source that can only
                be asked, such as one in Python, for its end; a datetime takes the files that
                were modified before it, and of each partition of Kafka what lies before its
                first message of that time or later; ``{"topic": {"0": 100}}`` the rows before
                these offsets.
            watermark: event-time column and delay, as for ``withWatermark``.
            adaptive_batches: whether the size of its batches is fitted to the target time of
                the run.
            idle_timeout: how long it may give no row before the query's watermark ignores it,
                a duration; by default it is waited for as long as the query runs. Needs a
                *watermark*. Its rows count again as soon as it has some.
            read_order: in which order bounded files are read, over several batches: ``modified``,
                by their modification times, as Spark does; or ``name``, by their paths as text.

        Raises:
            ConfigError: the name is used twice, Spark cannot read the source, BATCH is requested of
                one that is not bounded, *ends*, *idle_timeout* or *read_order* is not possible.
            OutageError: a broker of Kafka does not answer.
        """
        check_name(name, what="source")
        if any(source.name == name for source in self._sources):
            msg = f"source {name!r} is read twice; keep the DataFrame and use it again"
            raise ConfigError(msg)
        written = path is not None and location_key(path) in self._written()
        check_options(name, format, options or ())
        binding = self._bindings.get(name, SourceBinding())
        declared = SourceDefinition(
            name=name,
            format=format,
            path=path,
            schema=schema,
            options=dict(options or {}),
            bounded=bounded,
            watermark=_watermark(name, watermark),
            is_internal=written,
            adaptive_batches=adaptive_batches,
            target_s=self._target_batch_s,
            idle_timeout_s=_idle_timeout(name, idle_timeout, watermark),
            markers=binding.markers,
            ended=binding.ended,
            ends=check_end(name, format, ends, bounded=bounded, is_internal=written),
            read_order=check_read_order(name, format, read_order, options or {}, bounded=bounded),
        )
        source = self._source(declared)
        if self._is_batch and not source.bounded:
            msg = (
                f"source {name!r} is not bounded, and BATCH reads all there will ever be; read it "
                "with bounded=True, or run with mode 'streaming'"
            )
            raise ConfigError(msg)
        df = source.load(self.spark, streaming=not self._is_batch)
        self._sources.append(source)
        return df

    def initial_state(
        self,
        name: str,
        *,
        format: str,
        path: str | None = None,
        schema: StructType | str | None = None,
        options: Mapping[str, str] | None = None,
    ) -> DataFrame:
        """Return a table that ``transformWithState(…, initialState=table.groupBy(…))`` begins with.

        Spark gives its rows to the processor's ``handleInitialState`` in the query's first batch,
        which may set timers, and never again: a job that resumes, or begins from a savepoint, keeps
        the state that it has.

        Raises:
            ConfigError: Spark cannot read it, or there is no state to begin with: in BATCH.
        """
        check_name(name, what="initial state")
        if self._is_batch:
            msg = f"initial state {name!r}: BATCH keeps no state; run with mode 'streaming'"
            raise ConfigError(msg)
        return self._table(name, file_format=format, path=path, schema=schema, options=options)

    def _source(self, declared: SourceDefinition) -> SourceDefinition:
        return declared

    def _table(self, name: str, *, schema: StructType | str | None, **where: Any) -> DataFrame:
        return load_table(self.spark, name, schema=schema, **where)

    def write(
        self,
        name: str,
        df: DataFrame,
        *,
        to: Sink | OnePhaseSink | Sequence[Sink],
        output_mode: str = "append",
        operators: Sequence[str] | None = None,
        takes_over: str | None = None,
    ) -> None:
        """Declare a query: a stream, in BATCH one batch job.

        Args:
            name: the query's stable identity in this job; its checkpoint lies under this name.
            df: what it computes.
            to: a sink, or several that share every epoch; ``spark_sink`` takes a query of its own.
            output_mode: ``append``, ``update`` or ``complete``, as far as the sinks allow.
            operators: names of its stateful operators in plan order: one comes before those whose
                rows it gets.
            takes_over: a checkpoint of plain Spark's, where there may be one: a job that begins
                continues from it, with its state. It is copied and does not change.

        Raises:
            NotAStreamError: Spark cannot run the query as a stream.
            ConfigError: the name is used twice, a sink is unknown, refuses, or writes where another
                sink writes or a source reads, or *df* does not come from ``ctx.read``.
        """
        check_name(name, what="query")
        if any(query.name == name for query in self._queries):
            msg = f"query {name!r} is written twice; give each query a name of its own"
            raise ConfigError(msg)
        if output_mode not in OUTPUT_MODES:
            modes = ", ".join(OUTPUT_MODES)
            msg = f"query {name!r}: output_mode {output_mode!r} is none; use one of {modes}"
            raise ConfigError(msg)
        if is_streaming(df) is self._is_batch:
            what = (
                "a stream, which BATCH cannot run"
                if self._is_batch
                else "not a streaming DataFrame"
            )
            msg = f"query {name!r}: {what}; {words()['BEGIN']}"
            raise ConfigError(msg)
        given = sinks_of(name, to)
        sinks = self._sinks(name, given)
        for sink in sinks:
            sink.check(df, output_mode)
        sources = sources_of(df, self._sources)
        if not sources:
            msg = f"query {name!r} reads none of the job's sources; {words()['BEGIN']}"
            raise ConfigError(msg)
        query = QueryDefinition(
            name=name,
            df=df,
            sinks=tuple(sink for sink in sinks if not isinstance(sink, OnePhaseSink)),
            native=next((sink for sink in sinks if isinstance(sink, OnePhaseSink)), None),
            output_mode=output_mode,
            operators=tuple(operators or ()),
            sources=sources,
            operations=operations(df),
            takes_over=takes_over,
        )
        check_query(query)
        self._outputs.add(name, given, sources)
        self._queries.append(query)

    def _sinks(self, name: str, given: Sinks) -> Sinks:
        del name
        return tuple(DiscardSink(sink) for sink in given) if self._discards_output else given

    def let_end(self, df: DataFrame, *, bounded: bool) -> None:
        """Declare whether the sources that *df* reads end, for later writes."""
        read = {source.name for source in sources_of(df, self._sources)}
        self._sources = [
            dataclasses.replace(source, bounded=bounded) if source.name in read else source
            for source in self._sources
        ]

    @property
    def source_names(self) -> Collection[str]:
        return [source.name for source in self._sources]

    def _written(self) -> set[str]:
        return {place for query in self._queries for place in query.written_places}

    def on_finish(self, callback: Callback) -> None:
        """Call *callback* when the job has produced its last row: only after a drain.

        It runs before the last epochs are published and the final checkpoint is put. It is called
        once in an attempt; an attempt that dies between the call and the final checkpoint is
        followed by one that calls it again.
        """
        self._on_finish.append(callback)

    def on_published(self, callback: Callback) -> None:
        """Call *callback* when a run that was not stopped has published all its output.

        It runs before the final checkpoint is written: if the attempt dies meanwhile, or the
        callback fails, the next attempt calls it again.
        """
        self._on_published.append(callback)

    def on_poll(self, callback: Callback) -> None:
        """Call *callback* about once a second while the queries run; its error ends the attempt.

        It is also called, the last time, when everything is published.
        """
        self._on_poll.append(callback)

    def on_close(self, callback: Callback) -> None:
        """Call *callback* at the end of every attempt, however it ends, unless it is killed."""
        self._on_close.append(callback)

    def finish(self) -> None:
        for callback in self._on_finish:
            callback()

    def published(self, *, by_itself: bool) -> None:
        for callback in self._on_published if by_itself else ():
            callback()
        self.poll()

    def poll(self) -> None:
        for callback in self._on_poll:
            callback()

    def close(self) -> list[Exception]:
        """Call all ``on_close`` callbacks, for the driver; return what they raised."""
        errors: list[Exception] = []
        for callback in self._on_close:
            try:
                callback()
            except Exception as error:  # noqa: BLE001 - the others must be called too
                errors.append(error)
        return errors

    @property
    def _is_batch(self) -> bool:
        return self.mode == BATCH

    @property
    def queries(self) -> tuple[QueryDefinition, ...]:
        return tuple(self._queries)


_PARTS: Final = 2  # of a watermark


def _watermark(source: str, given: Any) -> tuple[str, str] | None:
    """Return the column and the delay; a string alone would be read as many columns."""
    if given is None:
        return None
    parts = () if isinstance(given, str) else tuple(given)
    if len(parts) == _PARTS and all(isinstance(part, str) for part in parts):
        return parts
    msg = (
        f"source {source!r}: watermark={given!r} is no pair; write watermark=(COLUMN, DELAY), such "
        "as watermark=('ts', '10 minutes')"
    )
    raise ConfigError(msg)


def _idle_timeout(
    source: str, value: str | float | None, watermark: tuple[str, str] | None
) -> float | None:
    if value is None:
        return None
    seconds = parse_duration(value, name=f"source {source!r}: idle_timeout")
    if watermark is None or seconds == 0:
        msg = (
            f"source {source!r}: idle_timeout is a time in which its watermark may not advance, so "
            "it is more than 0 and needs watermark=(column, delay)"
        )
        raise ConfigError(msg)
    return seconds


def sinks_of(query: str, to: Sink | OnePhaseSink | Sequence[Sink]) -> Sinks:
    """Return the sinks that ``ctx.write`` is given."""
    sinks: tuple[Any, ...] = tuple(to) if isinstance(to, (list, tuple)) else (to,)
    if not sinks:
        msg = f"query {query!r} has no sink; write it to files(…)"
        raise ConfigError(msg)
    for sink in sinks:
        if not isinstance(sink, (Sink, OnePhaseSink)):
            msg = f"query {query!r}: unknown sink {sink!r}; use files(…) or a sink of your own"
            raise ConfigError(msg)
        check_api_version(sink, f"query {query!r}: the sink {sink.name!r}")
    names = [sink.name for sink in sinks]
    if len(set(names)) != len(names):
        msg = f"query {query!r} has two sinks {names}; each must write to a place of its own"
        raise ConfigError(msg)
    if len(sinks) > 1 and any(isinstance(sink, OnePhaseSink) for sink in sinks):
        msg = (
            f"query {query!r}: one of Spark's own sinks cannot share epochs with others {names}; "
            "write a second query"
        )
        raise ConfigError(msg)
    return sinks


__all__ = ["OUTPUT_MODES", "FilesSink", "JobContext"]


log = logging.getLogger(__name__)


class Params(dict[str, Any]):
    """Parameters by name. Iterating over all of them counts as reading each."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        super().__init__(given)
        self._unread = set(given)
        self._absent: set[str] = set()

    def __missing__(self, name: str) -> Any:
        given = ", ".join(sorted(super().keys())) or "none"
        msg = f"the job needs a parameter {name!r} (given: {given}); {set_param(name)}"
        raise ConfigError(msg)

    def __getitem__(self, name: str) -> Any:
        self._looked_for(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self._looked_for(name)
        return super().get(name, default)

    def __contains__(self, name: object) -> bool:
        self._looked_for(name)
        return super().__contains__(name)

    def __iter__(self) -> Iterator[str]:
        self._unread.clear()
        return super().__iter__()

    def keys(self) -> KeysView[str]:  # type: ignore[override]  # a view of this class has no other
        self._unread.clear()
        return super().keys()

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]  # the same
        self._unread.clear()
        return super().items()

    def values(self) -> ValuesView[Any]:  # type: ignore[override]  # the same
        self._unread.clear()
        return super().values()

    def check_read(self) -> None:
        """Check for parameters that the job's function, which has returned, has not read."""
        for name in sorted(self._unread):
            meant = difflib.get_close_matches(name, sorted(self._absent), n=1)
            if meant:
                msg = (
                    f"parameter {name!r}: the job's function does not read it, and looks for "
                    f"{meant[0]!r}, which is not given; correct the name, or leave it out"
                )
                raise ConfigError(msg)
            log.warning("parameter %r is given, and the job's function does not read it", name)

    def _looked_for(self, name: object) -> None:
        self._unread.discard(str(name))
        if isinstance(name, str) and not super().__contains__(name):
            self._absent.add(name)
