"""A job that reads what a run has read, and writes to a scratch folder and nowhere else."""

from __future__ import annotations

import dataclasses
import functools
import json
import uuid
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.comparisons.first_run import check_begins
from airflow_provider.runtime.api.sinks import FileLayout, FileSink, OnePhaseSink, ShapedSink
from airflow_provider.runtime.base.clock import SystemClock, to_iso
from airflow_provider.runtime.checkpoint.source_names import key_of_source
from airflow_provider.runtime.driver.attempt import Attempt
from airflow_provider.runtime.driver.load_job import Declaration, load_job
from airflow_provider.runtime.entry_point import is_program
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.end_of_input import SourceEnds, is_marker, put_source_ends
from airflow_provider.runtime.jobdir.lease import LeaseObserver
from airflow_provider.runtime.jobdir.pinned_settings import FOLDER
from airflow_provider.runtime.jobdir.run_options import COUNT, FAIL
from airflow_provider.runtime.jobdir.run_records import BATCH
from airflow_provider.runtime.queries.cleaned_sources import cleaning
from airflow_provider.runtime.queries.context import JobContext
from airflow_provider.runtime.queries.known_bugs import KNOWN_BUGS
from airflow_provider.runtime.queries.output_locations import location_key
from airflow_provider.runtime.queries.plan import named_leaves
from airflow_provider.runtime.samples.in_memory import SampleDirectory
from airflow_provider.runtime.sinks.columns import check_columns
from airflow_provider.runtime.sinks.files import FilesSink
from airflow_provider.runtime.sources.files import FilesSource
from airflow_provider.runtime.storage.open import open_storage

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from airflow_provider.extensions.comparisons.first_run import FirstRun, InputEnds
    from airflow_provider.runtime.api.sinks import Sink
    from airflow_provider.runtime.checkpoint.source_end import SourceEnd
    from airflow_provider.runtime.driver.attempt import OnProgress
    from airflow_provider.runtime.driver.load_job import LoadedJob
    from airflow_provider.runtime.jobdir.batch_history import BatchHistory
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.jobdir.run_records import FinalCheckpoint
    from airflow_provider.runtime.jobdir.run_spec import RunSpec
    from airflow_provider.runtime.queries.output_locations import Sinks
    from airflow_provider.runtime.queries.query import QueryDefinition
    from airflow_provider.runtime.sources.declared import SourceDefinition

SECOND: Final = "second"
_PARQUET: Final = FileLayout("parquet", (), {})


@dataclasses.dataclass(frozen=True)
class WrittenTwice:
    """An output of a query: the job's own sink, and the scratch one with the second rows."""

    own: Sink | OnePhaseSink
    scratch: ScratchSink


class ScratchSink(FilesSink):
    """Takes the place of sinks; of a sink of files it has the format, so both lose the same."""

    def __init__(self, folder: Path, layout: FileLayout) -> None:
        super().__init__(str(folder), *layout)
        self._replaced: list[Sink | OnePhaseSink] = []

    def replace(self, sink: Sink | OnePhaseSink) -> None:
        self._replaced.append(sink)

    def check(self, df: DataFrame, output_mode: str) -> None:
        """Refuse what the replaced sinks never take; they themselves are not asked."""
        for sink in self._replaced:
            if isinstance(sink, ShapedSink):
                sink.check_shape(df, output_mode)
        check_columns(self.name, df, self.layout.format, self.layout.partition_by)


