"""The job directory: where each document lies; docs/internals/job-directory.md has all."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.api.launchers import LaunchState
from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.base.names import is_name, numbers_in
from airflow_provider.runtime.errors import (
    UnknownJobError,
    UnsupportedStorageError,
)
from airflow_provider.runtime.jobdir import identity
from airflow_provider.runtime.jobdir.batch_history import BatchHistory, history_path
from airflow_provider.runtime.jobdir.checkpoint_locations import location, locations
from airflow_provider.runtime.jobdir.identity import PATH as IDENTITY
from airflow_provider.runtime.jobdir.journal import FOLDER as OPERATIONS
from airflow_provider.runtime.jobdir.pinned_settings import FOLDER as SETTINGS
from airflow_provider.runtime.jobdir.run_records import (
    AttemptRecord,
    BatchCommit,
    FinalCheckpoint,
    JobRecord,
    ProgressRecord,
    RewoundRecord,
    RunRecord,
    StopRecord,
)
from airflow_provider.runtime.jobdir.submissions import (
    DriverEnd,
    HandleRecord,
    ProcessRecord,
    SubmissionRecord,
)
from airflow_provider.runtime.storage.local import anchored
from airflow_provider.runtime.storage.open import local_path_of, open_storage

if TYPE_CHECKING:
    from airflow_provider.runtime.api.launchers import Handle, LaunchStatus
    from airflow_provider.runtime.api.storages import Storage


class JobDirectory:
    """Reads and writes the documents of one job."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.url = storage.url

    def job(self) -> JobRecord | None:
        return JobRecord.read(self.storage, "job.json")

    def name(self) -> str | None:
        job = self.job()
        return job.name if job is not None else None

    def put_job(self, record: JobRecord) -> None:
        """Make the directory a job's. Idempotent: the first record stays."""
        record.put_if_absent(self.storage, "job.json")

    def checkpoint(self, query: str) -> Storage:
        """Return where the checkpoint of *query* is that counts (:mod:`.checkpoint_locations`)."""
        return self.storage.at(location(query, locations(self.storage).get(query, 0)))

    def committables(self, query: str) -> Storage:
        return self.storage.at(f"queries/{query}/committables")

    def markers(self, query: str, source: str) -> str:
        return self.storage.at(f"queries/{query}/markers/{source}").url

    def query_names(self) -> list[str]:
        return self.storage.list("queries")

    def run_ids(self) -> list[str]:
        """Return the runs that have a record, oldest first."""
        records = [self.run(run_id).record() for run_id in self.storage.list("runs")]
        found = [record for record in records if record is not None]
        return [r.run_id for r in sorted(found, key=lambda r: (r.token, r.run_id))]

    def submitted_run(self) -> str | None:
        """Return a run that was submitted and has not begun; one, while a job has no lease."""
        return next(filter(is_name, reversed(self.storage.list("runs"))), None)

    def run(self, run_id: str) -> RunDirectory:
        """Return the documents of one run, which need not exist yet."""
        return RunDirectory(self.storage.at(f"runs/{run_id}"), run_id)


def directory_at(job_dir: str) -> JobDirectory:
    """Return the directory at an address; writes make no folder if its identity is gone."""
    return JobDirectory(anchored(open_storage(job_dir), IDENTITY))


def known_job(job_dir: str) -> JobDirectory:
    """Return the directory of a job that is there."""
    directory, submitted = known_or_submitted_job(job_dir)
    if submitted is not None:
        raise UnknownJobError(
            f"{directory.url}: the job has not begun; 'spark-stream status {directory.url}' shows "
            f"what has become of the submitted run {submitted!r}"
        )
    return directory


def known_or_submitted_job(job_dir: str) -> tuple[JobDirectory, str | None]:
    """Return the job's directory, and the submitted run if the job has not begun."""
    directory = directory_at(job_dir)
    identity.check_format(directory.storage)
    if directory.job() is not None:
        return directory, None
    submitted = directory.submitted_run()
    if submitted is None and not directory.storage.list(OPERATIONS):  # else its start was cut short
        raise UnknownJobError(f"{directory.url}: no job there (no job.json); check the path")
    return directory, submitted


