"""Stream: its trigger, its callback, its end."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.checkpoint.drain_step import StartMode, is_of_drain
from airflow_provider.runtime.checkpoint.logged_batch import BatchLogs
from airflow_provider.runtime.errors import SparkStreamError
from airflow_provider.runtime.queries.accounting import checked_rows
from airflow_provider.runtime.queries.batch_reports import (
    BatchReports,
    own_report,
    reading_of,
)
from airflow_provider.runtime.queries.batch_sizing import single_admission
from airflow_provider.runtime.queries.event_times import observed
from airflow_provider.runtime.queries.file_listing import (
    describe_order,
    describe_unread,
    warn_of_one_time,
)
from airflow_provider.runtime.queries.fixed_ends import PastEndError
from airflow_provider.runtime.queries.named_sources import (
    has_names,
    naming,
    why_unnamed,
    with_names,
)
from airflow_provider.runtime.queries.scanned_input import RepeatedFilesError, ScanGuard
from airflow_provider.runtime.queries.source_start import changed_at_start
from airflow_provider.runtime.queries.state_rows import TRACKED
from airflow_provider.runtime.queries.stream_batch import StreamBatch
from airflow_provider.runtime.sinks.spark_sink import ReportedRows, SparkSink
from airflow_provider.runtime.sinks.staging import settings
from airflow_provider.runtime.sources.file_stream import UnreadFiles
from airflow_provider.runtime.spark.versions import Ability, can, jobs_refused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
    from airflow_provider.runtime.jobdir.epoch_documents import BatchCounts
    from airflow_provider.runtime.queries.batch_reports import BatchReport, Reading
    from airflow_provider.runtime.queries.batch_sizing import BatchSizer
    from airflow_provider.runtime.queries.fixed_ends import FixedEnds
    from airflow_provider.runtime.queries.query import QueryDefinition
    from airflow_provider.runtime.queries.row_policy import RowPolicy
    from airflow_provider.runtime.queries.watermarks import EventTimes
    from airflow_provider.runtime.sinks.committer import EpochCommitter

log = logging.getLogger(__name__)

_START_TIMEOUT_S = 60.0
_FORGET_TIMEOUT_S: Final = 10
_EMPTY_BATCHES: Final = "spark.sql.streaming.noDataMicroBatches.enabled"
_SCHEMA_CHECK: Final = "spark.sql.streaming.stateStore.stateSchemaCheck"
_JOBS_OF_A_BATCH = 20  # the newest; more than any batch has that was still at work


@dataclasses.dataclass(frozen=True)
class StopReason:
    """A request that a query end after a batch, at the latest at a monotonic *deadline*."""

    batch: int
    deadline: float | None
    stopped: bool = False


class _HaltedError(Exception):
    """Raised in a batch that began after the query was asked to halt."""


class StreamQuery:
    """Starts a query as often as the lifecycle asks and reports how it ended."""

    def __init__(
        self,
        definition: QueryDefinition,
        *,
        checkpoint: str,
        logs: CheckpointLogs,
        epochs: EpochCommitter | ReportedRows,
        trigger: dict[str, Any],
        clock: Clock,
        batch_sizer: BatchSizer | None = None,
        event_times: EventTimes | None = None,
        is_drained: bool = False,
        ends: FixedEnds | None = None,
        policy: RowPolicy,
    ) -> None:
        self.name = definition.name
        self.definition = definition
        self.logs = logs
        self.counts = self._epochs = epochs
        self._checkpoint = checkpoint
        self._trigger = trigger
        self._clock = clock
        self._halt: StopReason | None = None
        self._batch_sizer = batch_sizer
        self._is_paced = False
        self._reads_available = False
        self._committed_before = -1
        self._event_times = event_times
        self._is_drained = is_drained
        self._ends = ends
        self._policy = policy
        self._has_nothing_left = False
        self._query: StreamingQuery | None = None
        self._group = ""  # of its Spark jobs
        self._is_first = True  # the next batch is the first of a start
        self._started = threading.Event()
        self._callback_error: BaseException | None = None
        self._progress: dict[str, Any] | None = None
        self._reports = BatchReports(definition.sources)
        self._rows: int | None = None  # of the last batch
        self._files: UnreadFiles | None = None
        self._unread: int | None = None
        self._batch_logs = BatchLogs(logs.checkpoint)
        self._guard = ScanGuard()
        self._unread_input: dict[str, str] = {}

    @property
    def committer(self) -> EpochCommitter | None:
        return None if isinstance(self._epochs, ReportedRows) else self._epochs

    def start(self, how: StartMode) -> None:
        self._started.clear()
        self._callback_error = None
        self._batch_logs = BatchLogs(self.logs.checkpoint)  # a plan beyond the ends is replaced
        self.logs.remove_torn()
        self._halt = None
        if self._ends is not None:
            begun = self._ends.begin(how, reads_available="availableNow" in self._arguments(how))
            self._has_nothing_left = begun is None
            if begun is None:
                return
            how = begun
        is_named = self._is_named()
        df = self._frame(is_named=is_named)
        writer = df.writeStream.outputMode(self.definition.output_mode)
        writer = self._with_sinks(writer).queryName(self.name)
        writer = writer.option("checkpointLocation", self._checkpoint)
        trigger = self._arguments(how)
        self._reads_available = "availableNow" in trigger
        self._committed_before = self.logs.position().last_commit
        self._reports.starts(self._committed_before)
        self._is_paced = how is not StartMode.ONE_BATCH  # what is planned cannot be made smaller
        if self._batch_sizer is not None:
            self._batch_sizer.starts()
        if self._event_times is not None and how is not StartMode.ONE_BATCH:
            self._event_times.starts()
        self._query = self._launch(writer.trigger(**trigger), is_named=is_named)
        self._group = str(self._query.runId)
        self._files = None
        self._started.set()
        order = describe_order(self.definition.sources)
        log.info("query=%s started (%s%s)", self.name, how.value, f"; {order}" if order else "")

    def _is_named(self) -> bool:
        why = why_unnamed(self.definition.df, self.definition.sources)
        return has_names(self.logs, can_have=why is None)

    def _frame(self, *, is_named: bool) -> DataFrame:
        sink, df = self.definition.native, self.definition.df
        df = sink.counted(df) if isinstance(sink, SparkSink) else observed(df)
        names = [source.name for source in self.definition.sources]
        return with_names(df, names) if is_named else df

    def _launch(self, writer: DataStreamWriter, *, is_named: bool) -> StreamingQuery:
        self._is_first = True
        self._guard.starts()
        query = None
        try:
            with (
                self._empty_batches_left_out(),
                settings(
                    self.definition.df.sparkSession, self._counting() | self._schema_unchecked()
                ),
                naming(self.definition.df.sparkSession, named=is_named),
                changed_at_start(
                    self.definition,
                    lists_once=self._reads_available,
                    each_file_once=self._guard.each_file_once,
                ),
            ):
                query = writer.start()
        except SparkStreamError:
            if query is not None:
                query.stop()
            raise
        return query

    def _counting(self) -> dict[str, str]:
        """Return the setting by which Spark counts the rows in state at this start, or not."""
        spark = self.definition.df.sparkSession
        asked = spark.conf.get(TRACKED, None)
        # Without a callback only Spark can count, and a drain has to know the rows.
        may_count = self.committer is not None and can(spark, Ability.READ_STATE)
        last = self.committer.last_record() if self.committer is not None else None
        is_of_state = last is not None and last.epoch == self._committed_before
        looks_up = self._reports.state_rows.starts(
            self._committed_before,
            last.state_rows if last is not None and is_of_state else None,
            self.definition.planned if may_count else None,
            asked=None if asked is None else str(asked).lower() == "true",
        )
        return {TRACKED: str(looks_up).lower()} if asked is None else {}

    def _schema_unchecked(self) -> dict[str, str]:
        """Return the setting with which Spark 3.5 drains a join on columns without nulls.

        It plans a batch without input without the filter that keeps nulls out, and refuses the
        state, whose columns had none, as one of other columns. What a changed job does to the state
        is checked before every start. Spark 4.0 and later take the columns as they are.
        """
        is_old = str(self.definition.df.sparkSession.version).startswith("3.")
        is_drain = is_old and is_of_drain(self.logs.position().watermark_ms)
        return {_SCHEMA_CHECK: "false"} if is_drain else {}

    def _arguments(self, how: StartMode) -> dict[str, Any]:
        return {
            StartMode.INPUT: self._trigger,
            StartMode.AVAILABLE: {"availableNow": True},
            StartMode.ONE_BATCH: {"once": True},
        }[how]

    def has_ended(self) -> bool:
        if self._has_nothing_left:
            return True
        return self._query is not None and not self._query.isActive

    def has_tasks(self) -> bool:
        tracker = self.definition.df.sparkSession.sparkContext.statusTracker()
        jobs = sorted(tracker.getJobIdsForGroup(self._group))[-_JOBS_OF_A_BATCH:]
        known = [info for job in jobs if (info := tracker.getJobInfo(job)) is not None]
        stages = [tracker.getStageInfo(stage) for info in known for stage in info.stageIds]
        return any(stage is not None and stage.numActiveTasks > 0 for stage in stages)

    def halt(self, timeout_s: float | None) -> None:
        """Let the batch in flight end, and no other begin.

        A batch that takes longer than *timeout_s* is stopped, and runs again with the same offsets.
        """
        now = self._clock.monotonic()
        deadline = None if timeout_s is None else now + timeout_s
        self._halt = StopReason(self.logs.position().last_offsets, deadline)

    def halt_in_time(self) -> None:
        halt = self._halt
        if halt is None or halt.stopped or not self._is_active():
            return
        waited = halt.deadline is not None and self._clock.monotonic() >= halt.deadline
        if waited or halt.batch < 0 or self.logs.is_committed(halt.batch):
            self._halt = dataclasses.replace(halt, stopped=True)
            self.stop()

    def _is_active(self) -> bool:
        return self._query is not None and self._query.isActive

    def error(self) -> BaseException | None:
        ended = isinstance(self._callback_error, _HaltedError | PastEndError | RepeatedFilesError)
        if ended or (self._halt and self._halt.stopped):
            return None
        if self._callback_error is not None:
            return self._callback_error
        return self._query.exception() if self._query is not None else None

    def has_more(self) -> bool:
        """Whether another start may read input that this one has not requested from its sources.

        With ``availableNow`` Spark asks a source that cannot tell its end (one in Python with a
        simple reader, for example) once for the latest offset, which may be that of its next rows
        only. Such a source has ended when a start commits no batch, unless its end is fixed.
        """
        if self._query is None or self._halt is not None:
            return False
        if isinstance(self._callback_error, RepeatedFilesError):
            return True
        more = self._ends.has_more() if self._ends is not None else None
        if more is not None or not self._reads_available:
            return bool(more)
        if self.logs.position().last_commit <= self._committed_before:
            return False
        bounded = {source.name for source in self.definition.sources if source.bounded}
        bounded.difference_update(self._ends.names() if self._ends is not None else ())
        execution = self._query._jsq.streamingQuery()
        jvm = self.definition.df.sparkSession._jvm
        return not bounded.isdisjoint(single_admission(execution, jvm, self.definition.sources))

    def settle(self) -> None:
        self._collect()
        self._say_unread()
        self._progress = self.last_progress()
        if self._query is not None:
            self._await_name(self._query)
        self._query = None
        self._has_nothing_left = False

    def _say_unread(self) -> None:
        """Name the files that were listed and not read, in the log once and in the account."""
        from py4j.protocol import Py4JError

        if self._query is None or not self._reads_available:
            return
        try:
            unread = describe_unread(self.definition, self._query._jsq.streamingQuery())
        except Py4JError as error:  # the JVM may be gone, which others notice
            log.debug("query=%s it is not known what it has not read: %s", self.name, error)
            return
        for source, text in unread.items():
            if self._unread_input.get(source) != text:
                log.warning("query=%s %s", self.name, text)
            self._unread_input[source] = text

    def _await_name(self, query: StreamingQuery) -> None:
        from pyspark.errors import PySparkException

        with contextlib.suppress(PySparkException):  # why it has failed is known
            if query.awaitTermination(_FORGET_TIMEOUT_S) is False:
                log.warning("query=%s Spark has not ended it", self.name)

    def stop(self) -> None:
        """Stop the query, in the middle of a batch if there is one. Idempotent."""
        if self._query is not None and self._is_active():
            # Spark's own stop cancels the jobs of this moment only, and then waits for a batch that
            # submits one a moment later until that has run to its end.
            context = self.definition.df.sparkSession.sparkContext
            with jobs_refused(context, str(self._query.runId)):
                self._query.stop()

    def last_progress(self) -> dict[str, Any] | None:
        progress = self._reports.last(self._query) if self._query is not None else None
        return progress if progress is not None else self._progress

    def reading(self) -> Reading:
        known = reading_of(self.last_progress(), self._unread, self.definition.sources)
        times, sizer = self._event_times, self._batch_sizer
        return dataclasses.replace(
            known,
            batch_sizing=sizer.describe() if sizer is not None else None,
            idle=tuple(times.idle()) if times is not None else (),
            unread_input=tuple(self._unread_input.values()),
            spark_counts=self._reports.state_rows.spark_counts,
        )

    def new_batches(self) -> list[BatchReport]:
        self._collect()
        return self._reports.take()

    def _collect(self) -> None:
        if self._query is None:
            return
        has_ended = self.has_ended()  # asked first: what it then reports is all
        for progress in self._reports.collect(self._query):
            if isinstance(self._epochs, ReportedRows):
                self._epochs.batch_ran(progress)
        if has_ended:
            self._reports.end(self.logs.is_committed)

    def move_idle_sources(self) -> None:
        if self._event_times is not None and self._is_active():
            self._event_times.move_idle()

    def reached(self) -> dict[str, int]:
        return self._event_times.reached() if self._event_times is not None else {}

    def replace_definition(self, definition: QueryDefinition) -> None:
        self.definition = definition
        if self._ends is not None:
            self._ends.replace_definition(definition)
        if self._event_times is not None:
            self._event_times.replace_definition(definition)

    @contextlib.contextmanager
    def _empty_batches_left_out(self) -> Iterator[None]:
        if not self._reads_available or not (self.definition.goes_by_clock or self._is_drained):
            yield
            return
        session = self.definition.df.sparkSession
        before = str(session.conf.get(_EMPTY_BATCHES, "true"))
        session.conf.set(_EMPTY_BATCHES, "false")
        try:
            yield
        finally:
            session.conf.set(_EMPTY_BATCHES, before)

    def _with_sinks(self, writer: DataStreamWriter) -> DataStreamWriter:
        epochs = self._epochs
        if isinstance(epochs, ReportedRows):
            return epochs.sink.attach(writer)
        return writer.foreachBatch(lambda df, batch: self._on_batch(epochs, df, batch))

    def _on_batch(self, epochs: EpochCommitter, df: DataFrame, batch: int) -> None:
        batch_sizer = self._batch_sizer if self._is_paced else None
        began, since = self._clock.now(), self._clock.monotonic()
        self._rows = None
        try:
            self._refuse_after_halt(batch)
            if self._ends is not None:
                self._ends.check(batch, self._execution())
            logged = self._batch_logs.read(batch)
            execution = self._execution()
            self._check_input(batch, execution)
            rows = StreamBatch(
                self.definition,
                self._policy,
                batch,
                execution=execution,
                began=began,
                state_rows=self._reports.state_rows,
                is_first=self._is_first,
            )
            rows.stage(epochs, df, logged)
            self._note(batch, rows.counts)
            if execution is not None and self._event_times is not None:
                self._event_times.batch_ran(execution)
            if self._is_first and execution is not None:
                self._look_at_first(execution)
            self._is_first = False
            self._policy.batch_ran(execution)  # forgets the event times
        except BaseException as error:
            # Spark wraps it twice and keeps only its text; the driver wants to know its type.
            self._callback_error = error
            raise
        took_s = self._clock.monotonic() - since
        self._reports.staged(own_report(batch, began, took_s, self._rows))
        if execution is None:
            return
        self._count_files(batch, execution)
        if batch_sizer is not None:
            batch_sizer.batch_ran(since, execution, df.sparkSession._jvm, self.last_progress())
            self._reports.note(batch, batch_sizing=batch_sizer.describe())

    def _note(self, batch: int, counts: BatchCounts) -> None:
        self._rows = counts.read
        self._reports.note(batch, counts=checked_rows(self.definition.taps, counts))
        if counts.late is not None:
            self._reports.note(batch, late_rows=sum(counts.late.rows.values()))

    def _look_at_first(self, execution: Any) -> None:
        if not self._policy.waits:
            warn_of_one_time(self.definition, execution)

    def _refuse_after_halt(self, batch: int) -> None:
        if self._halt is not None and batch > self._halt.batch:
            raise _HaltedError  # it was planned between the request and the stop

    def _check_input(self, batch: int, execution: Any | None) -> None:
        if execution is not None:
            self._guard.check(self.definition, execution, batch, self._batch_logs)

    def _count_files(self, batch: int, execution: Any) -> None:
        self._files = self._files or UnreadFiles(execution)
        self._unread = self._files.count()
        self._reports.note(batch, unread_files=self._unread)

    def _execution(self) -> Any | None:
        """Return the JVM's ``StreamExecution`` in a callback; None if the start has failed."""
        if not self._started.wait(_START_TIMEOUT_S) or self._query is None:
            return None
        return self._query._jsq.streamingQuery()
