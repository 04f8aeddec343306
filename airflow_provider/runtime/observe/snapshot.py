"""Snapshot of a run: one read of its documents, from which everything else here is decided."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.base.names import is_name
from airflow_provider.runtime.base.typed_json import read_json
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.errors import SparkStreamError
from airflow_provider.runtime.jobdir.batch_history import BatchHistory, history_path, without_older
from airflow_provider.runtime.jobdir.lease import LeaseObserver, Liveness
from airflow_provider.runtime.jobdir.runs import newest_run
from airflow_provider.runtime.jobdir.submissions import SubmissionRecord
from airflow_provider.runtime.observe.endings import Remains
from airflow_provider.runtime.storage.documents import read_stored
from airflow_provider.runtime.storage.mounts import full_disk
from airflow_provider.runtime.storage.open import local_path_of

if TYPE_CHECKING:
    from airflow_provider.runtime.api.launchers import Handle, LaunchStatus
    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.jobdir.layout import JobDirectory, RunDirectory
    from airflow_provider.runtime.jobdir.lease_records import LeaseRecord
    from airflow_provider.runtime.jobdir.run_records import (
        AttemptRecord,
        FinalCheckpoint,
        ProgressRecord,
        RewoundRecord,
        RunRecord,
    )
    from airflow_provider.runtime.jobdir.submissions import DriverEnd


@dataclasses.dataclass(frozen=True)
class RunSnapshot:
    """One read of a run's documents; the properties are read at their first use.

    Attributes:
        run_id: the run; None if none was begun or submitted.
        directory: the job directory; None for a snapshot made by hand.
        lease: the job's newest lease, of any run.
        submission: the submission watched, or the run's last one.
        submission_gone: whether its process has certainly ended, or will never start.
        submission_started: whether its process has come up.
        submission_beat: the last beat of a process that only its beats can show to be alive, since
            it is on another machine or in another container; 0 for any other one.
        submission_lost: whether a wait for its driver has timed out.
        handle: its run on a cluster; None while unknown, and if no cluster can be asked about it.
        launch: the launcher's last answer about that run; None before the first question.
        host: the machine of the submission's process; empty if unknown.
        waits_for: what the submission's process waits for before it starts the driver.
        is_driver_gone: whether the driver has certainly ended, and its exit is not recorded yet.
        remains: of a driver that recorded no end; None while it may live.
    """

    run_id: str | None = None
    directory: JobDirectory | None = dataclasses.field(default=None, repr=False)
    final: FinalCheckpoint | None = None
    lease: LeaseRecord | None = None
    liveness: Liveness = Liveness.FREE
    attempt: AttemptRecord | None = None
    submission: SubmissionRecord | None = None
    exit: DriverEnd | None = None
    submission_gone: bool = False
    progress: ProgressRecord | None = None
    submission_started: bool = True
    submission_beat: int = 0
    submission_lost: bool = False
    handle: Handle | None = None
    launch: LaunchStatus | None = None
    host: str = ""
    waits_for: str = ""
    is_driver_gone: bool = False
    remains: Remains | None = None

    @functools.cached_property
    def run_record(self) -> RunRecord | None:
        return self._run.record() if self._run is not None else None

    @functools.cached_property
    def rewound(self) -> RewoundRecord | None:
        """Why the run no longer counts: the job went back before it, or into the middle of it."""
        return self._run.rewound() if self._run is not None else None

    @functools.cached_property
    def histories(self) -> list[BatchHistory]:
        """The batches of each query; a history that cannot be understood is left out."""
        return read_histories(self._run.storage) if self._run is not None else []

    @property
    def counted(self) -> FinalCheckpoint | ProgressRecord | None:
        """The newest document that counts rows: the final checkpoint, else the last progress."""
        return self.final or self.progress

    @property
    def own_attempt(self) -> AttemptRecord | None:
        """The attempt of the submission's driver; the last one of a run without a submission."""
        attempt, submission = self.attempt, self.submission
        if attempt is None or submission is None:
            return attempt
        return attempt if attempt.driver_id == submission.driver_id else None

    @property
    def driver_progress(self) -> ProgressRecord | None:
        """The last report of the driver that holds the lease; None before its first one."""
        lease, attempt, progress = self.lease, self.attempt, self.progress
        if lease is None or attempt is None or progress is None:
            return None
        is_its_own = attempt.token == lease.since and progress.attempt == attempt.attempt
        return progress if is_its_own else None

    @functools.cached_property
    def _run(self) -> RunDirectory | None:
        if self.directory is None or self.run_id is None:
            return None
        return self.directory.run(self.run_id)


