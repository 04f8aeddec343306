"""Job directories made by hand: the documents that drivers and Airflow leave, without Spark."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base.clock import SystemClock, to_iso
from airflow_provider.runtime.base.host import ProcessIdentity, identify
from airflow_provider.runtime.base.typed_json import decode, encode
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.jobdir.end_of_input import DrainIntent, put_drain_intent
from airflow_provider.runtime.jobdir.epoch_documents import EpochRecord
from airflow_provider.runtime.jobdir.epochs import EpochRecords
from airflow_provider.runtime.jobdir.identity import PATH, IdentityRecord
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.lease import Lease, acquire_lease
from airflow_provider.runtime.jobdir.query_reports import FinalQuery, PublishedSink
from airflow_provider.runtime.jobdir.requests import requests_of
from airflow_provider.runtime.jobdir.run_options import RunOptions
from airflow_provider.runtime.jobdir.run_records import (
    FINISHED,
    SUSPENDED,
    AttemptRecord,
    FinalCheckpoint,
    JobRecord,
    ProgressRecord,
    RequestRecord,
    RewoundRecord,
    RunRecord,
    StopRecord,
)
from airflow_provider.runtime.jobdir.submissions import DriverEnd, ProcessRecord, SubmissionRecord
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.storage.open import open_storage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from typing_extensions import Self

    from airflow_provider.runtime.api.storages import Storage

NOW: Final = "2026-01-01T00:00:00.000Z"
QUERY_ID: Final = "0b9f6c1e-3a55-4d43-8f2b-2f6a51c3d9aa"
"""Spark's id of the only query of these jobs."""


def identified(storage: Storage) -> Storage:
    """Give a job directory its identity, as each that was begun has; return its storage."""
    IdentityRecord(identity="0" * 15, made=NOW).put_if_absent(storage, PATH)
    return storage


def an_epoch(epoch: int = 0, *, committed: str | None = NOW) -> EpochRecord:
    """Return the record of an epoch of the query."""
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
    """Return the final checkpoint of a run with one query."""
    query = FinalQuery(
        query_id=QUERY_ID,
        batch_id=batch,
        finished=outcome == FINISHED,
        sinks=(PublishedSink(name="files:/out", epoch=epoch, rows=3),),
    )
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
    """Return the record of a run."""
    asked = {
        "run_id": run_id,
        "entry": "job.py:daily",
        "params": {"input": "/in"},
        "interval": None,
        "starting": {"q": -1},
        "started": NOW,
    }
    names = {field.name for field in dataclasses.fields(RunOptions)}
    options: dict[str, Any] = {"mode": "streaming", "until": "end", "at_end": "drain"}
    options |= {name: value for name, value in values.items() if name in names}
    others = {name: value for name, value in values.items() if name not in names}
    return RunRecord(**{**asked, **others}, options=RunOptions(**options))


def an_attempt(number: int = 1, *, driver_id: str = "d1", **values: Any) -> AttemptRecord:
    """Return the record of an attempt that has not ended."""
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


def rewind_run(
    directory: JobDirectory,
    run_id: str,
    *,
    savepoint: str | None = None,
    at: str = NOW,
    by: str = "rewind",
) -> None:
    """Record that a run no longer counts, as its rewind does when it has begun."""
    record = RewoundRecord(run_id=run_id, savepoint=savepoint, at=at, by=by)
    directory.run(run_id).put_rewound(record)


def a_submission(driver_id: str = "d1", *, submitted: str = NOW) -> SubmissionRecord:
    """Return the record of a driver's submission."""
    return SubmissionRecord(driver_id=driver_id, run_id="r1", submitted=submitted, log=None)


def an_exit(exit_code: int = 1, *lines: str) -> DriverEnd:
    """Return the record of a driver's exit, with the last lines of its log."""
    return DriverEnd(state="ended", exit_code=exit_code, last_lines=list(lines), at=NOW)


def a_progress(**values: Any) -> ProgressRecord:
    """Return a driver's report of a query that reads; *values* are fields as JSON has them."""
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
    raw = encode({**progress, **values})
    raw["queries"] = {name: {"phase": "reading", **each} for name, each in raw["queries"].items()}
    record: ProgressRecord = decode(ProgressRecord, raw)
    return record


def a_stop() -> StopRecord:
    """Return the record of a stop with a savepoint."""
    return StopRecord(request_id="ask-1", savepoint="/savepoints/s1", at=NOW)


def an_intent(run_id: str) -> DrainIntent:
    """Return the intent of a run to drain the query."""
    return DrainIntent(query_id=QUERY_ID, run_id=run_id, batch=0, at=NOW)