class ScratchContext(JobContext):
    """The context of a second computation; it checks declarations as in a run."""

    def __init__(self, spark: SparkSession, *, ends: InputEnds, folder: Path, **run: Any) -> None:
        super().__init__(spark, **run)
        self._ends = ends
        self._folder = folder
        self._scratch: dict[str, ScratchSink] = {}  # by the location of the job's own sink
        self.outputs: dict[str, list[WrittenTwice]] = {}
        self.not_called: dict[str, None] = {}

    def _source(self, declared: SourceDefinition) -> SourceDefinition:
        if declared.is_internal and declared.folder is not None:
            if self._is_batch:
                raise ConfigError(
                    f"source {declared.name!r} reads what another query of the job writes, and "
                    "BATCH runs the queries side by side"
                )
            written = self._scratch[location_key(declared.folder)].location
            source = dataclasses.replace(declared.source, path=written)  # type: ignore[type-var]
            return dataclasses.replace(declared, source=source)
        for each in (declared, *([declared.also] if declared.also is not None else [])):
            if (option := cleaning(each)) is not None:
                raise ConfigError(
                    f"source {each.name!r} removes its files ({option}), so the run's input is "
                    "gone; a run can be computed again only where its input stays"
                )
        also = self._limited(declared.also) if declared.also is not None else None
        return dataclasses.replace(self._limited(declared), also=also)

    def _limited(self, declared: SourceDefinition) -> SourceDefinition:
        """Return a source that ends where the run has read it: in BATCH by a list of files."""
        if not declared.bounded:
            raise _unknown_end(declared)
        if not self._is_batch:
            return dataclasses.replace(declared, ends=None)  # it is recorded before the start
        if not isinstance(declared.source, FilesSource):
            raise ConfigError(
                f"source {declared.name!r} ({declared.kind}): a batch job cannot end where the run "
                "ended, only files can be chosen; compute it again with --mode streaming"
            )
        end = self._ends.find(declared)
        if end is None:
            raise _unknown_end(declared)
        files = dataclasses.replace(declared.source, only=tuple(end.addresses()))
        return dataclasses.replace(declared, source=files, ends=None)

    def _sinks(self, name: str, given: Sinks, *, quarantine: bool = False) -> Sinks:
        kind = "quarantined" if quarantine else "rows"
        made: dict[str, ScratchSink] = {}
        for sink in given:
            layout = sink.layout if isinstance(sink, FileSink) else _PARQUET
            folder = self._folder / name / f"{kind}-{len(made)}"
            scratch = made.setdefault(repr(layout), ScratchSink(folder, layout))
            scratch.replace(sink)
            if isinstance(sink, FileSink) and sink.location is not None:
                self._scratch[location_key(sink.location)] = scratch
            if not quarantine:
                self.outputs.setdefault(name, []).append(WrittenTwice(sink, scratch))
        return tuple(made.values())

    def _written(self) -> set[str]:
        return set(self._scratch)

    def on_finish(self, callback: Any) -> None:
        """Leave the callback out, as all of them: it may write anywhere."""
        self.not_called["on_finish"] = None

    def on_published(self, callback: Any) -> None:
        """See :meth:`on_finish`."""
        self.not_called["on_published"] = None

    def on_poll(self, callback: Any) -> None:
        """See :meth:`on_finish`."""
        self.not_called["on_poll"] = None

    def on_close(self, callback: Any) -> None:
        """See :meth:`on_finish`."""
        self.not_called["on_close"] = None


def _unknown_end(source: SourceDefinition) -> ConfigError:
    return ConfigError(
        f"source {source.name!r} ({source.kind}): the run has not recorded where it ended, so the "
        "same input cannot be chosen; sources that record it are bounded, and in BATCH are files"
    )


@dataclasses.dataclass(frozen=True)
class SecondRun:
    """A second computation that has ended; *batches* has the history of each query's batches."""

    job: LoadedJob
    final: FinalCheckpoint
    batches: Mapping[str, BatchHistory | None]

    @property
    def context(self) -> ScratchContext:
        context: Any = self.job.context
        return context  # type: ignore[no-any-return]  # what compute() has made


def compute(
    request: RunSpec,
    first: FirstRun,
    folder: Path,
    session: SparkSession,
    *,
    stop: threading.Event,
    on_progress: OnProgress | None,
) -> SecondRun:
    """Run *request*, in its mode, over what *first* has read; only *folder* is written to.

    Raises:
        ConfigError: the job cannot run so, or an end of *first* is unknown.
        RunFailedError: it has failed.
        RunCancelledError: *stop* was set.
    """
    clock = SystemClock()
    storage = open_storage(f"memory://spark-stream-{uuid.uuid4().hex}")
    directory = SampleDirectory(storage, open_storage(str(folder)))
    try:
        job = declare(request, first, folder / "outputs", session, directory)
        check_begins(first, job.queries)
        for query in job.queries:
            if job.plan.mode != BATCH:
                _put_ends(query, first.ends, directory)
        attempt = Attempt(
            _request(request, first, directory.url),
            directory,
            SECOND,
            job,
            observer=LeaseObserver(storage, clock),
            clock=clock,
            stop=stop,
            on_progress=on_progress,
        )
        try:
            with job.context.holding:
                final = attempt.run()
        finally:
            for stream in job.spark.streams.active:
                stream.stop()
        run = directory.run(SECOND)
        return SecondRun(job, final, {q.name: run.history(q.name) for q in job.queries})
    finally:
        storage.delete("")