class RunDirectory:
    """Reads and writes the documents of one run."""

    def __init__(self, storage: Storage, run_id: str) -> None:
        self.storage = storage
        self.run_id = run_id

    def record(self) -> RunRecord | None:
        return RunRecord.read(self.storage, "run.json")

    def put_record(self, record: RunRecord) -> RunRecord:
        """Store the run's options, or return those stored before."""
        is_new = record.put_if_absent(self.storage, "run.json")
        return record if is_new else self.record() or record

    def final(self) -> FinalCheckpoint | None:
        return FinalCheckpoint.read(self.storage, "final.json")

    def put_final(self, final: FinalCheckpoint) -> FinalCheckpoint:
        """Put the final checkpoint, or return the one that is there: it never changes."""
        is_new = final.put_if_absent(self.storage, "final.json")
        failpoints.hit("final.put")
        return final if is_new else self.final() or final

    def stop(self) -> StopRecord | None:
        return StopRecord.read(self.storage, "stop.json")

    def put_stop(self, record: StopRecord) -> None:
        """Store the record. Idempotent: the first one stays."""
        record.put_if_absent(self.storage, "stop.json")

    def batch_commit(self) -> BatchCommit | None:
        return BatchCommit.read(self.storage, "batch.json")

    def put_batch_commit(self, commit: BatchCommit) -> None:
        """Commit a BATCH run. Idempotent: the first one stays."""
        commit.put_if_absent(self.storage, "batch.json")

    def rewound(self) -> RewoundRecord | None:
        return RewoundRecord.read(self.storage, "rewound.json")

    def put_rewound(self, record: RewoundRecord) -> None:
        """Store the record. Idempotent: the first one stays."""
        record.put_if_absent(self.storage, "rewound.json")

    def has_ended(self) -> bool:
        return self.final() is not None or self.rewound() is not None

    def progress(self) -> ProgressRecord | None:
        return ProgressRecord.read(self.storage, "progress.json")

    def history(self, query: str) -> BatchHistory | None:
        return BatchHistory.read(self.storage, history_path(query))

    def attempts(self) -> list[AttemptRecord]:
        numbers = numbers_in(self.storage.list("attempts"), ".json")
        read = [AttemptRecord.read(self.storage, f"attempts/{number}.json") for number in numbers]
        return [record for record in read if record is not None]

    def last_attempt(self) -> AttemptRecord | None:
        last = self.attempt_count()
        return AttemptRecord.read(self.storage, f"attempts/{last}.json") if last else None

    def attempt_count(self) -> int:
        return max(numbers_in(self.storage.list("attempts"), ".json"), default=0)

    def put_attempt(self, attempt: AttemptRecord) -> None:
        """Store or complete an attempt; only the driver that holds its lease does so."""
        attempt.put(self.storage, f"attempts/{attempt.attempt}.json")

    def submissions(self) -> list[SubmissionRecord]:
        names = self._submission_names()
        read = [SubmissionRecord.read(self.storage, f"submissions/{name}") for name in names]
        found = [r for r in read if r is not None]
        return sorted(found, key=lambda r: (r.number, r.driver_id))

    def submission_count(self) -> int:
        found = self.submissions()
        return max(len(found), found[-1].number) if found else 0

    def unstarted(self) -> list[str]:
        """Return the drivers whose intent no process has claimed, and no cluster has accepted."""
        names = set(self.storage.list("submissions"))
        drivers = [name.removesuffix(".json") for name in self._submission_names()]
        ends = (".process.json", ".handle.json")
        return [d for d in drivers if not any(f"{d}{end}" in names for end in ends)]

    def _submission_names(self) -> list[str]:
        return [n for n in self.storage.list("submissions") if n.count(".") == 1]

    def put_submission(self, record: SubmissionRecord) -> None:
        """Store the intent. Idempotent: the first one stays, and each try puts the same."""
        record.put_if_absent(self.storage, f"submissions/{record.driver_id}.json")

    def exit_of(self, driver_id: str) -> DriverEnd | None:
        """Return how the driver's process ended; None while that is not known."""
        end = self.end_of(driver_id)
        return end if end is not None and end.state == LaunchState.ENDED.value else None

    def end_of(self, driver_id: str) -> DriverEnd | None:
        return DriverEnd.read(self.storage, f"submissions/{driver_id}.end.json")

    def put_end(self, driver_id: str, record: DriverEnd) -> None:
        """Add the end of the driver, or a wait for it, to what is known; see the class."""
        path = f"submissions/{driver_id}.end.json"
        if record.put_if_absent(self.storage, path):
            return
        before = DriverEnd.read(self.storage, path) or record
        both = before.with_missing(record)
        if both != before:
            both.put(self.storage, path)

    def process_of(self, driver_id: str) -> ProcessRecord | None:
        """Return the process that looks after the driver; None before it has started."""
        return ProcessRecord.read(self.storage, f"submissions/{driver_id}.process.json")

    def handle_of(self, driver_id: str) -> Handle | None:
        launch = self.launch_of(driver_id)
        return launch.handle() if launch is not None else None

    def has_handles(self) -> bool:
        """Whether a driver of the run was submitted to a cluster that can be asked about it."""
        return any(name.endswith(".handle.json") for name in self.storage.list("submissions"))

    def launch_of(self, driver_id: str) -> HandleRecord | None:
        return HandleRecord.read(self.storage, f"submissions/{driver_id}.handle.json")

    def put_handle(self, handle: Handle) -> None:
        """Store the handle. Idempotent: the first one stays, and each try gets the same."""
        record = HandleRecord(**vars(handle))
        record.put_if_absent(self.storage, f"submissions/{handle.driver_id}.handle.json")

    def put_launch_status(self, driver_id: str, status: LaunchStatus, at: str) -> None:
        """Store a launcher's answer, unless the last one was the same. The first end stays."""
        state, reason = status.state.value, status.reason
        if status.is_over:
            end = DriverEnd(state=state, exit_code=status.exit_code, reason=reason, at=at)
            self.put_end(driver_id, end)
        elif (before := self.launch_of(driver_id)) is not None and before.status() != status:
            record = dataclasses.replace(before, state=state, reason=reason)
            record.put(self.storage, f"submissions/{driver_id}.handle.json")

    def put_lost(self, driver_id: str, waited_s: float, at: str) -> None:
        """Record that a wait for the driver has timed out. Idempotent: the first wait stays."""
        record = DriverEnd(state=LaunchState.UNKNOWN.value, at=at, waited_s=waited_s)
        self.put_end(driver_id, record)


