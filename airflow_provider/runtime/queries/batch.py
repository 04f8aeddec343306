"""Batch execution of a query as epoch 0, and what Spark's scans tell of rows, files and tasks."""

from __future__ import annotations

import contextlib
import functools
import logging
import uuid
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.api.sources import SOURCE_OPTION, LossySource
from airflow_provider.runtime.jobdir.epoch_documents import BatchCounts
from airflow_provider.runtime.jobdir.query_reports import TaskCounts
from airflow_provider.runtime.jobdir.run_options import COUNT
from airflow_provider.runtime.queries.accounting import check_batch, checked_rows
from airflow_provider.runtime.queries.batch_input import files_read
from airflow_provider.runtime.queries.batch_reports import Reading, own_report
from airflow_provider.runtime.queries.batch_rows import BatchRows
from airflow_provider.runtime.queries.event_times import event_times_of, observed
from airflow_provider.runtime.queries.plan import (
    ADAPTIVE,
    FILE_SCAN,
    is_named_scan,
    leaves,
    option_of,
    planned_tasks,
    rows_of,
    source_of,
    source_scans,
    source_tag,
)
from airflow_provider.runtime.queries.row_policy import RowPolicy
from airflow_provider.runtime.spark.versions import jobs_refused

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Collection, Iterator, Sequence

    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.checkpoint.drain_step import StartMode
    from airflow_provider.runtime.checkpoint.logs import CommitLog
    from airflow_provider.runtime.checkpoint.source_end import SourceEnd
    from airflow_provider.runtime.jobdir.epoch_documents import EpochRecord
    from airflow_provider.runtime.queries.batch_reports import BatchReport
    from airflow_provider.runtime.queries.query import QueryDefinition
    from airflow_provider.runtime.sinks.committer import EpochCommitter
    from airflow_provider.runtime.sources.declared import SourceDefinition


log = logging.getLogger(__name__)


def count_tasks(stages: Collection[tuple[int, int]]) -> TaskCounts | None:
    """Return the sums over submitted stages, (tasks, done) each; None before the first."""
    if not stages:
        return None
    return TaskCounts(
        stages=len(stages),
        stages_done=sum(done >= tasks for tasks, done in stages),
        tasks=sum(tasks for tasks, _ in stages),
        tasks_done=sum(min(done, tasks) for tasks, done in stages),
    )


class BatchTasks:
    """Counts the tasks of one group of Spark's jobs, with a call per unfinished stage."""

    def __init__(self, context: SparkContext, group: str) -> None:
        self._tracker = context._jsc.statusTracker()
        self._group = group
        self._jobs: dict[int, list[int]] = {}
        self._stages: dict[int, tuple[int, int]] = {}

    def count(self) -> TaskCounts | None:
        from py4j.protocol import Py4JError

        try:
            for job in self._tracker.getJobIdsForGroup(self._group):
                if job not in self._jobs and (info := self._tracker.getJobInfo(job)) is not None:
                    self._jobs[job] = list(info.stageIds())
            for stage in {stage for stages in self._jobs.values() for stage in stages}:
                self._look_at(stage)
        except Py4JError as error:  # the JVM may be gone, which others notice
            log.debug("tasks of %s cannot be counted: %s", self._group, error)
        return count_tasks(self._stages.values())

    def _look_at(self, stage: int) -> None:
        tasks, done = self._stages.get(stage, (1, 0))
        if done >= tasks:
            return
        info = self._tracker.getStageInfo(stage)
        if info is not None and info.submissionTime():
            self._stages[stage] = info.numTasks(), info.numCompletedTasks()


_EPOCH: Final = 0
_STOP_TIMEOUT_S: Final = 60.0  # a sink's own code, between Spark's jobs, cannot be interrupted


