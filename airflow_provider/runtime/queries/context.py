"""Job context: the API of a job's function."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from airflow_provider.runtime.api.sinks import OnePhaseSink, Sink, VisibleSink
from airflow_provider.runtime.base.extensions import ROW_CHECKS, load_known
from airflow_provider.runtime.base.names import check_case, check_name
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.errors.fixes import words
from airflow_provider.runtime.errors.refusals import Refusals
from airflow_provider.runtime.jobdir.run_options import FAIL
from airflow_provider.runtime.jobdir.run_records import BATCH
from airflow_provider.runtime.queries.callbacks import Callbacks
from airflow_provider.runtime.queries.output_locations import (
    OutputLocations,
    Sinks,
    check_together,
    output_named,
    sinks_of,
)
from airflow_provider.runtime.queries.params import Params
from airflow_provider.runtime.queries.plan import is_streaming, name_leaves, operations
from airflow_provider.runtime.queries.planned_operators import has_operators
from airflow_provider.runtime.queries.query import QueryDefinition, check_query, sources_of
from airflow_provider.runtime.queries.read_options import (
    check_idle_timeout,
    check_watermark,
    with_also,
)
from airflow_provider.runtime.queries.row_policy import check_taps
from airflow_provider.runtime.queries.spark_options import check_options
from airflow_provider.runtime.queries.taken_checkpoints import check_taken_once
from airflow_provider.runtime.queries.taps import (
    QUARANTINE_FIELDS,
    behind_state,
    taps_of,
)
from airflow_provider.runtime.sinks.files import FilesSink
from airflow_provider.runtime.sinks.spark_sink import DiscardSink
from airflow_provider.runtime.sources.declared import (
    EndOption,
    SourceBinding,
    SourceDefinition,
    check_end,
    check_order,
)
from airflow_provider.runtime.sources.files import MODIFIED, FilesSource
from airflow_provider.runtime.sources.reading import load_table
from airflow_provider.runtime.sources.shorthand import source_given
from airflow_provider.runtime.sources.starts import started

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Collection, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from airflow_provider.runtime.api.sources import Source, Start
    from airflow_provider.runtime.queries.taps import Tap

OUTPUT_MODES = ("append", "update", "complete")


class JobContext(Callbacks):
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
        super().__init__()
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
        self._taps: list[Tap] = []
        self._tapped: dict[int, tuple[DataFrame, Tap]] = {}  # by id, which the frame keeps in use
        self.holding = contextlib.ExitStack()
        self.refusals = Refusals(collects=False)

    def read(
        self,
        name: str,
        source: Source | None = None,
        *,
        format: str | None = None,
        path: str | None = None,
        schema: StructType | str | None = None,
        options: Mapping[str, str] | None = None,
        bounded: bool = False,
        ends: EndOption | None = None,
        starts: Start | None = None,
        watermark: tuple[str, str] | None = None,
        adaptive_batches: bool = True,
        idle_timeout: str | float | None = None,
        read_order: str = MODIFIED,
        rejected: str | None = None,
        rejected_limit: str | int | None = None,
        value: str | None = None,
        also: str | None = None,
    ) -> DataFrame:
        """Declare a source and return it: a streaming DataFrame, in BATCH a static one.

        Args:
            name: the source's stable identity in this job.
            source: what is read, an object such as :func:`~.extensions.delta.delta_table` gives;
                or *format* names it.
            format: any streaming source of Spark's: ``csv``, ``json``, ``parquet``, ``kafka``, …;
                ``spark-stream-kafka``, which needs no jar; or ``table``, whose name is the path.
            path: for sources that have one.
            schema: as for ``DataStreamReader.schema``; file sources need one.
            options: the source's; a CSV ``header`` is compared, but for ``enforceSchema=true``.
            bounded: whether the source ends: where it reaches when the run's first attempt reads
                it. Every later attempt of the run ends there, too.
            ends: where it ends otherwise: ``"latest"`` takes the answer of a source that can only
                be asked, such as one in Python, for its end; a datetime takes the files that
                were modified before it, and of each partition of Kafka what lies before its
                first message of that time or later; ``{"topic": {"0": 100}}`` the rows before
                these offsets.
            starts: where a query begins that has no position of the source, because it or the
                source is new: ``"beginning"``, ``"now"``, when the first batch with the source is
                planned, or a datetime with its zone. By default the source's own options say it,
                and files are read from their beginning.
            watermark: event-time column and delay, as for ``withWatermark``.
            adaptive_batches: whether its batches are fitted to the target time of the run.
            idle_timeout: how long it may give no row before the query's watermark ignores it,
                a duration; by default it is waited for as long as the query runs. Needs a
                *watermark*. Its rows count again as soon as it has some.
            read_order: in which order bounded files are read, over several batches: ``modified``,
                by their modification times, as Spark does; or ``name``, by their paths as text.
            rejected: what happens to a record of ``csv`` or ``json`` that does not fit the schema:
                ``fail`` ends the run before the batch is published, ``count`` leaves it out,
                ``quarantine`` writes it to the query's sink for quarantined rows; None leaves it to
                Spark, which makes NULLs of it.
            rejected_limit: the most rejected records of a run, a number or a share such as
                ``"1%"``; above it the run fails.
            value: for Kafka, the format of the messages' values, ``json`` or ``csv``: the column
                ``value`` is then a struct of the *schema*; the *options* are those of Kafka and of
                the format.
            also: of files, a folder of corrected records, in the same format. It may be missing at
                first. It is a source of its own, named ``<name>.also``, of which a job reads each
                file once; BATCH reads all of them. A job has it from its first run on.

        Raises:
            ConfigError: the name is used twice, Spark cannot read the source, BATCH is requested of
                one that is not bounded, *ends*, *starts*, *idle_timeout* or *read_order* is not
                possible.
            OutageError: a broker of Kafka does not answer.
        """
        check_name(name, what="source")
        new = {name} if also is None else {name, f"{name}.also"}
        if any(source.name in new for source in self._sources):
            raise ConfigError(f"source {name!r} is read twice; keep the DataFrame and use it again")
        check_case(name, (each.name for each in self._sources), what="source")
        given: dict[str, Any] = {"path": path, "schema": schema, "options": options}
        source = source_given(name, source, format, **given, order=read_order, bounded=bounded)
        source = started(name, source, starts, streaming=not self._is_batch)
        written = output_named(source.location().path, self._written())
        if written is not None and isinstance(source, FilesSource):
            source = dataclasses.replace(source, path=written)
        binding = self._bindings.get(name, SourceBinding())
        declared = SourceDefinition(
            name=name,
            source=source,
            bounded=bounded,
            watermark=check_watermark(name, watermark),
            is_internal=written is not None,
            adaptive_batches=adaptive_batches,
            target_s=self._target_batch_s,
            idle_timeout_s=check_idle_timeout(name, idle_timeout, watermark),
            markers=binding.markers,
            ended=binding.ended,
            ends=ends,
            starts=starts,
        )
        check_options(name, declared.kind, declared.spark_options)
        check_end(declared)
        check_order(declared, read_order)
        if rejected is not None or value is not None:
            declared = self._with_records(declared, rejected or FAIL, rejected_limit, value)
        if also is not None:
            declared = with_also(declared, also, self._written())
        read = self._source(declared)
        if self._is_batch and not read.bounded:
            raise ConfigError(
                f"source {name!r} is not bounded, and BATCH reads all there will ever be; read it "
                "with bounded=True, or run with mode 'streaming'"
            )
        df = read.load(self.spark, streaming=not self._is_batch)
        if self._is_batch:
            name_leaves(df, name)
        self._sources += [read] if read.also is None else [read, read.also]
        return df

    def _with_records(
        self, declared: SourceDefinition, on: str, limit: str | int | None, value: str | None
    ) -> SourceDefinition:
        records = load_known(ROW_CHECKS, "records")(
            declared.name,
            declared.source,
            value=value,
            on=on,
            limit=limit,
        )

        def without_rejected(df: DataFrame) -> DataFrame:
            tap = records.tap(df)
            self._add_tap(tap)
            return cast("DataFrame", records.passed(tap.passed(tap.all())))

        declared = declared.with_records(records)
        return dataclasses.replace(declared, without_rejected=without_rejected)

    def expect(
        self,
        df: DataFrame,
        name: str,
        rule: str | Column,
        *,
        on: str = FAIL,
        limit: str | int | None = None,
        batch_limit: str | int | None = None,
    ) -> DataFrame:
        """Return the rows of *df* that may continue; each must keep to a rule.

        The rule is evaluated in the batch that reads the row. NULL breaks a rule, and so does an
        error of Spark's in it, such as a division by zero; an error in a function of Python is one
        of the job. Several rules on the same rows see each row once: give what this returns to the
        next call.

        Args:
            df: what ``ctx.read`` returned, or what was computed from it.
            name: the rule's name in this job.
            rule: what is true for a good row, in SQL or as a column.
            on: what happens to a row that breaks it: ``fail`` ends the run before the batch is
                published; ``count`` counts it, and it continues; ``quarantine`` writes it to the
                sink *quarantine* of ``ctx.write``, with the names of all rules that it breaks.
            limit: the most such rows in a run, a number or a share such as ``"1%"``; above it the
                run fails before the batch is published. With ``fail`` 0 unless given.
            batch_limit: the same for each batch.

        Raises:
            ConfigError: the name is used twice, or Spark cannot evaluate the rule on these rows.
        """
        made = load_known(ROW_CHECKS, "rule")(name, on, limit, batch_limit)
        before = self._tapped.get(id(df), (None, None))[1]
        tap = load_known(ROW_CHECKS, "rows")(df, before, made, rule)
        self._add_tap(tap)
        passed: DataFrame = tap.passed(tap.all())
        self._tapped[id(passed)] = (passed, tap)
        return passed

    def _add_tap(self, tap: Tap) -> None:
        name = tap.rules[-1].name  # of the rule that is new
        if any(rule.name == name for each in self._taps for rule in each.rules):
            raise ConfigError(f"rule {name!r} is given twice; give each rule a name of its own")
        self._taps.append(tap)

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
            raise ConfigError(
                f"initial state {name!r}: BATCH keeps no state; run with mode 'streaming'"
            )
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
        quarantine: Sink | None = None,
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
                continues from it, with its state. It is copied, and marked as taken over: no other
                query and no other job continues from it.
            quarantine: a sink for rejected records and for rows that are late or break a rule, as
                far as their policy is ``quarantine``. It shares the query's epochs; its columns are
                those of :data:`.taps.QUARANTINE_SCHEMA`.

        Raises:
            NotAStreamError: Spark cannot run the query as a stream.
            ConfigError: the name is used twice, a sink is unknown, refuses, or writes where another
                sink writes or a source reads, or *df* does not come from ``ctx.read``.
        """
        check_name(name, what="query")
        if any(query.name == name for query in self._queries):
            raise ConfigError(f"query {name!r} is written twice; give each query a name of its own")
        check_case(name, (each.name for each in self._queries), what="query")
        if output_mode not in OUTPUT_MODES:
            modes = ", ".join(OUTPUT_MODES)
            raise ConfigError(
                f"query {name!r}: output_mode {output_mode!r} is none; use one of {modes}"
            )
        if is_streaming(df) is self._is_batch:
            what = (
                "a stream, which BATCH cannot run"
                if self._is_batch
                else "not a streaming DataFrame"
            )
            raise ConfigError(f"query {name!r}: {what}; {words()['BEGIN']}")
        for sink in (sinks := self._sinks(name, given := sinks_of(name, to))):
            with self.refusals.declaring():
                sink.check(df, output_mode)
        aside, taps = self._aside(name, quarantine, given), taps_of(df, self._taps)
        split = self._split(df, taps, name, output_mode)
        sources = sources_of(df, self._sources)
        if not sources:
            raise ConfigError(f"query {name!r} reads none of the job's sources; {words()['BEGIN']}")
        check_taken_once(self._queries, name, takes_over)
        query = QueryDefinition(
            name=name,
            df=df if split is None else split.all(),
            sinks=tuple(s for s in (*sinks, aside) if s and not isinstance(s, OnePhaseSink)),
            native=next((sink for sink in sinks if isinstance(sink, OnePhaseSink)), None),
            output_mode=output_mode,
            operators=tuple(operators or ()),
            sources=sources,
            operations=operations(df),
            takes_over=takes_over,
            quarantine=aside,
            taps=taps,
            split=split,
        )
        for check in (check_taps, check_query):
            with self.refusals.declaring():
                check(query)
        self._outputs.add(name, [*given, *([quarantine] if quarantine else [])], sources)
        self._queries.append(query)

    def _aside(self, name: str, quarantine: Sink | None, given: Sinks) -> Sink | None:
        if quarantine is None:
            return None
        check_together(name, (*given, quarantine))
        if isinstance(quarantine, OnePhaseSink | VisibleSink):
            raise ConfigError(
                f"query {name!r}: quarantine={quarantine.name}: use a sink of two phases"
            )
        (sink,) = self._sinks(name, (quarantine,), quarantine=True)
        columns = (f"CAST(NULL AS {kind}) `{name}`" for name, kind in QUARANTINE_FIELDS)
        # createDataFrame would leave the session active in the thread, for the next declaration.
        with self.refusals.declaring():
            sink.check(self.spark.range(0).selectExpr(*columns), "append")
        return cast("Sink", sink)

    def _split(
        self, df: DataFrame, taps: tuple[Tap, ...], name: str, output_mode: str
    ) -> Tap | None:
        """Return the tap that is the query's output, if its rows can be quarantined only there."""
        if self._is_batch:
            return None
        on_top = self._tapped.get(id(df), (None, None))[1]
        split = None
        for tap in taps:
            if not tap.quarantines or not has_operators(tap.rows, output_mode):
                continue
            if tap is not on_top:
                raise ConfigError(f"query {name!r}: {behind_state(tap)}")
            split = tap
        return split

    def _sinks(self, name: str, given: Sinks, *, quarantine: bool = False) -> Sinks:
        del name, quarantine
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
        return {location for query in self._queries for location in query.written_locations}

    @property
    def _is_batch(self) -> bool:
        return self.mode == BATCH

    @property
    def queries(self) -> tuple[QueryDefinition, ...]:
        return tuple(self._queries)


__all__ = ["OUTPUT_MODES", "FilesSink", "JobContext"]
