"""The job directory: where each document lies, and what is in it.

::

    job.json                                     JobRecord
    queries/<query>/checkpoint/                  Spark's own, format untouched; or
    queries/<query>/checkpoint-<n>/              the same, made by restore n (places.py)
    queries/<query>/committables/<query id>/     records of its epochs (sinks/records.py)
    queries/<query>/drains/<query id>.json       DrainIntent (drains.py): before its drain
    queries/<query>/ended/<query id>.json        EndedSources (drains.py): which are read no more
    queries/<query>/markers/<source>/            markers of a source (markers.py)
    queries/<query>/topologies/<query id>.json   TopologyRecord (topologies.py): at its first start
    runs/<run id>/run.json                       RunRecord
    runs/<run id>/submissions/<driver id>.json   SubmissionRecord: intent, put before submitting
    runs/<run id>/submissions/<driver id>.process.json   ProcessRecord: put once, or revoked
    runs/<run id>/submissions/<driver id>.exit.json, .lost.json   ExitRecord, LostRecord
    runs/<run id>/submissions/<driver id>.followed.json   FollowedRecord (hooks/following.py)
    runs/<run id>/attempts/<n>.json              AttemptRecord
    runs/<run id>/asked_by.json                  AskerRecord (hooks/backfills.py): whose run it is
    runs/<run id>/claims/<n>.json, watch.json    ClaimRecord, WatchRecord (watches.py): who watches
    runs/<run id>/progress.json                  ProgressRecord
    runs/<run id>/stop.json                      StopRecord: a stop with drain that was accepted
    runs/<run id>/batch.json                     BatchCommit: put once; the commit of a BATCH run
    runs/<run id>/final.json                     FinalCheckpoint: put once, never changed
    runs/<run id>/rewound.json                   RewoundRecord: the run no longer counts
    runs/<run id>/replay.json                    ReplayRecord: a person has cleared the task
    runs/<run id>/periods/<task>.<tries>.json    PeriodRecord (hooks/periods.py): a DAG run's time
    restores/<n>.json                            RestoreRecord (places.py)
    savepoints/<name>/                           see savepoint/records.py
    bootstraps/<name>/                           a job directory of its own (state/bootstrapping.py)
    leases/<token>.json  heartbeats/<token>.json (lease.py); a sealed lease carries a final.json
    retired.json                                 RetiredRecord (retiring.py): what is old is removed
    requests/<driver id>/<id>.json  bells/<driver id>.json  replies/<id>.json
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any, Final

from airflow_provider.runtime import failpoints
from airflow_provider.runtime.errors import EXIT_FATAL, UnknownJobError
from airflow_provider.runtime.names import numbers_in
from airflow_provider.runtime.places import place, places
from airflow_provider.runtime.shapes import (
    FailureValues,
    FinalQueryValues,
    ProgressQueryValues,
    RestartsValues,
)
from airflow_provider.runtime.storage.documents import Document
from airflow_provider.runtime.storage.open import open_storage
from airflow_provider.runtime.submissions import (
    ExitRecord,
    LostRecord,
    ProcessRecord,
    SubmissionRecord,
)
from airflow_provider.runtime.typed_json import (
    Address,
    Batch,
    Name,
    NonNegative,
    Positive,
    Seconds,
    among,
)

if TYPE_CHECKING:
    from airflow_provider.runtime.storage.base import Storage


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobRecord(Document):
    """``job.json``: the directory's format and the job's name."""

    name: str
    created: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunRecord(Document):
    """``run.json``: what was asked, put by the run's first attempt and never changed.

    Attributes:
        secret_params: of further parameters, whose values are stored nowhere, the environment
            variable of the driver that each was read from.
        interval: start and end as ISO 8601, or None.
        starting: per query the last committed batch when the run began, -1 for none.
        replayable: that the run begins with a savepoint, to which it can be rewound.
        query_ids: in BATCH the id of each query, which in STREAMING is its checkpoint's.
        token: the lease under which it was begun; runs are in its order, whatever clocks say.
    """

    PLACES = ("runs/{run_id}/run.json",)

    run_id: Name
    entry: str
    params: dict[str, str]
    mode: str
    until: str
    at_end: str
    trigger_s: Seconds | None
    interval: tuple[str, str] | None
    starting: dict[Name, Batch]
    started: str
    from_savepoint: Address | None = None
    replayable: bool = False
    query_ids: dict[Name, Name] | None = None
    token: NonNegative = 0
    secret_params: dict[str, str] = dataclasses.field(default_factory=dict)

    def asked(self) -> dict[str, Any]:
        """Return what a later attempt of the run must ask for as well.

        The entry point is not in it: a fixed program may lie elsewhere.
        """
        keys = ("params", "mode", "until", "at_end", "interval", "from_savepoint")
        asked = {key: getattr(self, key) for key in keys}
        return {**asked, "secret_params": sorted(self.secret_params)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttemptRecord(Document):
    """``attempts/<n>.json``: one driver's life; without ``ended`` it lives, or was killed.

    Attributes:
        failure: why it has ended, see :class:`~.failures.Failure`; None if not by a failure.
        restarts: how often queries were started again in it, after what, and what the strategy
            remembers of that; None if never.
    """

    PLACES = ("attempts/{attempt}.json",)

    attempt: Positive
    driver_id: Name
    token: NonNegative
    host: str
    pid: int
    entry: str
    started: str
    ended: str | None = None
    outcome: str | None = None
    failure: FailureValues | None = None
    restarts: RestartsValues | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProgressRecord(Document):
    """``progress.json``: the last progress of a run, for people; nothing is decided by it."""

    at: str
    attempt: Positive
    phase: str
    rows_read: int
    rows_per_second: float
    queries: dict[Name, ProgressQueryValues]
    late_rows: NonNegative | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class StopRecord(Document):
    """``stop.json``: a stop with drain was accepted; whichever attempt comes completes it.

    Attributes:
        request_id: the request that it answers.
        savepoint: the address of the savepoint that is taken at the end, or None.
    """

    request_id: Name
    savepoint: Address | None
    at: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchCommit(Document):
    """``batch.json``: every query of a BATCH run has staged all its output; from here it counts.

    It is for such a run what Spark's commit log is for a stream: before it nothing is published,
    and after it no query is run again.

    Attributes:
        token: the driver that put it.
    """

    PLACES = ("runs/{run_id}/batch.json",)

    run_id: Name
    token: NonNegative
    at: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewoundRecord(Document):
    """``rewound.json``: the job went back to before this run, or into the middle of it.

    What the run had written is taken back, it cannot be resumed, and a drain that it began or ended
    does not end the job.

    Attributes:
        savepoint: what the job was set to; None for its very beginning, and for where it stood
            when the run had written nothing.
    """

    PLACES = ("runs/{run_id}/rewound.json",)

    run_id: Name
    savepoint: Address | None
    at: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplayRecord(Document):
    """``replay.json``: the run is to be undone, and another one takes its place.

    Attributes:
        next_run_id: the run that takes its place.
    """

    PLACES = ("runs/{run_id}/replay.json",)

    run_id: Name
    next_run_id: Name
    at: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class RequestRecord(Document):
    """``requests/<driver id>/<id>.json``: somebody asks one driver for something, and no later one.

    Attributes:
        driver_id: the driver that is meant; it may not have taken its lease yet.
        run_id: of a stop: the run that is meant.
        token: of a stop: the lease of the driver that is meant.
        drain: of a stop: end the job for good.
        savepoint: of a stop: the address of the savepoint to take, or None.
        aligned_timeout_s: of a stop: how long a batch in flight is waited for; None until it ends.
        keeps_run: of a stop: the run is not over, and whoever starts it next goes on with it.
        number: the driver's requests are in its order, whatever askers' clocks say.
    """

    PLACES = ("requests/{driver_id}/{id}.json",)

    id: Name
    kind: str
    driver_id: Name
    at: str
    run_id: Name | None = None
    token: NonNegative | None = None
    drain: bool = False
    savepoint: Address | None = None
    aligned_timeout_s: Seconds | None = None
    keeps_run: bool = False
    number: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplyRecord(Document):
    """``replies/<id>.json``: the driver's answer.

    Attributes:
        exit_code: of a no: what it means to whoever asked, as :mod:`errors` has it: the ask has to
            change, the same may be asked again, or neither.
        outcome: of a stop that was done: how the run ended.
        savepoint: of a stop: the address of the savepoint that was taken, or None.
    """

    PLACES = ("replies/{id}.json",)

    id: Name
    ok: bool
    message: str
    at: str
    exit_code: int = EXIT_FATAL
    outcome: str | None = None
    savepoint: Address | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinalCheckpoint(Document):
    """``final.json``: the run ended and all is committed. Its shape is in the README."""

    PLACES = ("runs/{run_id}/final.json",)

    job: str
    run_id: Name
    outcome: Annotated[str, among("FINISHED", "SUSPENDED")]
    mode: Annotated[str, among("STREAMING", "BATCH")]
    attempts: Positive
    started: str
    committed: str
    rows_read: NonNegative | None
    savepoint: Address | None
    queries: dict[Name, FinalQueryValues]
    late_rows: NonNegative | None = None


STREAMING: Final = "STREAMING"
BATCH: Final = "BATCH"

FINISHED: Final = "FINISHED"
SUSPENDED: Final = "SUSPENDED"
FAILED: Final = "FAILED"
CANCELLED: Final = "CANCELLED"
SUCCESSES: Final = frozenset({FINISHED, SUSPENDED})


class JobDirectory:
    """Reads and writes the documents of one job.

    Args:
        storage: the directory.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.url = storage.url

    def job(self) -> JobRecord | None:
        """Return the job's record; None when the directory holds no job."""
        return JobRecord.read(self.storage, "job.json")

    def name(self) -> str | None:
        """Return the job's name; None when the directory holds no job."""
        job = self.job()
        return job.name if job is not None else None

    def put_job(self, record: JobRecord) -> None:
        """Make the directory a job's. Idempotent: the first record stays."""
        record.put_if_absent(self.storage, "job.json")

    def checkpoint(self, query: str) -> Storage:
        """Return where Spark keeps the checkpoint of *query* that counts; see :mod:`places`."""
        return self.storage.at(place(query, places(self.storage).get(query, 0)))

    def committables(self, query: str) -> Storage:
        """Return where the sinks' epoch records of *query* lie."""
        return self.storage.at(f"queries/{query}/committables")

    def markers(self, query: str, source: str) -> str:
        """Return where the markers of a source lie that *query* reads."""
        return self.storage.at(f"queries/{query}/markers/{source}").url

    def query_names(self) -> list[str]:
        """Return the queries that have a folder, sorted."""
        return self.storage.list("queries")

    def run_ids(self) -> list[str]:
        """Return the runs that have a record, oldest first."""
        records = [self.run(run_id).record() for run_id in self.storage.list("runs")]
        found = [record for record in records if record is not None]
        return [r.run_id for r in sorted(found, key=lambda r: (r.token, r.run_id))]

    def run(self, run_id: str) -> RunDirectory:
        """Return the documents of one run, which need not exist yet."""
        return RunDirectory(self.storage.at(f"runs/{run_id}"), run_id)


