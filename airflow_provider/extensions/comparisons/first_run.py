"""The run that is computed again: what it was asked for, what it has read, and how it ended."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from airflow_provider.runtime.checkpoint.source_end import SourceEnd
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.end_of_input import batch_ends, source_ends
from airflow_provider.runtime.jobdir.epochs import EpochRecords
from airflow_provider.runtime.jobdir.layout import known_job
from airflow_provider.runtime.jobdir.run_records import BATCH, FINISHED
from airflow_provider.runtime.jobdir.runs import request_of, runs_newest_first

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from airflow_provider.runtime.jobdir.end_of_input import SourceEnds
    from airflow_provider.runtime.jobdir.epoch_documents import EpochRecord
    from airflow_provider.runtime.jobdir.layout import JobDirectory, RunDirectory
    from airflow_provider.runtime.jobdir.query_reports import FinalQuery
    from airflow_provider.runtime.jobdir.run_records import FinalCheckpoint, RunRecord
    from airflow_provider.runtime.jobdir.run_spec import RunSpec
    from airflow_provider.runtime.queries.query import QueryDefinition
    from airflow_provider.runtime.sources.declared import SourceDefinition


class InputEnds:
    """Where a run's sources ended, by query and source; of files, which ones the run has read.

    Args:
        recorded: the ends of each query; None for a query that has read nothing.
    """

    def __init__(self, recorded: Mapping[str, Mapping[str, SourceEnd] | None]) -> None:
        self._recorded = recorded

    def find(self, source: SourceDefinition, query: str | None = None) -> SourceEnd | None:
        """Return the end of a source, in *query* if that one is known; None if none was recorded.

        Raises:
            ConfigError: queries have read other files of it, and *query* is none of them.
        """
        own = self._recorded.get(query, {}) if query is not None else {}
        if own is None:
            return _nothing(source)
        if source.name in own:
            return own[source.name]
        ends = {q: e[source.name] for q, e in self._recorded.items() if e and source.name in e}
        if not ends:
            return _nothing(source) if None in self._recorded.values() else None
        found = list(ends.values())
        if any((e.offset, e.files) != (found[0].offset, found[0].files) for e in found):
            raise ConfigError(
                f"source {source.name!r}: queries {' and '.join(map(repr, ends))} of the run have "
                "read it up to different ends, so one table cannot be the input of both; compute "
                "the run again as a stream, with --mode streaming"
            )
        return found[0]

    def files(self) -> dict[str, int]:
        """Return the modification time of each file that was read, by its address."""
        ends = [end for each in self._recorded.values() for end in (each or {}).values()]
        return {path: at_ms for end in ends for path, at_ms in end.addresses().items()}


def _nothing(source: SourceDefinition) -> SourceEnd | None:
    return SourceEnd(source.name, 0, log="0") if source.files is not None else None


@dataclasses.dataclass(frozen=True)
class FirstRun:
    """A finished run that can be computed again."""

    directory: JobDirectory
    run: RunDirectory
    record: RunRecord
    final: FinalCheckpoint
    request: RunSpec
    ends: InputEnds

    @property
    def label(self) -> str:
        return f"run {self.final.run_id} ({self.final.mode})"

    def epochs(self, query: str) -> Iterator[tuple[int, EpochRecord | None]]:
        """Yield the run's epochs of a query with their records; None of one that is folded."""
        report = self.final.queries[query]
        if report.query_id is None:
            return
        records = EpochRecords(self.directory.committables(query), report.query_id)
        found = records.find()
        first = self.record.starting.get(query, -1) + 1
        for epoch in range(first, report.last_batch + 1):
            yield epoch, records.published(epoch, found)