class BatchQuery:
    """Runs one query as a batch job.

    Spark writes no checkpoint: the run's commit decides whether the epoch counts (batchlog).
    """

    def __init__(
        self,
        definition: QueryDefinition,
        *,
        logs: CommitLog,
        committer: EpochCommitter,
        clock: Clock,
        record_input: Callable[[Sequence[SourceEnd]], None],
    ) -> None:
        self.name = definition.name
        self.definition = definition
        self.logs = logs
        self.committer = self.counts = committer
        self._clock = clock
        self._record_input = record_input
        self._rows: int | None = None
        self._checked: dict[str, int] = {}
        self._reports: list[BatchReport] = []
        self._group = f"spark-stream {self.name} {uuid.uuid4()}"
        self._tasks: BatchTasks | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, how: StartMode) -> None:
        """Start the job in a thread of its own; *how* makes no difference.

        Crash safety: what it leaves is staged, and removed or replaced by the next attempt.
        """
        from pyspark import InheritableThread

        self._error = None
        self._tasks = BatchTasks(self.definition.df.sparkSession.sparkContext, self._group)
        self._thread = InheritableThread(target=self._run, name=f"batch {self.name}")
        self._thread.daemon = True  # a job that cannot be stopped must not hold the process
        self._thread.start()
        log.info("query=%s started as one batch job (%s)", self.name, how.value)

    def has_ended(self) -> bool:
        return self._thread is not None and not self._thread.is_alive()

    def error(self) -> BaseException | None:
        """Return why the job ended; None when it ended by itself."""
        return self._error

    def settle(self) -> None:
        self._thread = None

    def stop(self) -> None:
        thread = self._thread
        if thread is None or not thread.is_alive():
            return
        with jobs_refused(self.definition.df.sparkSession.sparkContext, self._group):
            thread.join(_STOP_TIMEOUT_S)
        if thread.is_alive():
            raise TimeoutError(f"its batch job has not stopped in {_STOP_TIMEOUT_S:.0f} s")

    def reading(self) -> Reading:
        return Reading(tasks=self._tasks.count() if self._tasks is not None else None)

    def new_batches(self) -> list[BatchReport]:
        new, self._reports = self._reports, []
        return new

    def _run(self) -> None:
        began, since = self._clock.now(), self._clock.monotonic()
        try:
            self._stage()
        except BaseException as error:  # noqa: BLE001 - the driver's thread raises it
            self._error = error
            return
        took_s = self._clock.monotonic() - since
        report = own_report(_EPOCH, began, took_s, self._rows)
        self._reports = [report._replace(counts=self._checked)]

    def _stage(self) -> None:
        df = self.definition.df
        df.sparkSession.sparkContext.setJobGroup(self._group, f"query {self.name}")
        self._record_input(files_read(self.definition))
        execution = BatchExecution(observed(df))
        lost = 0
        if lossy := lossy_among(self.definition.sources):
            lost = warn_of_losses(lossy, f"query={self.name}", execution.planned)
        rows = BatchRows(
            self.definition,
            began=self._clock.now(),
            execution=lambda: execution.planned,
            rows_of=lambda tap: tap.rows,
        )
        counts = functools.cache(lambda: self._count(execution, rows, lost))
        policy = RowPolicy(self.definition, COUNT, None)
        with rows.without_taken(execution.rows()) as output:
            self.committer.pre_commit(
                output,
                _EPOCH,
                counts,
                quarantined=rows.quarantined,
                check=lambda record: self._check(policy, record, counts(), rows),
            )

    def _check(
        self, policy: RowPolicy, record: EpochRecord, counts: BatchCounts, rows: BatchRows
    ) -> None:
        policy.check(_EPOCH, vars(record), counts, rows.examples)
        check_batch(self.definition, record)

    def _count(self, execution: BatchExecution, rows: BatchRows, lost: int) -> BatchCounts:
        session = self.definition.df.sparkSession._jsparkSession
        pushed = find_pushed_filters(self.name, execution.planned.executedPlan(), session)
        taps = rows.count_taps()
        sources = rows.agreed(execution.count_source_rows())
        self._rows = sum(sources.values()) if sources is not None else None
        counts = BatchCounts(
            self._rows,
            lost=lost,
            taps=taps,
            sources=sources,
            pushed=pushed,
            event_times=event_times_of(execution.planned),
        )
        self._checked = checked_rows(self.definition.taps, counts)
        return counts


# What reads in a batch job without telling the source's name, or its rows.
_UNCOUNTED: Final = frozenset({"BatchScanExec", "InMemoryTableScanExec", "RowDataSourceScanExec"})


@contextlib.contextmanager
def _settings_for_tasks(spark: SparkSession) -> Iterator[None]:
    """Apply a session's settings to this thread's tasks; Spark sends them only with an action."""
    context = spark.sparkContext
    found = spark._jsparkSession.sessionState().conf().getAllConfs().iterator()
    settings = {}
    while found.hasNext():
        setting = found.next()
        settings[str(setting._1())] = str(setting._2())
    ours = {name: value for name, value in settings.items() if name.startswith("spark")}
    before = {name: context.getLocalProperty(name) for name in ours}
    try:
        for name, value in ours.items():
            context.setLocalProperty(name, value)
        yield
    finally:
        for name, earlier in before.items():
            context.setLocalProperty(name, earlier)  # type: ignore[arg-type]  # None removes it


class BatchExecution:
    """One execution of a static DataFrame whose scans can be read afterwards."""

    def __init__(self, df: DataFrame) -> None:
        self._df = df
        self._execution = df._jdf.queryExecution()

    def rows(self) -> DataFrame:
        from pyspark.sql import DataFrame, SparkSession

        session = self._df.sparkSession._jsparkSession.cloneSession()
        is_streaming = False
        # Adaptive execution runs the stages below a shuffle or a broadcast here.
        with _settings_for_tasks(self._df.sparkSession):
            rows = self._execution.toRdd()
        frame = session.internalCreateDataFrame(rows, self._df._jdf.schema(), is_streaming)
        return DataFrame(frame, SparkSession(self._df.sparkSession.sparkContext, session))

    @property
    def planned(self) -> Any:
        return self._execution

    def count_source_rows(self) -> dict[str, int] | None:
        """Return the rows read from named sources; None where the plan does not tell."""
        plan = self._execution.executedPlan()
        before = plan.initialPlan() if _is_adaptive(plan) else plan
        tag = source_tag(self._df.sparkSession._jvm)
        for leaf in leaves(before):
            if leaf.getClass().getSimpleName() in _UNCOUNTED and not is_named_scan(leaf, tag):
                return None
        return count_source_rows(plan, lambda leaf: source_of(leaf, (), tag), tag)


