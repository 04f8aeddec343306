"""Run of a job on samples: the driver's own attempt, in memory and a temporary folder."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import tempfile
import threading
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.base.typed_json import NonNegative, Seconds
from airflow_provider.runtime.driver.attempt import Attempt
from airflow_provider.runtime.driver.load_job import Declaration, load_job
from airflow_provider.runtime.entry_point import is_program
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.lease import LeaseObserver
from airflow_provider.runtime.jobdir.run_options import RunOptions
from airflow_provider.runtime.jobdir.run_spec import RunSpec
from airflow_provider.runtime.samples.result import SampleRun, result_of
from airflow_provider.runtime.samples.sample_context import SampleContext
from airflow_provider.runtime.samples.sources import Samples
from airflow_provider.runtime.spark.defaults import PARTITIONS
from airflow_provider.runtime.spark.installation import check_classic, check_java
from airflow_provider.runtime.spark.session import checkpoints_on_disk, start_spark
from airflow_provider.runtime.spark.spark_log import SparkLog
from airflow_provider.runtime.spark.versions import check_version
from airflow_provider.runtime.storage.open import open_storage

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator

    from pyspark.sql import SparkSession
    from typing_extensions import Unpack

    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.jobdir.run_arguments import RunArguments
    from airflow_provider.runtime.queries.context import JobContext

RUN_ID: Final = "sample"
Job = Callable[["JobContext"], None]

_POLL_S: Final = 0.01  # a query ends twice, and each end is noticed this late

# For rows that fit on a screen: each partition of state costs files in each batch.
_CONF: Final[Mapping[str, str]] = {
    PARTITIONS: "1",
    "spark.sql.streaming.minBatchesToRetain": "100000",  # the result tells of each batch
}


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

    It is a run as any other: the function is called with a :class:`JobContext`, and the driver
    reads, drains and calls back. Only sources and sinks are replaced.

    Args:
        job: the job's function, or ``FILE.py:FUNC``.
        inputs: the rows of each source, by the name that ``ctx.read`` gives it: a DataFrame, or a
            list of dicts, tuples or Rows. A list of such batches is read one by one, the first
            batches of all sources together, then the second ones.
        params: for ``ctx.params``.
        interval: for ``ctx.interval``.
        conf: for Spark.
        spark: a session whose JVM is used; None for the active one, which is started when there is
            none, and stays for the next call.
        folder: where the run has a temporary folder; one that all of a cluster's machines share.
        options: those of a run (:class:`.RunOptions`): *mode* is ``streaming`` unless given, and
            *at_end* may be ``suspend``, to see what is written before the end.

    Raises:
        TypeError: an option is unknown, or *until*, which is always ``end``.
        ConfigError: the job cannot be run, or a sample does not fit its source.
        RunFailedError: it has failed; what it says is what a run would say.

    Crash safety: a process that dies leaves a temporary folder.
    """
    return run_samples(
        job,
        inputs,
        rows=None,
        spark=warm_session(spark),
        folder=folder,
        params=dict(params or {}),
        interval=interval,
        conf=dict(conf or {}),
        **_SampleOptions.read_arguments({"mode": "streaming", **options}),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _SampleOptions(RunOptions):
    """The options of a run that ends with its samples, without those that this decides."""

    until: str | None = "end"
    trigger_s: Seconds | None = None
    replayable_runs: NonNegative = 0


def run_samples(
    job: Job | str,
    inputs: Mapping[str, Any],
    *,
    rows: int | None,
    spark: SparkSession,
    folder: str | None,
    conf: Mapping[str, str],
    **asked: Any,
) -> SampleRun:
    """Run a job on samples, of which those that are not given are taken from its sources.

    Args:
        job: as of :func:`run_in_memory`.
        inputs: the same.
        rows: how many rows to take of a source that has no sample; None to refuse it.
        spark: a session whose JVM is used.
        folder: as of :func:`run_in_memory`.
        conf: for Spark.
        asked: options of a :class:`RunSpec`.

    Raises:
        ConfigError, RunFailedError: as of :func:`run_in_memory`.
    """
    clock = _NearClock()
    with _place(spark, folder) as (directory, temporary):
        entry, function = _entry_of(job)
        spec = RunSpec(
            job_dir=directory.url,
            entry=entry,
            run_id=RUN_ID,
            until="end",
            conf={**_CONF, **checkpoints_on_disk(spark), **conf},
            **{"restart": "none", **asked},
        )
        samples = Samples(temporary, inputs, rows)
        make = functools.partial(SampleContext, samples=samples, folder=temporary)
        loaded = load_job(spec, directory, RUN_ID, spark, Declaration(function, make))
        samples.check_all_read()
        attempt = Attempt(
            spec,
            directory,
            RUN_ID,
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
        return result_of(final, loaded, directory, spark)


class _NearClock(SystemClock):
    """A clock for a run that is over in a moment, and of which nothing else is asked meanwhile."""

    def sleep(self, seconds: float) -> None:
        """Wait, but not so long that the end of a query goes unnoticed."""
        super().sleep(min(seconds, _POLL_S))


class SampleDirectory(JobDirectory):
    """A job directory in memory, but for what Spark reads and writes, which is in a folder.

    Args:
        storage: in memory.
        folder: for checkpoints and markers.
    """

    def __init__(self, storage: Storage, folder: Storage) -> None:
        super().__init__(storage)
        self._folder = folder

    def checkpoint(self, query: str) -> Storage:
        """Return where Spark keeps the checkpoint of *query*."""
        return self._folder.at(f"checkpoints/{query}")

    def markers(self, query: str, source: str) -> str:
        """Return where the markers of a source lie that *query* reads."""
        return self._folder.at(f"markers/{query}/{source}").url


@contextlib.contextmanager
def _place(spark: SparkSession, folder: str | None) -> Iterator[tuple[SampleDirectory, Path]]:
    """Yield the job directory and a temporary folder; both are removed."""
    if folder is None and not str(spark.sparkContext.master).startswith("local"):
        msg = (
            f"Spark runs on {spark.sparkContext.master}, whose executors may not see a temporary "
            "folder of this machine; give folder=, a folder that all of them share, or run on a "
            "session with master local[*]"
        )
        raise ConfigError(msg)
    with tempfile.TemporaryDirectory(prefix="spark-stream-", dir=folder) as made:
        storage = open_storage(f"memory://spark-stream-{uuid.uuid4().hex}")
        try:
            yield SampleDirectory(storage, open_storage(made)), Path(made)
        finally:
            storage.delete("")


def _entry_of(job: object) -> tuple[str, Callable[[JobContext], None] | None]:
    """Return how a job is called in errors, and its function; None for one that is to be loaded."""
    if isinstance(job, str) and is_program(job):
        msg = f"{job}: a script or a file of SQL is tried with spark-stream run; give a function"
        raise ConfigError(msg)
    if isinstance(job, str):
        return job, None
    if not callable(job):
        msg = f"{job!r} is no job; give its function, or FILE.py:FUNC"
        raise ConfigError(msg)
    name = getattr(job, "__qualname__", type(job).__name__)
    return f"{getattr(job, '__module__', None) or 'job'}:{name}", job


def warm_session(spark: SparkSession | None) -> SparkSession:
    """Return the caller's session; or the active one, which is started when there is none.

    Raises:
        ConfigError: it is of Spark Connect, or of a version that is not supported; or there is no
            Java to start one.
    """
    from pyspark.sql import SparkSession

    session = spark or SparkSession.getActiveSession()
    if session is None:
        check_classic(None, {})
        check_java()
        session = start_spark("spark-stream samples", None, {})
        atexit.register(_stop, session)
    if not hasattr(session, "_jsparkSession"):
        msg = (
            "this session is of Spark Connect, whose client sees neither plans nor logs of a "
            "query; use one with master local[*]"
        )
        raise ConfigError(msg)
    check_version(session.version)
    return session


def _stop(session: SparkSession) -> None:
    spark_log = SparkLog.of(session)
    with contextlib.suppress(Exception):  # the JVM may be gone
        session.stop()
    if spark_log is not None:
        spark_log.remove_temporary()