def find_first_run(job_dir: str, run_id: str | None) -> FirstRun:
    """Return a finished run, the newest one without a *run_id*.

    Raises:
        ConfigError: there is none, it has not ended, or was rewound.
    """
    directory = known_job(job_dir)
    if run_id is None:
        ended = (r.run_id for r in runs_newest_first(directory) if _counts(directory, r.run_id))
        run_id = next(ended, None)
        if run_id is None:
            raise ConfigError(
                f"{directory.url}: no run has ended with a final checkpoint; let one end first"
            )
    run = directory.run(run_id)
    record, final = run.record(), run.final()
    if record is None:
        known = ", ".join(directory.run_ids()[:5]) or "none"
        raise ConfigError(f"{directory.url}: there is no run {run_id!r}; its runs: {known}")
    if final is None:
        raise ConfigError(
            f"{directory.url}: run {run_id!r} has no final checkpoint, so its output is not "
            "complete; let it end, or name another run"
        )
    if run.rewound() is not None:
        raise ConfigError(
            f"{directory.url}: run {run_id!r} was rewound, and its output is removed; name another"
        )
    if record.options.until == "stopped":
        raise ConfigError(
            f"{directory.url}: run {run_id!r} ran until it was stopped, so nothing says where its "
            "input ended; only runs of bounded sources are computed again"
        )
    return FirstRun(
        directory=directory,
        run=run,
        record=record,
        final=final,
        request=request_of(record, run.last_attempt(), directory.url),
        ends=InputEnds({name: _ends_of(directory, run, final, name) for name in final.queries}),
    )


def _counts(directory: JobDirectory, run_id: str) -> bool:
    run = directory.run(run_id)
    return run.final() is not None and run.rewound() is None


def _ends_of(
    directory: JobDirectory, run: RunDirectory, final: FinalCheckpoint, query: str
) -> dict[str, SourceEnd] | None:
    report = final.queries[query]
    if report.query_id is None:
        return None
    recorded: SourceEnds | None
    if final.mode == BATCH:
        records = EpochRecords(directory.committables(query), report.query_id)
        epoch = records.published(0)
        recorded = batch_ends(run, report.query_id, epoch.token) if epoch is not None else None
    else:
        recorded = source_ends(run, report.query_id)
    if recorded is None:
        return None if not report.row_counts.rows_read and final.mode != BATCH else {}
    return {end.source: end for end in recorded.ends}


def check_begins(first: FirstRun, queries: Iterable[QueryDefinition]) -> None:
    """Refuse a run that continues from state or positions which only its job directory has.

    A run can be computed from its beginning if its queries began in it; or if they keep no state
    and read files only, because a run's ends name the files of that run alone.
    """
    for query in queries:
        if query.takes_over is not None:
            raise ConfigError(
                f"query {query.name!r} began from the checkpoint {query.takes_over}, whose state "
                "and positions are not repeated; such a run cannot be computed again"
            )
    if first.record.from_savepoint is None and max(first.record.starting.values(), default=-1) < 0:
        return
    for name, report in first.final.queries.items():
        if first.record.starting.get(name, -1) < 0 and first.record.from_savepoint is None:
            continue
        why = _why_not_later(report, next((q for q in queries if q.name == name), None))
        if why is not None:
            began = first.record.from_savepoint or "an earlier run of the job"
            raise ConfigError(
                f"{first.label}: query {name!r} continues from {began}, and {why}; name the run "
                "in which the job began, or a run of queries without state that read files"
            )


def _why_not_later(report: FinalQuery, query: QueryDefinition | None) -> str | None:
    if report.operators:
        return "keeps state, which a second computation would begin without"
    others = [s.name for s in query.sources if s.files is None] if query is not None else []
    if others:
        return f"its source {others[0]!r} is no folder of files, so where the run began is unknown"
    return None


def check_complete(first: FirstRun) -> None:
    """Refuse to compare a run that keeps open windows with a mode that writes them."""
    open_queries = [name for name, each in first.final.queries.items() if each.operators]
    if first.final.outcome != FINISHED and open_queries:
        raise ConfigError(
            f"{first.label} ended {first.final.outcome}: query {open_queries[0]!r} keeps rows in "
            "its state that the other mode would write; verify a run that ended FINISHED, or "
            "compute this one again in its own mode, with --mode streaming"
        )
