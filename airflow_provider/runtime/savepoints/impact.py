"""Impact of a rewind: the runs, epochs, rows and periods that it would remove; only reads.

The runs, and what refuses them, are those that a rewind finds (:mod:`.rewind`).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from airflow_provider.runtime.errors import SparkStreamError
from airflow_provider.runtime.jobdir.event_times import EventTimes, joined
from airflow_provider.runtime.jobdir.upgrade_record import describe_version, upgrade_over
from airflow_provider.runtime.savepoints.catalog import find_savepoints
from airflow_provider.runtime.savepoints.record import REWIND, readers
from airflow_provider.runtime.savepoints.restores import what_is_unfinished
from airflow_provider.runtime.savepoints.revised_output import revised_runs
from airflow_provider.runtime.savepoints.rewind import check_start, runs_to_rewind
from airflow_provider.runtime.sinks.revert import output_of
from airflow_provider.runtime.storage.open import open_storage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.jobdir.revised_runs import RevisedRun


@dataclasses.dataclass(frozen=True)
class RunImpact:
    """What would be removed of a run.

    Attributes:
        rows: in all sinks, without those of folded epochs.
        folded: epochs whose records were folded away, so that they cannot be reverted.
        event_times: of its rows; None when not known.
    """

    run_id: str
    interval: tuple[str, str] | None
    epochs: int
    rows: int
    folded: int
    sinks: tuple[str, ...]
    event_times: EventTimes | None


@dataclasses.dataclass(frozen=True)
class SavepointImpact:
    """A savepoint that has read what would be removed: it no longer fits the job's output.

    Attributes:
        read_by: the jobs that are being restored from it, which pin it.
    """

    name: str
    origin: str
    taken: str
    read_by: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Impact:
    """What a rewind of a run with those that have built on it would do.

    Attributes:
        runs: that would be rewound, the newest first and the run itself last.
        goes_back_to: the savepoint that the job would be set to; None for its beginning.
        savepoints: complete ones that have read more than the job would have then.
        refusal: why the rewind would be refused; None if nothing is known to refuse it.
    """

    run_id: str
    runs: Sequence[RunImpact]
    goes_back_to: str | None
    savepoints: Sequence[SavepointImpact]
    refusal: str | None

    @property
    def later(self) -> list[str]:
        return [run.run_id for run in self.runs[:-1]]

    @property
    def event_times(self) -> EventTimes | None:
        """The range of all its rows, as far as it is known."""
        return joined(run.event_times for run in self.runs)


def impact_of(directory: JobDirectory, run_id: str) -> Impact:
    """Return what a rewind of a run, with those that have built on it, would do.

    Raises:
        UnknownJobError: there is no such run.
    """
    found = runs_to_rewind(directory, run_id, with_later=True)
    names = [each for each in found if directory.run(each).rewound() is None]
    record = directory.run(run_id).record()
    batches = dict(record.starting) if record is not None and names else {}
    revised = {run.run_id: run for run in revised_runs(directory, batches)}
    back_to, refusal = _goes_back_to(directory, names or [run_id])
    if not names:
        refusal = f"run {run_id!r} is rewound already"
    return Impact(
        run_id,
        [_impact_of_run(directory, each, revised.get(each)) for each in names],
        back_to,
        list(_savepoints_after(directory, batches)),
        _why_replaced(directory, run_id) or what_is_unfinished(directory) or refusal,
    )


def _why_replaced(directory: JobDirectory, run_id: str) -> str | None:
    upgrade = upgrade_over(directory, run_id)
    return describe_version(*upgrade) if upgrade is not None else None


def _goes_back_to(directory: JobDirectory, names: Sequence[str]) -> tuple[str | None, str | None]:
    savepoint, refusal = None, None
    for run_id in names:
        try:
            savepoint = check_start(directory, run_id, with_later=True)
        except SparkStreamError as error:
            savepoint, refusal = None, refusal or str(error)
    return savepoint.url if savepoint is not None else None, refusal


def _impact_of_run(directory: JobDirectory, run_id: str, revised: RevisedRun | None) -> RunImpact:
    written = output_of(map(directory.committables, directory.query_names()), run_id).standing
    record = directory.run(run_id).record()
    parts = revised.queries.values() if revised is not None else ()
    return RunImpact(
        run_id,
        record.interval if record is not None else None,
        written.epochs,
        written.rows,
        written.folded,
        tuple(sorted(written.sinks)),
        joined(part.event_times for part in parts),
    )


def _savepoints_after(
    directory: JobDirectory, batches: Mapping[str, int]
) -> Iterator[SavepointImpact]:
    if not batches:
        return
    savepoints, _ = find_savepoints(directory.storage.at("savepoints"))
    for each in savepoints:
        record = each.record
        has_more = any(
            query.batch > batches[name] for name, query in record.queries.items() if name in batches
        )
        if has_more and record.origin != REWIND:
            jobs = {reader.job_dir for reader in readers(open_storage(each.url)) if reader.job_dir}
            yield SavepointImpact(each.folder, record.origin, record.taken, tuple(sorted(jobs)))
