"""Views of failures: those of the newest runs, by their root cause."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.plugins.observed_jobs import answer_without_log
from airflow_provider.plugins.responses import FailuresView, FailureView, OccurrenceView
from airflow_provider.plugins.run_views import newest_run_ids
from airflow_provider.runtime.errors import EXIT_OK, CheckpointError, SparkStreamError
from airflow_provider.runtime.errors.explanation import Failure, screen_lines
from airflow_provider.runtime.failures.messages import AFTER_A_TASK
from airflow_provider.runtime.jobdir.layout import directory_at
from airflow_provider.runtime.observe.endings import silent_failure
from airflow_provider.runtime.observe.state import ending_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider.plugins.observed_jobs import Observed, ObservedJobs
    from airflow_provider.runtime.jobdir.layout import RunDirectory
    from airflow_provider.runtime.jobdir.run_records import AttemptRecord
    from airflow_provider.runtime.observe.snapshot import RunSnapshot

# Numbers, ids and addresses differ from one time to the next, and the cause is the same.
_VARIES: Final = re.compile(r"0x[0-9a-f]+|[0-9a-f]{8}-[0-9a-f-]{27}|\d+", re.IGNORECASE)


def read_failures(job_dir: str, jobs: ObservedJobs) -> FailuresView:
    """Return the failures of the newest runs, the newest cause first.

    Args:
        job_dir: the job directory.
        jobs: knows how the newest run's driver ended, also if it could record nothing.

    Raises:
        OSError: the storage cannot be read.
    """
    directory = directory_at(job_dir)
    newest = _observed(jobs, job_dir)
    views: dict[tuple[str, ...], FailureView] = {}
    for run_id in newest_run_ids(directory):
        view = newest.view if newest is not None and newest.run_id == run_id else None
        try:
            found = list(_of_run(directory.run(run_id), view))
        except CheckpointError:
            continue  # its damage is shown among the runs
        for failure, occurrence in found:
            key = _cause(failure)
            views.setdefault(key, _view(failure)).occurrences.append(occurrence)
    return FailuresView(failures=list(views.values()))


def _observed(jobs: ObservedJobs, job_dir: str) -> Observed | None:
    """Return the newest run if its driver has failed; None for any other."""
    try:
        observed = jobs.look(job_dir)
    except SparkStreamError:
        return None
    condition = observed.condition
    has_failed = condition is not None and condition.state in {"failed", "killed"}
    return observed if has_failed else None


def _of_run(
    run: RunDirectory, failed: RunSnapshot | None
) -> Iterator[tuple[Failure, OccurrenceView]]:
    """Yield the failures of a run, the newest first.

    Args:
        run: the run.
        failed: the newest run, of which a driver has failed; None for any other run.
    """
    attempts = run.attempts()
    begun = {each.driver_id for each in attempts}
    for submission in reversed(run.submissions()):
        if submission.driver_id not in begun:
            yield from _silent_end(run, submission.driver_id, None, failed)
    for attempt in reversed(attempts):
        if attempt.failure is not None:
            yield _occurrence(run, attempt, Failure.from_dict(attempt.failure), is_restarted=False)
        if attempt.restarts is not None:
            last: dict[str, Any] = attempt.restarts["failure"]
            if last != attempt.failure:
                yield _occurrence(run, attempt, Failure.from_dict(last), is_restarted=True)
        if attempt.failure is None and attempt.outcome is None:
            yield from _silent_end(run, attempt.driver_id, attempt, failed)


def _silent_end(
    run: RunDirectory, driver_id: str, attempt: AttemptRecord | None, failed: RunSnapshot | None
) -> Iterator[tuple[Failure, OccurrenceView]]:
    """Yield the end of a driver that recorded no failure, if it is known to have ended."""
    ended, at = run.exit_of(driver_id), None
    if ended is not None and ended.exit_code == EXIT_OK and attempt is not None:
        return
    last = failed.submission or failed.attempt if failed is not None else None
    if failed is not None and last is not None and last.driver_id == driver_id:
        failure, at = ending_of(failed), ended.ended if ended is not None else None
    elif ended is not None:
        host = attempt.host if attempt is not None else _host_of(run, driver_id)
        lines = screen_lines(ended.last_lines)  # any other line of a log needs another right
        failure, at = silent_failure(ended.exit_code, lines, host=host), ended.ended
    else:
        record, handle = run.launch_status_of(driver_id), run.handle_of(driver_id)
        if record is None or handle is None:
            return
        if not record.status().is_over or record.exit_code == EXIT_OK:
            return
        host = attempt.host if attempt is not None else ""
        said = answer_without_log(record.status()).describe(handle)
        failure, at = silent_failure(record.exit_code, host=host, cluster=said), record.at
    shown, occurrence = _occurrence(run, attempt, failure, is_restarted=False)
    yield shown, occurrence.model_copy(update={"at": at, "driver_id": driver_id})


def _host_of(run: RunDirectory, driver_id: str) -> str:
    process = run.process_of(driver_id)
    return process.identity.host if process is not None else ""


def _occurrence(
    run: RunDirectory, attempt: AttemptRecord | None, failure: Failure, *, is_restarted: bool
) -> tuple[Failure, OccurrenceView]:
    return failure, OccurrenceView(
        run_id=run.run_id,
        attempt=attempt.attempt if attempt is not None else None,
        driver_id=attempt.driver_id if attempt is not None else "",
        at=attempt.ended if attempt is not None else None,
        query=failure.query,
        batch=failure.batch,
        host=failure.host or (attempt.host if attempt is not None else "") or None,
        is_restarted=is_restarted,
        place=dataclasses.replace(failure, query=None).explanation.where,
        details=failure.details,
    )


def _cause(failure: Failure) -> tuple[str, ...]:
    text = failure.root_cause or failure.reason
    return failure.failure_class.value, failure.condition, _VARIES.sub("#", text)


def _view(failure: Failure) -> FailureView:
    return FailureView(
        failure_class=failure.failure_class.value,
        condition=failure.condition,
        reason=failure.explanation.what,
        root_cause=failure.root_cause,
        rule=failure.rule,
        remedy=failure.remedy,
        helps=_sentence(AFTER_A_TASK[failure.failure_class]),
        occurrences=[],
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
