"""Job directories made by hand, as drivers and Airflow leave them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.jobdir.end_of_input import DrainIntent, put_drain_intent
from airflow_provider.runtime.jobdir.epoch_documents import EpochRecord
from airflow_provider.runtime.jobdir.epochs import EpochRecords
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.run_records import (
    FINISHED,
    SUSPENDED,
    AttemptRecord,
    FinalCheckpoint,
    JobRecord,
    ProgressRecord,
    RunRecord,
    StopRecord,
)
from airflow_provider.runtime.jobdir.submissions import ExitRecord, SubmissionRecord
from airflow_provider.runtime.storage.local import LocalStorage
from tests.present import identified
from tests.unit.support import QUERY_ID, SparkCheckpoint

if TYPE_CHECKING:
    from airflow_provider.runtime.api.storages import Storage

NOW = "2026-01-01T00:00:00.000Z"


def an_epoch(epoch: int = 0, *, committed: str | None = NOW) -> EpochRecord:
    return EpochRecord(
        epoch=epoch,
        query_id=QUERY_ID,
        run_id="r1",
        token=1,
        rows_read=10,
        sinks=[],
        committed=committed,
    )


def a_final(
    run_id: str = "r1", *, outcome: str = FINISHED, batch: int | None = 0, epoch: int | None = 0
) -> FinalCheckpoint:
    query = {
        "query_id": QUERY_ID,
        "batch_id": batch,
        "watermark": None,
        "finished": outcome == FINISHED,
        "sources": [],
        "operators": [],
        "sinks": [{"name": "files:/out", "epoch": epoch, "rows": 3}],
    }
    return FinalCheckpoint(
        job="daily_delays",
        run_id=run_id,
        outcome=outcome,
        mode="STREAMING",
        attempts=1,
        started=NOW,
        committed=NOW,
        rows_read=10,
        savepoint=None,
        queries={"q": query},
    )


def a_run(run_id: str = "r1", **values: Any) -> RunRecord:
    asked = {
        "run_id": run_id,
        "entry": "job.py:daily",
        "params": {"input": "/in"},
        "mode": "STREAMING",
        "until": "end",
        "at_end": "drain",
        "trigger_s": None,
        "interval": None,
        "starting": {"q": -1},
        "started": NOW,
    }
    return RunRecord(**{**asked, **values})


def an_attempt(number: int = 1, *, driver_id: str = "d1", **values: Any) -> AttemptRecord:
    attempt = {
        "attempt": number,
        "driver_id": driver_id,
        "token": number,
        "host": "worker-7",
        "pid": 42,
        "entry": "job.py:daily",
        "started": NOW,
    }
    return AttemptRecord(**{**attempt, **values})


def a_submission(driver_id: str = "d1", *, submitted: str = NOW) -> SubmissionRecord:
    return SubmissionRecord(driver_id=driver_id, run_id="r1", submitted=submitted, log=None)


def an_exit(exit_code: int = 1, *lines: str) -> ExitRecord:
    return ExitRecord(exit_code=exit_code, ended=NOW, last_lines=list(lines))


def a_progress(**values: Any) -> ProgressRecord:
    query = {
        "phase": "reading",
        "rows_read": 1234567,
        "batch": 3,
        "watermark": "2013-01-01T00:00:00.000Z",
        "state_rows": 42,
        "backlog": {"filesOutstanding": 5},
    }
    progress = {
        "at": NOW,
        "attempt": 2,
        "phase": "reading",
        "rows_read": 1234567,
        "rows_per_second": 520000.4,
        "queries": {"daily": query},
    }
    return ProgressRecord(**{**progress, **values})


def a_stop() -> StopRecord:
    return StopRecord(request_id="ask-1", savepoint="/savepoints/s1", at=NOW)


def an_intent(run_id: str) -> DrainIntent:
    return DrainIntent(query_id=QUERY_ID, run_id=run_id, batch=0, at=NOW)


class HandMadeJob:
    """A job directory with one query ``q``.

    Args:
        root: its folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.storage: Storage = LocalStorage(str(root))
        self.directory = JobDirectory(self.storage)

    @property
    def spark(self) -> SparkCheckpoint:
        """Return the checkpoint of the query that counts now."""
        return SparkCheckpoint(Path(self.directory.checkpoint("q").url))

    def begin(self, name: str = "daily_delays") -> HandMadeJob:
        identified(self.directory.storage)
        self.directory.put_job(JobRecord(name=name, created=NOW))
        return self

    def ran(self, batch: int = 0, *, published: bool = True) -> HandMadeJob:
        """Let the query commit batches up to *batch*, with the epoch of each."""
        self.spark.begin()
        for epoch in range(batch + 1):
            self.spark.run(epoch)
            records = EpochRecords(self.directory.committables("q"), QUERY_ID)
            put = records.put_published if published else records.put_precommit
            put(an_epoch(epoch, committed=NOW if published else None))
        return self

    def asked(self, run_id: str = "r1", **values: Any) -> HandMadeJob:
        self.directory.run(run_id).put_record(a_run(run_id, **values))
        return self

    def drains(self, run_id: str = "r1") -> HandMadeJob:
        """Let the run put down that the query has read its last row."""
        self.spark.begin()
        put_drain_intent(self.directory, "q", an_intent(run_id))
        return self

    def finished(self, run_id: str = "r1") -> HandMadeJob:
        return self._ended(run_id, FINISHED)

    def suspended(self, run_id: str = "r1") -> HandMadeJob:
        return self._ended(run_id, SUSPENDED)

    def _ended(self, run_id: str, outcome: str) -> HandMadeJob:
        run = self.directory.run(run_id)
        run.put_attempt(an_attempt(ended=NOW, outcome=outcome))
        if outcome == FINISHED:
            self.drains(run_id)
        run.put_final(a_final(run_id, outcome=outcome))
        return self
