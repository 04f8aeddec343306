"""Run of a job on samples: the driver's own attempt, in memory and a temporary folder."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base.clock import SystemClock, millis_to_iso
from airflow_provider.runtime.base.typed_json import NonNegative, Seconds
from airflow_provider.runtime.checkpoint.drain_step import is_of_drain
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.driver.attempt import Attempt
from airflow_provider.runtime.driver.load_job import Declaration, load_job
from airflow_provider.runtime.entry_point import is_program
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.epochs import EpochRecords
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.lease import LeaseObserver
from airflow_provider.runtime.jobdir.run_options import RunOptions
from airflow_provider.runtime.jobdir.run_records import BATCH
from airflow_provider.runtime.jobdir.run_spec import RunSpec
from airflow_provider.runtime.samples.context import CollectorSink, SampleContext
from airflow_provider.runtime.samples.inputs import Samples
from airflow_provider.runtime.spark.defaults import PARTITIONS
from airflow_provider.runtime.spark.installation import check_classic, check_java
from airflow_provider.runtime.spark.session import checkpoints_on_disk, start_spark
from airflow_provider.runtime.spark.spark_log import SparkLog
from airflow_provider.runtime.spark.versions import check_version
from airflow_provider.runtime.storage.open import open_storage

if TYPE_CHECKING:
    import datetime as dt

    from pyspark.sql import DataFrame, SparkSession
    from typing_extensions import Unpack

    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.driver.load_job import LoadedJob
    from airflow_provider.runtime.jobdir.run_arguments import RunArguments
    from airflow_provider.runtime.jobdir.run_records import FinalCheckpoint
    from airflow_provider.runtime.queries.context import JobContext

Job = Callable[["JobContext"], None]

_RUN: Final = "sample"
_POLL_S: Final = 0.01  # a query ends twice, and each end is noticed this late

# For rows that fit on a screen: each partition of state costs files in each batch.
_CONF: Final[Mapping[str, str]] = {
    PARTITIONS: "1",
    "spark.sql.streaming.minBatchesToRetain": "100000",  # the result tells of each batch
}


@dataclasses.dataclass(frozen=True)
class SampleBatch:
    """One batch of a query.

    Attributes:
        number: of the batch; the last ones, which read nothing, are the drain's.
        output: the rows that it has written.
        rows_read: how many rows it has read; None if unknown.
        late_rows: how many rows it has dropped as late; None if unknown.
        watermark: the watermark with which it ran, ISO 8601; None without one, and in BATCH.
    """

    number: int
    output: DataFrame
    rows_read: int | None
    late_rows: int | None
    watermark: str | None


@dataclasses.dataclass(frozen=True)
class SampleRun:
    """The result of a job on sample input.

    Attributes:
        outputs: by query, the rows that its sinks would have: all rows; in output mode ``complete``
            those of the last batch; of a table by key the newest row of each key. The tables are in
            the caller's session and stay as they are.
        quarantined: by query with a sink for quarantined rows, those rows.
        batches: by query, its batches in their order.
        watermarks: by query, its watermark when all input was read, before the drain; ISO 8601,
            None without one, and in BATCH.
        late_rows: how many rows were dropped as late in all; None if unknown.
        final: the final checkpoint, as of a run.
    """

    outputs: Mapping[str, DataFrame]
    quarantined: Mapping[str, DataFrame]
    batches: Mapping[str, tuple[SampleBatch, ...]]
    watermarks: Mapping[str, str | None]
    late_rows: int | None
    final: FinalCheckpoint


def run_in_memory(
    job: Job | str,
    inputs: Mapping[str, Any],
    *,
    params: Mapping[str, Any] | None = None,
    interval: tuple[dt.datetime, dt.datetime] | None = None,
    conf: Mapping[str, str] | None = None,
    spark: SparkSession | None = None,
    folder: str | None = None,
    **options: Unpack[RunArguments],
) -> SampleRun:
    """Run a job on sample input, and return what it writes; no sink or source of it is touched.

    The driver runs it as any job: only sources and sinks are replaced.

    Args:
        job: the job's function, or ``FILE.py:FUNC``.
        inputs: the rows of each source, by the name that ``ctx.read`` gives it: a DataFrame, or a
            list of dicts, tuples or Rows. A list of such batches is read one by one, the first
            batches of all sources together, then the second ones.
        params: for ``ctx.params``.
        interval: for ``ctx.interval``.
        conf: for Spark.
        spark: a session whose JVM is used; None for the active one. If there is none, Spark is
            started, and stays for the next call.
        folder: where the run has a temporary folder; on a cluster, one that all its machines share.
        options: those of a run (:class:`.RunOptions`): *mode* is ``streaming`` unless given, and
            *at_end* may be ``suspend``, to see what is written before the end.

    Raises:
        TypeError: there is no such option of a run on samples, which always ends with them.
        ConfigError: the job cannot be run, or a sample does not fit its source.
        RunFailedError: the job has failed, with the message of a run.

    Crash safety: a process that dies leaves a temporary folder.
    """
    return _run(
        job,
        inputs,
        spark=spark,
        folder=folder,
        conf=conf,
        params=dict(params or {}),
        interval=interval,
        **_SampleOptions.read_arguments({"mode": "streaming", **options}),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _SampleOptions(RunOptions):
    until: str | None = "end"
    trigger_s: Seconds | None = None
    replayable_runs: NonNegative = 0


def preview(
    job: Job | str,
    inputs: Mapping[str, Any] | None = None,
    *,
    params: Mapping[str, Any] | None = None,
    rows: int = 100,
    interval: tuple[dt.datetime, dt.datetime] | None = None,
    conf: Mapping[str, str] | None = None,
    spark: SparkSession | None = None,
    folder: str | None = None,
) -> Mapping[str, DataFrame]:
    """Return what a job's queries make of a few rows of its sources, by query; nothing is written.

    A source is read as a table, once, up to *rows* rows: those that Spark finds first. A source
    that Spark only reads as a stream needs *inputs*. The job runs in BATCH where it can, else as a
    stream that is drained.

    All arguments but *rows*, how many to take of each source, are those of :func:`run_in_memory`;
    *inputs* has rows for some sources.

    Raises:
        ConfigError: the job cannot be run, or a source cannot be read as a table.
        RunFailedError: the job has failed, with the message of a run.
    """
    if rows < 1:
        raise ConfigError(f"preview: rows={rows} takes nothing of a source; give a number of rows")
    return _run(
        job,
        inputs or {},
        rows=rows,
        spark=spark,
        folder=folder,
        conf=conf,
        params=dict(params or {}),
        mode="automatic",
        interval=interval,
    ).outputs


def _run(
    job: Job | str,
    inputs: Mapping[str, Any],
    *,
    rows: int | None = None,
    spark: SparkSession | None,
    folder: str | None,
    conf: Mapping[str, str] | None,
    **asked: Any,
) -> SampleRun:
    session = _warm_session(spark)
    entry, function = _entry_of(job)
    clock = _NearClock()
    with _temporary(session, folder) as (directory, temporary):
        settings = {**_CONF, **checkpoints_on_disk(session), **(conf or {})}
        spec = RunSpec(
            job_dir=directory.url,
            entry=entry,
            run_id=_RUN,
            until="end",
            conf=settings,
            **{"restart": "none", **asked},
        )
        samples = Samples(temporary, inputs, rows)
        declaration = Declaration(function, functools.partial(SampleContext, samples=samples))
        loaded = load_job(spec, directory, _RUN, session, declaration)
        samples.check_all_read()
        attempt = Attempt(
            spec,
            directory,
            _RUN,
            loaded,
            observer=LeaseObserver(directory.storage, clock),
            clock=clock,
            stop=threading.Event(),
            on_progress=None,
        )
        try:
            with loaded.context.holding:
                final = attempt.run()
        finally:  # an interrupted cell of a notebook leaves no query running
            for query in loaded.spark.streams.active:
                query.stop()
        return _collect(loaded, session, directory, final)


def _collect(
    loaded: LoadedJob, session: SparkSession, directory: JobDirectory, final: FinalCheckpoint
) -> SampleRun:
    collecting = [
        (query, sink)
        for query in loaded.queries
        for sink in query.sinks
        if isinstance(sink, CollectorSink)
    ]
    found = [
        (query.name, sink, _History(directory, query.name, final))
        for query, sink in collecting
        if sink is not query.quarantine
    ]
    return SampleRun(
        outputs={name: sink.result(session) for name, sink, _ in found},
        quarantined={
            q.name: sink.result(session) for q, sink in collecting if sink is q.quarantine
        },
        batches={name: tuple(past.batches(sink.epochs(session))) for name, sink, past in found},
        watermarks={name: past.watermark() for name, _, past in found},
        late_rows=final.late_rows,
        final=final,
    )


class _NearClock(SystemClock):
    def sleep(self, seconds: float) -> None:
        super().sleep(min(seconds, _POLL_S))


class SampleDirectory(JobDirectory):
    """A job directory in memory, with a folder for the files that Spark reads and writes."""

    def __init__(self, storage: Storage, folder: Storage) -> None:
        super().__init__(storage)
        self._folder = folder

    def checkpoint(self, query: str) -> Storage:
        return self._folder.at(f"checkpoints/{query}")

    def markers(self, query: str, source: str) -> str:
        return self._folder.at(f"markers/{query}/{source}").url


class _History:
    def __init__(self, directory: JobDirectory, query: str, final: FinalCheckpoint) -> None:
        query_id = str(final.queries[query].query_id)
        self._records = EpochRecords(directory.committables(query), query_id)
        self._logs = CheckpointLogs(directory.checkpoint(query))
        self._is_batch = final.mode == BATCH

    def batches(self, epochs: Mapping[int, DataFrame]) -> Iterator[SampleBatch]:
        read: int | None = 0
        late: int | None = 0
        for number, output in epochs.items():
            read_before, late_before = read, late
            read, late = self._counts(number)
            watermark = None if self._is_batch else _iso(self._logs.offsets(number).watermark_ms)
            yield SampleBatch(
                number, output, _more(read, read_before), _more(late, late_before), watermark
            )

    def _counts(self, epoch: int) -> tuple[int | None, int | None]:
        record = self._records.published(epoch)
        if record is None:
            return None, None
        late = record.late_rows
        return record.rows_read, None if late is None else sum(late.values())

    def watermark(self) -> str | None:
        if self._is_batch:
            return None
        commits = [self._logs.commit(number) for number in self._logs.batches("commits")]
        reached = [commit.watermark_ms for commit in commits]
        return _iso(max((each for each in reached if not is_of_drain(each)), default=0))


def _more(now: int | None, before: int | None) -> int | None:
    return None if now is None or before is None else now - before


def _iso(watermark_ms: int) -> str | None:
    return millis_to_iso(watermark_ms) if watermark_ms else None


@contextlib.contextmanager
def _temporary(spark: SparkSession, folder: str | None) -> Iterator[tuple[SampleDirectory, Path]]:
    if folder is None and not str(spark.sparkContext.master).startswith("local"):
        raise ConfigError(
            f"Spark runs on {spark.sparkContext.master}, whose executors may not see a temporary "
            "folder of this machine; give folder=, a folder that all of them share, or run on a "
            "session with master local[*]"
        )
    with tempfile.TemporaryDirectory(prefix="spark-stream-", dir=folder) as made:
        storage = open_storage(f"memory://spark-stream-{uuid.uuid4().hex}")
        try:
            yield SampleDirectory(storage, open_storage(made)), Path(made)
        finally:
            storage.delete("")


def _entry_of(job: object) -> tuple[str, Job | None]:
    if isinstance(job, str) and is_program(job):
        raise ConfigError(
            f"{job}: a script or a file of SQL is tried with spark-stream run; give a function"
        )
    if isinstance(job, str):
        return job, None
    if not callable(job):
        raise ConfigError(f"{job!r} is no job; give its function, or FILE.py:FUNC")
    name = getattr(job, "__qualname__", type(job).__name__)
    return f"{getattr(job, '__module__', None) or 'job'}:{name}", job


def _warm_session(spark: SparkSession | None) -> SparkSession:
    from pyspark.sql import SparkSession

    session = spark or SparkSession.getActiveSession()
    if session is None:
        check_classic(None, {})
        check_java()
        session = start_spark("spark-stream samples", None, {})
        atexit.register(_stop, session)
    if not hasattr(session, "_jsparkSession"):
        raise ConfigError(
            "this session is of Spark Connect, whose client sees neither plans nor logs of a "
            "query; use one with master local[*]"
        )
    check_version(session.version)
    return session


def _stop(session: SparkSession) -> None:
    spark_log = SparkLog.of(session)
    with contextlib.suppress(Exception):  # the JVM may be gone
        session.stop()
    if spark_log is not None:
        spark_log.remove_temporary()