_PUSHES: Final = {  # which readers leave rows out, and the setting that lets them
    "AvroFileFormat": "spark.sql.avro.filterPushdown.enabled",
    "CSVFileFormat": "spark.sql.csv.filterPushdown.enabled",
    "JsonFileFormat": "spark.sql.json.filterPushdown.enabled",
    "OrcFileFormat": "spark.sql.orc.filterPushdown",
    "ParquetFileFormat": "spark.sql.parquet.filterPushdown",
}


def count_source_rows(
    plan: Any, name_of: Callable[[Any], str | None], tag: Any = None
) -> dict[str, int] | None:
    """Count the rows that a finished batch has read, by source; None if unknown.

    Args:
        plan: the executed plan.
        name_of: returns the source of a scan; None if unknown, whose rows have an empty name.
        tag: of a batch job, that of its named leaves.
    """
    from py4j.protocol import Py4JError

    try:
        # Adaptive execution drops a stage that turns out to have no rows, scans and all.
        plans = (plan, plan.initialPlan()) if _is_adaptive(plan) else (plan,)
        counts = [_rows_by_source(each, name_of, tag) for each in plans]
    except Py4JError as error:
        log.warning("input rows of this batch are not known: %s", error)
        return None
    names = dict.fromkeys(name for each in counts for name in each)
    return {name: max(each.get(name, 0) for each in counts) for name in names}


def _rows_by_source(plan: Any, name_of: Callable[[Any], str | None], tag: Any) -> dict[str, int]:
    rows: dict[str, int] = {}
    for leaf in source_scans(plan, tag):
        name = name_of(leaf) or ""
        rows[name] = rows.get(name, 0) + rows_of(leaf)
    return rows


def _is_adaptive(plan: Any) -> bool:
    return str(plan.getClass().getSimpleName()) == ADAPTIVE


def find_pushed_filters(query: str, plan: Any, session: Any) -> dict[str, str]:
    """Return the filters by which file readers skip rows uncounted, and log them."""
    from py4j.protocol import Py4JError

    try:
        found = filters_before_count(plan, session)
    except Py4JError as error:  # another version of Spark
        log.debug("query=%s it is not known which rows its files leave out: %s", query, error)
        return {}
    for source, filters in found.items():
        text = "query=%s source=%s: rows_read is without what %s leave out in its files"
        log.info(text, query, source, filters)
    return found


def filters_before_count(plan: Any, session: Any) -> dict[str, str]:
    """Return the filters by which file readers skip rows uncounted, by source.

    Parquet and ORC skip parts of a file by their statistics. The number of skipped rows is unknown;
    ``numOutputRows`` of a scan counts the rest.
    """
    found: dict[str, str] = {}
    for leaf in source_scans(plan):
        if leaf.getClass().getSimpleName() != FILE_SCAN:
            continue
        setting = _PUSHES.get(str(leaf.relation().fileFormat().getClass().getSimpleName()))
        if setting is None or session.sessionState().conf().getConfString(setting) != "true":
            continue
        pushed = leaf.metadata().get("PushedFilters")
        name = option_of(leaf.relation().options(), SOURCE_OPTION)
        if name is not None and pushed.isDefined() and pushed.get() != "[]":
            found[name] = str(pushed.get())
    return found


def lossy_among(sources: Sequence[SourceDefinition]) -> list[LossySource]:
    """Return those that may lose rows of these sources in a batch."""
    known = [source.source for source in sources]
    return [each for each in known if isinstance(each, LossySource) and each.may_lose()]


def warn_of_losses(lossy: Sequence[LossySource], where: str, execution: Any) -> int:
    """Log how many rows a batch loses, by part of the source; return their number."""
    from py4j.protocol import Py4JError

    try:
        tasks = list(planned_tasks(execution.executedPlan()))
    except Py4JError as error:  # another version of Spark; the source itself has logged it
        log.debug("%s: it is not known what has expired: %s", where, error)
        return 0
    losses = [loss for task in tasks for kind in _of_kinds(lossy) if (loss := kind.loss_of(task))]
    for loss in losses:
        log.warning(
            "%s: %d rows have expired before they were read: %s", where, loss.rows, loss.where
        )
    return sum(loss.rows for loss in losses)


def _of_kinds(lossy: Sequence[LossySource]) -> list[LossySource]:
    return list({type(each): each for each in lossy}.values())