class CheckpointBuilder:
    """A query's checkpoint, written by hand as Spark writes it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.storage = LocalStorage(str(root))
        self.logs = CheckpointLogs(self.storage)

    def begin(self, query_id: str = QUERY_ID) -> Self:
        self._write("metadata", f'{{"id":"{query_id}"}}'.encode())
        return self

    def plan(
        self, batch: int, *, watermark_ms: int = 0, sources: Sequence[str] = ('{"logOffset":0}',)
    ) -> Self:
        metadata = {
            "batchWatermarkMs": watermark_ms,
            "batchTimestampMs": 1_795_230_227_049 + batch,
            "conf": {"spark.sql.shuffle.partitions": "2"},
        }
        text = "\n".join(["v1", json.dumps(metadata, separators=(",", ":")), *sources])
        self._write(f"offsets/{batch}", text.encode())
        return self

    def commit(self, batch: int, *, next_watermark_ms: int = 0) -> Self:
        text = json.dumps({"nextBatchWatermarkMs": next_watermark_ms}, separators=(",", ":"))
        self._write(f"commits/{batch}", f"v1\n{text}".encode())
        return self

    def run(self, batch: int, *, watermark_ms: int = 0) -> Self:
        return self.plan(batch, watermark_ms=watermark_ms).commit(batch)

    def keep_state(self, *operators: int) -> Self:
        for operator in operators or (0,):
            self._write(f"state/{operator}/0/1.delta", b"state")
            self._write(f"state/{operator}/1/1.delta", b"state")
        return self

    def _write(self, path: str, data: bytes) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


class JobDirectoryBuilder:
    """A job directory, put together document by document."""

    def __init__(self, root: Path | str, run_id: str = "r1", query: str = "q") -> None:
        self.root = Path(root)
        self.url = str(root)
        self.run_id = run_id
        self.query = query
        self.storage: Storage = open_storage(self.url)
        self.directory = JobDirectory(self.storage)
        self.run = self.directory.run(run_id)

    @property
    def spark(self) -> CheckpointBuilder:
        return CheckpointBuilder(Path(self.directory.checkpoint(self.query).url))

    def begin(self, name: str = "daily_delays") -> Self:
        self.directory.put_job(JobRecord(name=name, created=NOW))
        identified(self.storage)
        return self

    def request_run(self, run_id: str | None = None, **values: Any) -> Self:
        run_id = run_id or self.run_id
        self.directory.run(run_id).put_record(a_run(run_id, **values))
        return self

    def commit(
        self,
        batch: int,
        *,
        published: bool = True,
        watermark_ms: int = 0,
        sources: Sequence[str] = ('{"logOffset":0}',),
    ) -> Self:
        self.spark.plan(batch, watermark_ms=watermark_ms, sources=sources).commit(batch)
        records = EpochRecords(self.directory.committables(self.query), QUERY_ID)
        if published:
            records.put_published(an_epoch(batch))
        else:
            records.put_precommit(an_epoch(batch, committed=None))
        return self

    def ran(self, batch: int = 0, *, published: bool = True) -> Self:
        self.spark.begin()
        for each in range(batch + 1):
            self.commit(each, published=published)
        return self

    def drains(self, run_id: str | None = None) -> Self:
        self.spark.begin()
        put_drain_intent(self.directory, self.query, an_intent(run_id or self.run_id))
        return self

    def finished(self, run_id: str | None = None) -> Self:
        self.drains(run_id)
        return self._ended(run_id or self.run_id, FINISHED)

    def suspended(self, run_id: str | None = None) -> Self:
        return self._ended(run_id or self.run_id, SUSPENDED)

    def _ended(self, run_id: str, outcome: str) -> Self:
        run = self.directory.run(run_id)
        run.put_attempt(an_attempt(ended=NOW, outcome=outcome))
        run.put_final(a_final(run_id, outcome=outcome))
        return self

    def submit(
        self,
        driver_id: str = "driver",
        *,
        process: ProcessIdentity | None = None,
        ago_s: float = 0.0,
        log: Path | None = None,
    ) -> str:
        """Put the intent to start a driver, and the process that started it if there is one."""
        identified(self.storage)
        submitted = dt.datetime.now(dt.timezone.utc) - dt.timedelta(seconds=ago_s)
        record = SubmissionRecord(
            driver_id=driver_id,
            run_id=self.run_id,
            submitted=to_iso(submitted),
            log=str(log) if log else None,
        )
        self.run.put_submission(record)
        if process is not None:
            name = f"submissions/{driver_id}.process.json"
            ProcessRecord(identity=process).put(self.run.storage, name)
        return driver_id

    def end(self, driver_id: str, exit_code: int, *lines: str) -> None:
        self.run.put_end(driver_id, an_exit(exit_code, *lines))

    def attempt(
        self, driver_id: str, outcome: str, failure: Mapping[str, Any] | None = None
    ) -> None:
        number = self.run.attempt_count() + 1
        record = an_attempt(
            number,
            driver_id=driver_id,
            token=1,
            ended=NOW,
            outcome=outcome,
            failure=dict(failure) if failure else None,
        )
        self.run.put_attempt(record)

    @contextlib.contextmanager
    def lease(
        self,
        driver_id: str = "driver",
        *,
        owner: ProcessIdentity | None = None,
        run_id: str | None = None,
    ) -> Iterator[Lease]:
        """Hold the lease as a driver does, heartbeat included; released at the end."""
        identified(self.storage)
        lease = acquire_lease(
            self.storage,
            run_id=run_id or self.run_id,
            driver_id=driver_id,
            owner=owner or identify([os.getpid()]),
            clock=SystemClock(),
            heartbeat_s=0.05,
            timeout_s=5.0,
        )
        try:
            yield lease
        finally:
            lease.release()

    def documents(self) -> list[str]:
        return sorted(str(p.relative_to(self.root)) for p in self.root.rglob("*") if p.is_file())

    def requests(self) -> list[RequestRecord]:
        drivers = self.storage.list("requests")
        return [request for driver in drivers for request in requests_of(self.storage, driver)]