def known_job(job_dir: str) -> JobDirectory:
    """Return the directory of a job that is there.

    Raises:
        UnknownJobError: no job has ever run there.
    """
    directory = JobDirectory(open_storage(job_dir))
    if directory.job() is None:
        msg = f"{directory.url}: no job there (no job.json); check the path"
        raise UnknownJobError(msg)
    return directory


class RunDirectory:
    """Reads and writes the documents of one run.

    Args:
        storage: ``runs/<run id>``.
        run_id: the run's id.
    """

    def __init__(self, storage: Storage, run_id: str) -> None:
        self.storage = storage
        self.run_id = run_id

    def record(self) -> RunRecord | None:
        """Return what was asked; None before the first attempt."""
        return RunRecord.read(self.storage, "run.json")

    def put_record(self, record: RunRecord) -> RunRecord:
        """Store what was asked, or return what was asked before."""
        is_new = record.put_if_absent(self.storage, "run.json")
        return record if is_new else self.record() or record

    def final(self) -> FinalCheckpoint | None:
        """Return the final checkpoint; None while there is none."""
        return FinalCheckpoint.read(self.storage, "final.json")

    def put_final(self, final: FinalCheckpoint) -> FinalCheckpoint:
        """Put the final checkpoint, or return the one that is there: it never changes."""
        is_new = final.put_if_absent(self.storage, "final.json")
        failpoints.hit("final.put")
        return final if is_new else self.final() or final

    def stop(self) -> StopRecord | None:
        """Return the stop with drain that was accepted; None when there was none."""
        return StopRecord.read(self.storage, "stop.json")

    def put_stop(self, record: StopRecord) -> None:
        """Promise it. Idempotent: the first one stays."""
        record.put_if_absent(self.storage, "stop.json")

    def batch_commit(self) -> BatchCommit | None:
        """Return the commit of a BATCH run; None before it, and in STREAMING."""
        return BatchCommit.read(self.storage, "batch.json")

    def put_batch_commit(self, commit: BatchCommit) -> None:
        """Commit a BATCH run. Idempotent: the first one stays."""
        commit.put_if_absent(self.storage, "batch.json")

    def rewound(self) -> RewoundRecord | None:
        """Return that the job went back to before the run; None when it did not."""
        return RewoundRecord.read(self.storage, "rewound.json")

    def put_rewound(self, record: RewoundRecord) -> None:
        """Record it. Idempotent: the first one stays."""
        record.put_if_absent(self.storage, "rewound.json")

    def replay(self) -> ReplayRecord | None:
        """Return which run takes this one's place; None while it stands."""
        return ReplayRecord.read(self.storage, "replay.json")

    def put_replay(self, record: ReplayRecord) -> ReplayRecord:
        """Put the intent, or return the one that is there."""
        is_new = record.put_if_absent(self.storage, "replay.json")
        return record if is_new else self.replay() or record

    def progress(self) -> ProgressRecord | None:
        """Return the last progress."""
        return ProgressRecord.read(self.storage, "progress.json")

    def attempts(self) -> list[AttemptRecord]:
        """Return the attempts, oldest first."""
        numbers = numbers_in(self.storage.list("attempts"), ".json")
        read = [AttemptRecord.read(self.storage, f"attempts/{number}.json") for number in numbers]
        return [record for record in read if record is not None]

    def last_attempt(self) -> AttemptRecord | None:
        """Return the newest attempt; None before the first one."""
        last = self.attempt_count()
        return AttemptRecord.read(self.storage, f"attempts/{last}.json") if last else None

    def attempt_count(self) -> int:
        """Return how many attempts there have been, which is the number of the last one."""
        return max(numbers_in(self.storage.list("attempts"), ".json"), default=0)

    def put_attempt(self, attempt: AttemptRecord) -> None:
        """Store or complete an attempt; only the driver that holds its lease does so."""
        attempt.put(self.storage, f"attempts/{attempt.attempt}.json")

    def submissions(self) -> list[SubmissionRecord]:
        """Return the intents to start a driver, oldest first."""
        names = self._submission_names()
        read = [SubmissionRecord.read(self.storage, f"submissions/{name}") for name in names]
        found = [r for r in read if r is not None]
        return sorted(found, key=lambda r: (r.number, r.driver_id))

    def submission_count(self) -> int:
        """Return how many intents there have been, which is the number of the last one."""
        found = self.submissions()
        return max(len(found), found[-1].number) if found else 0

    def unstarted(self) -> list[str]:
        """Return the drivers behind whose intent nobody stands, and nobody was said to."""
        names = set(self.storage.list("submissions"))
        drivers = [name.removesuffix(".json") for name in self._submission_names()]
        ends = (".process.json", ".exit.json")
        return [d for d in drivers if not any(f"{d}{end}" in names for end in ends)]

    def _submission_names(self) -> list[str]:
        return [n for n in self.storage.list("submissions") if n.count(".") == 1]

    def put_submission(self, record: SubmissionRecord) -> None:
        """Store the intent to start a driver."""
        record.put(self.storage, f"submissions/{record.driver_id}.json")

    def exit_of(self, driver_id: str) -> ExitRecord | None:
        """Return how the driver's process ended; None while it runs, or when nobody could tell."""
        return ExitRecord.read(self.storage, f"submissions/{driver_id}.exit.json")

    def process_of(self, driver_id: str) -> ProcessRecord | None:
        """Return who looks after the driver; None while nobody has come up."""
        return ProcessRecord.read(self.storage, f"submissions/{driver_id}.process.json")

    def is_lost(self, driver_id: str) -> bool:
        """Tell whether somebody has waited for the driver in vain."""
        return LostRecord.read(self.storage, f"submissions/{driver_id}.lost.json") is not None

    def put_lost(self, driver_id: str, waited_s: float) -> None:
        """Record it. Idempotent: the first one stays."""
        record = LostRecord(waited_s=waited_s)
        record.put_if_absent(self.storage, f"submissions/{driver_id}.lost.json")

    def put_exit(self, driver_id: str, record: ExitRecord) -> None:
        """Store how the driver's process ended."""
        record.put(self.storage, f"submissions/{driver_id}.exit.json")