def read_snapshot(
    directory: JobDirectory,
    run_id: str | None = None,
    *,
    driver_id: str | None = None,
    observer: LeaseObserver | None = None,
) -> RunSnapshot:
    """Read the documents of a run that decide its state.

    Args:
        directory: the job directory.
        run_id: the run; None for the newest one, or for the submitted one of a job without runs.
        driver_id: the submission to watch; None for the run's last one.
        observer: the observer of the job's lease; a new one does not know the liveness of a driver
            on another machine.

    Raises:
        OSError: the storage cannot be read, or nothing of the watched driver is there.
        CheckpointError: a document is damaged.
    """
    newest = newest_run(directory) if run_id is None else None
    run_id = run_id or (newest.run_id if newest is not None else directory.submitted_run())
    if run_id is None:
        return RunSnapshot(directory=directory)
    run = directory.run(run_id)
    lease, liveness = (observer or LeaseObserver(directory.storage, SystemClock())).look()
    submission = _submission(run, driver_id)
    if driver_id is not None and submission is None and lease is None:
        raise _vanished(directory, driver_id)
    # Read after the lease: a driver puts its final checkpoint before it gives the lease up.
    final = run.final()
    of_submission = _read_submission(run, submission) if submission is not None else {}
    attempt = run.last_attempt()
    is_silent = final is None and (attempt is None or attempt.outcome is None)
    is_over = is_silent and liveness in {Liveness.DEAD, Liveness.FREE}
    read = RunSnapshot(
        run_id=run_id,
        directory=directory,
        final=final,
        lease=lease,
        liveness=liveness,
        attempt=attempt,
        progress=run.progress(),
        remains=_remains_of(directory) if is_over else None,
        **of_submission,
    )
    if newest is not None:
        vars(read)["run_record"] = newest  # of a cached property, which reads it no more
    return read


def read_histories(run: Storage, last: int | None = None) -> list[BatchHistory]:
    """Return the readable histories of a run; *last* limits the batches and omits the hours."""
    names = (name.removesuffix(".json") for name in run.list("history") if name.endswith(".json"))
    return [one for name in names if is_name(name) and (one := read_history(run, name, last))]


def read_history(run: Storage, query: str, last: int | None = None) -> BatchHistory | None:
    """Return the history of a query; None if it is missing or damaged."""
    path = history_path(query)
    with contextlib.suppress(SparkStreamError, FileNotFoundError, ValueError):
        stored = read_stored(run, path)
        raw = read_json(stored if last is None else without_older(stored, last))
        return BatchHistory.from_dict(raw, where=f"{run.url}/{path}")
    return None


def _vanished(directory: JobDirectory, driver_id: str) -> FileNotFoundError:
    reason = "the job directory was emptied, or is not mounted"
    msg = f"the record of driver {driver_id} is gone: {reason}"
    return FileNotFoundError(errno.ENOENT, msg, directory.url)


def _submission(run: RunDirectory, driver_id: str | None) -> SubmissionRecord | None:
    if driver_id is not None:
        return SubmissionRecord.read(run.storage, f"submissions/{driver_id}.json")
    submissions = run.submissions()
    return submissions[-1] if submissions else None


def _read_submission(run: RunDirectory, submission: SubmissionRecord) -> dict[str, Any]:
    """Return the attributes of a snapshot that a submission's own documents say."""
    driver_id = submission.driver_id
    process, end = run.process_of(driver_id), run.end_of(driver_id)
    is_local = submission.launcher is None
    launch = run.launch_of(driver_id) if submission.is_remote or not is_local else None
    ended = end if end is not None and end.status().is_over else None
    # An end without a log is not the process's: then the cluster's answer counts.
    answered = ended if ended is not None and not ended.last_lines else launch
    is_given = end is not None and ended is None and end.exit_code is not None
    is_gone = process is not None and (process.is_revoked or process.identity.is_gone())
    return {
        "submission": submission,
        "exit": ended if is_local else None,
        "submission_gone": is_gone or is_given,
        "submission_started": launch is not None
        or (process is not None and not process.is_revoked),
        "submission_beat": process.beat
        if process is not None and process.identity.is_of_other_processes()
        else 0,
        "submission_lost": end is not None and end.waited_s is not None,
        "handle": launch.handle() if launch is not None else None,
        "launch": answered.status() if launch is not None and answered is not None else None,
        "host": process.identity.host if process is not None else "",
        "waits_for": process.waits_for if process is not None else "",
        "is_driver_gone": process is not None and process.driver_is_gone,
    }


def _remains_of(directory: JobDirectory) -> Remains:
    """Return what is left in a job directory; what cannot be read is left out."""
    folder = local_path_of(directory.url)
    found: dict[str, int] = {}
    with contextlib.suppress(OSError, SparkStreamError):
        for query in directory.query_names():
            batch = CheckpointLogs(directory.checkpoint(query)).position().open_batch
            if batch is not None:
                found[query] = batch
    return Remains(found, full_disk([folder]) if folder is not None else None)
