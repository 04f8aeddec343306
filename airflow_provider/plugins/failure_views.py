"""Views of failures: those of the newest runs, by their root cause."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.plugins.responses import FailuresView, FailureView, OccurrenceView
from airflow_provider.plugins.run_views import newest_run_ids
from airflow_provider.runtime.control.launchers.protocol import Look
from airflow_provider.runtime.errors import CheckpointError
from airflow_provider.runtime.errors.failure import Failure, FailureClass
from airflow_provider.runtime.jobdir.layout import directory_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider.runtime.jobdir.layout import RunDirectory
    from airflow_provider.runtime.jobdir.run_records import AttemptRecord

HELPS: Final = {
    FailureClass.NON_RECOVERABLE: (
        "The same again will fail again. Correct the job, its options, its rights or the row, and "
        "then clear the task: the run resumes after its last committed batch."
    ),
    FailureClass.DATA_MISSING: (
        "Have the input delivered again and clear the task; or start the job from an earlier "
        "savepoint, if it is state that is gone."
    ),
    FailureClass.ENVIRONMENT: (
        "Look at the machine: its memory, its disk, the network, its neighbours. A retry or a "
        "clear resumes the run; nothing is lost or repeated."
    ),
    FailureClass.RECOVERABLE: (
        "A retry or a clear resumes the run; nothing is lost or repeated. If it fails at the same "
        "batch each time, read the end of the driver's log."
    ),
}
# Numbers, ids and addresses differ from one time to the next, and the cause is the same.
_VARIES: Final = re.compile(r"0x[0-9a-f]+|[0-9a-f]{8}-[0-9a-f-]{27}|\d+", re.IGNORECASE)


def read_failures(job_dir: str) -> FailuresView:
    """Return the failures of the newest runs, the newest cause first.

    Raises:
        OSError: the storage cannot be read.
    """
    directory = directory_at(job_dir)
    views: dict[tuple[str, ...], FailureView] = {}
    for run_id in newest_run_ids(directory):
        try:
            found = list(_of_run(directory.run(run_id)))
        except CheckpointError:
            continue  # its damage is shown among the runs
        for failure, occurrence in found:
            key = _cause(failure)
            views.setdefault(key, _view(failure)).occurrences.append(occurrence)
    return FailuresView(failures=list(views.values()))


def _of_run(run: RunDirectory) -> Iterator[tuple[Failure, OccurrenceView]]:
    """Yield the failures of a run, the newest first."""
    for attempt in reversed(run.attempts()):
        if attempt.failure is not None:
            yield _occurrence(run, attempt, attempt.failure, is_restarted=False)
        if attempt.restarts is not None:
            last: dict[str, Any] = attempt.restarts["failure"]
            if last != attempt.failure:
                yield _occurrence(run, attempt, last, is_restarted=True)
        if attempt.failure is None and attempt.outcome is None:
            yield from _silent_end(run, attempt)


def _silent_end(
    run: RunDirectory, attempt: AttemptRecord
) -> Iterator[tuple[Failure, OccurrenceView]]:
    """Yield the end of a driver that could not say why, if its process is known to have ended."""
    found = _end_of(run, attempt.driver_id)
    if found is None:
        return
    killed, last, ended = found
    raw = {
        "failure_class": FailureClass.ENVIRONMENT.value,
        "reason": f"the driver's process ended with {killed}, without a word",
        "condition": "killed",
        "host": attempt.host,
        "root_cause": last,
    }
    failure, occurrence = _occurrence(run, attempt, raw, is_restarted=False)
    yield failure, occurrence.model_copy(update={"at": ended})


def _end_of(run: RunDirectory, driver_id: str) -> tuple[str, str, str] | None:
    """Return with what a driver's process has ended, the last that is known of it, and when."""
    ended, look, handle = run.exit_of(driver_id), run.look_of(driver_id), run.handle_of(driver_id)
    if ended is not None and ended.exit_code != 0:
        last = next((line for line in reversed(ended.last_lines) if line.strip()), "")
        code = ended.exit_code
        return f"signal {-code}" if code < 0 else f"exit code {code}", last, ended.ended
    if look is None or handle is None or not Look.of(look).is_over or look.exit_code == 0:
        return None
    code_text = f"exit code {look.exit_code}" if look.exit_code is not None else look.state
    return code_text, Look.of(look).describe(handle), look.at


def _occurrence(
    run: RunDirectory, attempt: AttemptRecord, raw: dict[str, Any], *, is_restarted: bool
) -> tuple[Failure, OccurrenceView]:
    failure = Failure.from_dict(raw)
    return failure, OccurrenceView(
        run_id=run.run_id,
        attempt=attempt.attempt,
        driver_id=attempt.driver_id,
        at=attempt.ended,
        query=failure.query,
        batch=failure.batch,
        host=failure.host or attempt.host,
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
        helps=HELPS[failure.failure_class],
        occurrences=[],
    )
