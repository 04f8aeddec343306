"""Verify a finished run by computing it once more, or compare a new version of its job with it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from airflow_provider.extensions.comparisons.differences import find_difference
from airflow_provider.extensions.comparisons.explanations import blamed_operators, undecided
from airflow_provider.extensions.comparisons.first_run import check_complete, find_first_run
from airflow_provider.extensions.comparisons.published import (
    changed_input,
    published_rows,
    scratch_rows,
)
from airflow_provider.extensions.comparisons.report import (
    OutputComparison,
    QueryComparison,
    Report,
)
from airflow_provider.extensions.comparisons.scratch import scratch_folder
from airflow_provider.extensions.comparisons.scratch_job import compute, declare, in_mode
from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.errors import ConfigError, some_of
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.run_records import BATCH, STREAMING
from airflow_provider.runtime.spark.session import checkpoints_on_disk, jvm_pid
from airflow_provider.runtime.storage.open import open_storage

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from airflow_provider.extensions.comparisons.first_run import FirstRun
    from airflow_provider.extensions.comparisons.scratch_job import (
        ScratchSink,
        SecondRun,
        WrittenTwice,
    )
    from airflow_provider.runtime.api.sinks import OnePhaseSink, Sink
    from airflow_provider.runtime.driver.attempt import OnProgress
    from airflow_provider.runtime.driver.load_job import LoadedJob
    from airflow_provider.runtime.jobdir.batch_history import BatchHistory
    from airflow_provider.runtime.jobdir.query_reports import FinalQuery
    from airflow_provider.runtime.jobdir.run_spec import RunSpec
    from airflow_provider.runtime.queries.query import QueryDefinition


@dataclasses.dataclass(frozen=True)
class How:
    """How a comparison is made.

    Attributes:
        spark: the session whose JVM computes.
        conf: further settings of Spark, for the second computation.
        scratch: the folder in which the scratch folder is made; None for a temporary one.
        keys: by query, the columns by which rows that differ are paired; of all with the name "".
        stop: cancels the second computation.
        on_progress: see :class:`~.driver.attempt.Attempt`.
        on_computed: called when the second computation has ended.
    """

    spark: SparkSession
    stop: threading.Event
    conf: Mapping[str, str] = dataclasses.field(default_factory=dict)
    scratch: str | None = None
    keys: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    on_progress: OnProgress | None = None
    on_computed: Callable[[], None] = lambda: None


@dataclasses.dataclass(frozen=True)
class NewVersion:
    """The version of a job that is compared with a run: its entry, and parameters that change."""

    entry: str
    params: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    secret_params: Mapping[str, str] = dataclasses.field(default_factory=dict)


def verify_run(
    job_dir: str,
    run_id: str | None,
    how: How,
    *,
    mode: str | None = None,
    entry: str | None = None,
) -> Report:
    """Compute a finished run once more, in the other mode, and compare its rows with the published.

    Args:
        job_dir: the job directory; nothing is written there.
        run_id: the run; None for the newest that has ended.
        how: where and with what.
        mode: ``streaming`` or ``batch``; None for the mode that the run did not have.
        entry: the job's function, if it is found elsewhere now.

    Raises:
        ConfigError: the run cannot be computed again; the message says why.
        RunFailedError: the second computation has failed.
        RunCancelledError: it was cancelled.
    """
    first = find_first_run(job_dir, run_id)
    own = first.final.mode
    other = mode or ("streaming" if own == BATCH else "batch")
    if other.upper() != own:
        check_complete(first)
    request = in_mode(first.request, other, entry or first.request.entry)
    try:
        return _Comparison(first, request, how).of_same_job()
    except ConfigError as error:
        if mode is not None or other == "streaming":
            raise
        raise ConfigError(
            f"{first.label} cannot be computed in BATCH: {error}; --mode streaming computes it a "
            "second time as a stream"
        ) from error


def compare_version(job_dir: str, run_id: str | None, new: NewVersion, how: How) -> Report:
    """Run a new version of a job over what a finished run has read, and compare the results.

    The arguments and errors are those of :func:`verify_run`; the mode is the run's.
    """
    first = find_first_run(job_dir, run_id)
    request = dataclasses.replace(
        in_mode(first.request, first.final.mode.lower(), new.entry),
        params={**first.request.params, **new.params},
        secret_params={**first.request.secret_params, **new.secret_params},
    )
    return _Comparison(first, request, how).of_new_version()


class _Comparison:
    def __init__(self, first: FirstRun, request: RunSpec, how: How) -> None:
        self._first = first
        self._how = how
        conf = {**checkpoints_on_disk(how.spark), **first.request.conf, **how.conf}
        self._request = dataclasses.replace(request, conf=conf)
        self._clock = SystemClock()

    def of_same_job(self) -> Report:
        return self._report("a second computation", ("published", "computed again"), lambda _: None)

    def of_new_version(self) -> Report:
        names = ("in the run", "in the new version")
        return self._report(self._request.entry, names, self._declared_before)

    def _report(
        self, what: str, names: tuple[str, str], declare_first: Callable[[Path], LoadedJob | None]
    ) -> Report:
        """Compute the run again, and compare it with the outputs of *declare_first*, if any."""
        since = self._clock.monotonic()
        with self._scratch() as folder:
            notes = self._check_input()
            declared = declare_first(folder)
            second = self._compute(folder)
            found = self._compare(second, declared or second.job, folder)
            return Report(
                self._first.label,
                f"{what} in {second.final.mode}",
                names,
                found,
                (*notes, *_notes(second)),
                self._clock.monotonic() - since,
            )

    def _declared_before(self, folder: Path) -> LoadedJob:
        """Return the job as the run declared it, which says how its files are read."""
        directory = JobDirectory(open_storage(str(folder / "declared")))
        own = in_mode(self._first.request, self._request.mode, self._first.request.entry)
        own = dataclasses.replace(own, conf=self._request.conf)
        declared = declare(own, self._first, folder / "unused", self._how.spark, directory)
        declared.context.holding.close()
        return declared

    def _scratch(self) -> Any:
        spark = self._how.spark
        master = str(spark.sparkContext.master)
        return scratch_folder(self._how.scratch, spark_master=master, jvm=jvm_pid(spark))

    def _check_input(self) -> list[str]:
        gone, changed = changed_input(self._how.spark, self._first.ends.files())
        if gone:
            raise ConfigError(
                f"{self._first.label}: {len(gone):,} of the files that it has read are gone "
                f"({some_of(gone)}), so it cannot be computed again; put them back, or name a "
                "run whose input is there"
            )
        if not changed:
            return []
        return [f"{len(changed):,} input files have changed since: {some_of(changed)}"]

    def _compute(self, folder: Path) -> SecondRun:
        how = self._how
        second = compute(
            self._request,
            self._first,
            folder,
            how.spark,
            stop=how.stop,
            on_progress=how.on_progress,
        )
        how.on_computed()
        return second

    def _compare(
        self, second: SecondRun, declared: LoadedJob, folder: Path
    ) -> tuple[QueryComparison, ...]:
        names = dict.fromkeys([*self._first.final.queries, *second.final.queries])
        found = []
        for number, name in enumerate(names):
            first, again = self._first.final.queries.get(name), second.final.queries.get(name)
            if first is None or again is None:
                only = self._first.label if again is None else self._request.entry
                found.append(QueryComparison(name, missing=f"only {only} has this query"))
                continue
            outputs = self._outputs(name, second, declared, folder / "differences" / str(number))
            found.append(self._of_query(name, first, again, second, outputs))
        return tuple(found)

    def _of_query(
        self,
        name: str,
        first: FinalQuery,
        again: FinalQuery,
        second: SecondRun,
        outputs: tuple[OutputComparison, ...],
    ) -> QueryComparison:
        in_stream = first if self._first.final.mode == STREAMING else again
        query = query_named(second.job, name)
        pairs = [
            (_numbers(first, self._first.run.history(name))),
            (_numbers(again, second.batches[name])),
        ]
        both = {key: (pairs[0][key], pairs[1][key]) for key in pairs[0]}
        return QueryComparison(
            name,
            outputs,
            counts={key: pair for key, pair in both.items() if key not in _ACCOUNT},
            account={key: pair for key, pair in both.items() if key in _ACCOUNT},
            operators=tuple(blamed_operators(in_stream)),
            undecided=tuple(undecided(query)) if query is not None else (),
        )

    def _outputs(
        self, name: str, second: SecondRun, declared: LoadedJob, folder: Path
    ) -> tuple[OutputComparison, ...]:
        query = query_named(declared, name)
        if query is None:
            why = f"{self._first.request.entry} does not declare the query any more"
            return (OutputComparison(name, None, why),)
        context: Any = declared.context
        own: list[WrittenTwice] = context.outputs[name]
        again: list[WrittenTwice] = second.context.outputs[name]
        return tuple(
            self._output(query, each.own, _scratch_for(each.own, again), second, folder / str(n))
            for n, each in enumerate(own)
        )

    def _output(
        self,
        query: QueryDefinition,
        sink: Sink | OnePhaseSink,
        scratch: ScratchSink,
        second: SecondRun,
        folder: Path,
    ) -> OutputComparison:
        name, spark = query.name, second.job.spark
        published = published_rows(self._first, name, sink, query.df.schema, spark)
        difference, again = None, query_named(second.job, name)
        if published.rows is not None and again is not None:
            rows = scratch_rows(spark, scratch, again.df.schema)
            keys = self._how.keys.get(name) or self._how.keys.get("", ())
            difference = find_difference(published.rows, rows, folder, keys)
        counts = (
            self._first.final.queries[name].row_counts.written.get(sink.name),
            second.final.queries[name].row_counts.written.get(scratch.name),
        )
        return OutputComparison(
            sink.name,
            difference,
            published.why_not,
            published.findings,
            # Otherwise each batch writes rows again.
            counts if query.output_mode == "append" else (None, None),
        )


def query_named(job: LoadedJob, name: str) -> QueryDefinition | None:
    """Return a query of a job, None without one of this name."""
    return next((each for each in job.queries if each.name == name), None)


def _scratch_for(sink: Sink | OnePhaseSink, written: Sequence[WrittenTwice]) -> ScratchSink:
    found = (each.scratch for each in written if each.own.name == sink.name)
    return next(found, written[0].scratch)


_ACCOUNT = ("rejected records", "rows that broke a rule", "quarantined rows that are not late")


def _numbers(report: FinalQuery, batches: BatchHistory | None) -> dict[str, Any]:
    counts = report.row_counts
    late = None if None in counts.late.values() else sum(n or 0 for n in counts.late.values())
    own = None if counts.quarantined is None else counts.quarantined - counts.late_quarantined
    times = [each.time_ms for each in batches.batches] if batches is not None else []
    states = [each.state_rows or 0 for each in batches.batches] if batches is not None else []
    return {
        "rows read": counts.rows_read,
        "late": late,
        "rejected records": sum(each.broken for each in counts.rejected.values()),
        "rows that broke a rule": sum(each.broken for each in counts.rules.values()),
        "quarantined rows that are not late": own,
        "batches": len(times) or None,
        "longest batch": f"{max(times) / 1000:,.1f} s" if times else None,
        "most state rows": max(states, default=None),
    }


def _notes(second: SecondRun) -> list[str]:
    left = list(second.context.not_called)
    if not left:
        return []
    return [f"callbacks of the job were not called, since they may write: {', '.join(left)}"]