def declare(
    request: RunSpec, first: FirstRun, folder: Path, session: SparkSession, directory: JobDirectory
) -> LoadedJob:
    """Call the job's function as for a second computation, and run nothing."""
    if is_program(request.entry) and request.entry.endswith(".py"):
        raise ConfigError(
            f"{request.entry}: a script does what it does as soon as it runs, and not only to "
            "sinks; give a function, or a file of SQL"
        )
    for name in first.directory.storage.list(FOLDER):
        path = f"{FOLDER}/{name}"
        directory.storage.put(path, first.directory.storage.read(path))
    made = functools.partial(ScratchContext, ends=first.ends, folder=folder)
    spec = _request(request, first, directory.url)
    job = load_job(spec, directory, SECOND, session, Declaration(make_context=made))
    job.refusals.check()
    return job


def in_mode(request: RunSpec, mode: str, entry: str) -> RunSpec:
    """Return the request for a second computation of an entry, in a mode."""
    ends: dict[str, Any] = {"until": None, "at_end": None} if mode == "batch" else {}
    return dataclasses.replace(request, mode=mode, entry=entry, **ends)


def _request(request: RunSpec, first: FirstRun, url: str) -> RunSpec:
    own = first.record.options
    ends: dict[str, Any] = (
        {"until": own.until, "at_end": own.at_end} if request.mode != "batch" else {}
    )
    return dataclasses.replace(
        request,
        **ends,
        job_dir=url,
        run_id=SECOND,
        trigger_s=None,
        replayable_runs=0,
        restart="none",
        late=COUNT if request.late == FAIL else request.late,
        late_limit=None,
        allow_non_restored_state=False,
        allow_known_bugs=tuple(bug.name for bug in KNOWN_BUGS),  # they are what is looked for
    )


def _put_ends(query: QueryDefinition, ends: InputEnds, directory: JobDirectory) -> None:
    """Let a query that has not begun end where the run has ended, as a retry of the run does.

    Spark takes the id of a query that it finds in the checkpoint.
    """
    found: list[SourceEnd] = []
    logs = _logs_of(query)
    is_named = query.topology.is_named
    for position, source in enumerate(query.sources):
        if source.is_internal or is_marker(source.name):
            continue
        end = ends.find(source, query.name)
        if end is None:
            raise _unknown_end(source)
        folder = key_of_source(source.name) if is_named else str(logs[position])
        log = folder if end.offset is None else None
        found.append(dataclasses.replace(end, location=position, log=log))
    if not found:
        return
    query_id = str(uuid.uuid4())
    directory.checkpoint(query.name).put("metadata", json.dumps({"id": query_id}).encode())
    recorded = SourceEnds(
        query_id=query_id,
        query=query.name,
        run_id=SECOND,
        token=0,
        batch=0,
        at=to_iso(SystemClock().now()),
        ends=found,
    )
    put_source_ends(directory.run(SECOND), recorded)


def _logs_of(query: QueryDefinition) -> Mapping[int, int]:
    """Return by position the folder in ``sources/`` that Spark will give to a source.

    Spark reads a source once that stands in several locations of the plan, if it is the same.
    """
    seen: list[Any] = []
    folders: dict[int, int] = {}
    for position, (leaf, _) in enumerate(named_leaves(query.df)):
        same = next((n for n, other in enumerate(seen) if other.equals(leaf)), None)
        if same is None:
            seen.append(leaf)
        folders[position] = len(seen) - 1 if same is None else same
    return folders