def open_job_directory(job_dir: str) -> JobDirectory:
    """Return the job directory of a driver; nothing is written.

    Raises:
        UnsupportedStorageError: two drivers could own a job there, or Spark cannot reach it.
    """
    directory = directory_at(job_dir)
    if not directory.storage.shared:
        raise UnsupportedStorageError(
            f"{job_dir}: Spark cannot reach this process's memory; use another filesystem"
        )
    identity.check_format(directory.storage)
    return directory


_JOB: Final = "job.json"
ROOTS: Final = frozenset(
    (
        *(_JOB, "bootstraps", "heartbeats", "leases", "queries", "replies", "requests"),
        *(OPERATIONS, SETTINGS, "retired.json", "runs", "savepoints", "upgrades"),
        *(identity.PATH, identity.PREDECESSORS),
    )
)
"""The names in a job directory; other names beside them are foreign."""
_SHOWN: Final = 3


def neighbour_lines(directory: JobDirectory) -> list[str]:
    """Return a warning if a job would begin among foreign files; an object store is not checked."""
    local = local_path_of(directory.url)
    if local is None or not Path(local).is_dir():
        return []
    names = {path.name for path in Path(local).iterdir() if not path.name.startswith(".")}
    others = sorted(names - ROOTS)
    if _JOB in names or not others:
        return []
    more = "" if len(others) <= _SHOWN else f" and {len(others) - _SHOWN} more"
    return [
        f"{directory.url}: files that are no job's are there ({', '.join(others[:_SHOWN])}{more}); "
        "a job directory is removed as a whole one day, so name a folder of its own"
    ]
