"""Jobs for the page "Streams", made by hand: each state that it shows, and Airflow's rows of them."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import itertools
import json
import math
import threading
import uuid
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from handmade import Job

from airflow_provider.runtime.base.clock import to_iso
from airflow_provider.runtime.base.typed_json import decode
from airflow_provider.runtime.jobdir.batch_history import BatchEntry, BatchHistory, HourEntry
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.query_reports import FinalQuery, PublishedSink
from airflow_provider.runtime.jobdir.run_records import FinalCheckpoint, JobRecord
from airflow_provider.runtime.savepoints.record import (
    MANIFEST,
    QuerySavepoint,
    SavedFile,
    SavepointRecord,
)
from airflow_provider.runtime.testing.job_directories import (
    a_progress,
    a_run,
    an_attempt,
    identified,
)
from tests.extensions.state_tools.test_state import SCHEMA
from tests.present import present
from tests.unit.test_inventory import Tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from sqlalchemy.orm import Session

    from airflow_provider.slices import Slice

IMG = "<img src=x onerror=alert(1)>"
LONG = "daily_delays_of_all_airports_" + "x" * 120
FAILURE = {
    "failure_class": "NON_RECOVERABLE",
    "reason": "[CAST_INVALID_INPUT] The value 'abc' cannot be cast to BIGINT",
    "condition": "CAST_INVALID_INPUT",
    "query": "daily",
    "batch": 41,
    "host": "worker-7",
    "root_cause": "org.apache.spark.SparkNumberFormatException: [CAST_INVALID_INPUT] row 4711",
    "rule": "a row that the job cannot process",
    "restartable": False,
}
PHASES = {
    "addBatch": 900,
    "queryPlanning": 120,
    "getBatch": 60,
    "walCommit": 40,
    "commitOffsets": 35,
}


def ago(seconds: float) -> str:
    """Return the moment so long ago, as documents have it."""
    return to_iso(dt.datetime.now(dt.timezone.utc) - dt.timedelta(seconds=seconds))


class PageJob(Job):
    """A job directory with all that the page shows.

    Args:
        root: the job directory.
        run_id: its run.
        name: the job's name.
    """

    def __init__(self, root: Path, run_id: str = "r1", name: str = "flights") -> None:
        super().__init__(root, run_id)
        JobDirectory(self.storage).put_job(JobRecord(name=name, created=ago(90_000)))
        more: dict[str, Any] = {"until": "stopped", "at_end": "suspend", "token": 1}
        self.run.put_record(a_run(run_id, params={}, started=ago(7200), **more))

    def at_work(self, token: int = 1, attempt: int = 1, **counted: Any) -> PageJob:
        """Put what a driver reports: its attempt and its progress.

        Args:
            token: its lease.
            attempt: the attempt.
            counted: what its progress says otherwise.
        """
        raw = an_attempt(attempt, driver_id="driver", token=token, started=ago(3600)).to_dict()
        more = {"application_id": "local-1", "ui_url": "http://127.0.0.1:4040"}
        self.run.storage.put(f"attempts/{attempt}.json", json.dumps({**raw, **more}).encode())
        query = {
            "phase": "reading",
            "rows_read": 12_345_678,
            "batch": 299,
            "watermark": ago(95),
            "state_rows": 48_211,
            "backlog": {"maxOffsetsBehindLatest": 5200, "avgOffsetsBehindLatest": 1300},
            "batch_sizing": {
                "target_s": 10.0,
                "last_batch_s": 8.4,
                "decision": "unchanged",
                "reason": "batches take about as long as they should",
                "sources": {"flights": {"limit": 250_000, "unit": "rows"}},
            },
            "sources": [{"name": "flights", "finish_state": "running"}],
            "operators": [
                {
                    "id": 0,
                    "name": "0",
                    "kind": "stateStoreSave",
                    "finish_state": "running",
                    "late_rows": 1234,
                }
            ],
            "sinks": [{"name": "out", "rows": 4321}],
            "row_counts": {
                "rows_read": 1000,
                "rejected": {"flights": {"rows": 1000, "broken": 20, "on": "quarantine"}},
                "rules": {
                    "has a delay": {"rows": 980, "broken": 30, "on": "quarantine"},
                    "is early": {"rows": 980, "broken": 7, "on": "count"},
                },
                "taken": 30,
                "late": {"0": 50},
                "quarantined": 50,
                "uncounted": ["late rows are a minimum"],
            },
        }
        reported: dict[str, Any] = {"queries": {"daily": query}, "rows_read": 12_345_678}
        reported |= {"late_rows": 1234, **counted}
        progress = a_progress(at=ago(2), attempt=attempt, rows_per_second=51_200.0, **reported)
        progress.put(self.run.storage, "progress.json")
        return self

    def history(self, query: str = "daily", count: int = 300) -> PageJob:
        """Put the history of so many batches, of ten seconds each, the last one a moment ago."""
        batches = [
            BatchEntry(**_batch(number, ago((count - number) * 10 + 15))) for number in range(count)
        ]
        hours = [HourEntry(**_hour(before)) for before in range(72, 0, -1)]
        history = BatchHistory(query=query, updated=ago(1), batches=batches, hours=hours)
        history.put(self.run.storage, f"history/{query}.json")
        return self

    def state(self, query: str = "daily") -> PageJob:
        """Put the checkpoint of a query that counts, after three batches."""
        tree = Tree()
        tree.log(0, 1, 2)
        tree.operator(schema=SCHEMA)
        tree.deltas(1, 2, 3)
        for path, data in tree.files.items():
            self.storage.put(f"queries/{query}/checkpoint/{path}", data)
        return self

    def savepoint(self, name: str, seconds_ago: float = 60.0, batch: int = 3) -> str:
        """Put a savepoint of two small files, one of them state, and return its address."""
        location = self.storage.at(f"savepoints/{name}")
        state = "state/0/0/1.delta"
        location.put("queries/daily/metadata", b"{}")
        location.put(f"queries/daily/{state}", b"s" * (batch + 1))
        query = QuerySavepoint(
            query_id="id",
            batch=batch,
            planned=False,
            watermark=ago(seconds_ago + 100),
            drained=False,
            sources=[],
            operators=[{"id": 0, "name": "stateStoreSave", "partitions": 1, "provider": None}],
            addressed=[],
            files=(SavedFile("metadata", 2), SavedFile(state, batch + 1)),
        )
        SavepointRecord(
            name=name,
            taken=ago(seconds_ago),
            origin="periodic",
            labels={},
            job="flights",
            run_id=self.run_id,
            source=self.url,
            queries={"daily": query},
        ).put(location, MANIFEST)
        return location.url

    def fail(self, driver_id: str = "driver", attempt: int = 1, **more: Any) -> PageJob:
        """Put an attempt that has failed, with its log."""
        log = self.root / "runs" / self.run_id / "logs" / f"{driver_id}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("reading flights\nCAST_INVALID_INPUT: row 4711\n")
        self.submit(driver_id, log=log)
        ended: dict[str, Any] = {"ended": ago(600), "outcome": "FAILED", "failure": FAILURE}
        record = an_attempt(attempt, driver_id=driver_id, started=ago(900), **ended, **more)
        self.run.put_attempt(record)
        self.end(driver_id, 4, "CAST_INVALID_INPUT: row 4711")
        return self

    def suspend(
        self,
        rows: int,
        *,
        began: float,
        ended: float,
        token: int,
        late: int = 0,
        quarantined: int = 0,
    ) -> PageJob:
        """Put the end of a run of a continuing job, with these rows read, late and quarantined."""
        identified(self.storage)
        more: dict[str, Any] = {"driver_id": f"driver-{token}", "token": token}
        times = {"started": ago(began), "ended": ago(ended)}
        self.run.put_attempt(an_attempt(1, **more, **times, outcome="SUSPENDED"))
        sinks: list[dict[str, Any]] = [
            {"name": "out", "epoch": token, "rows": rows - quarantined - late}
        ]
        sinks.append(
            {"name": "delta:/kept", "epoch": token, "rows": quarantined, "quarantine": True}
        )
        query = {
            "query_id": "id",
            "batch_id": token,
            "watermark": "2013-01-01T00:00:00.000Z",
            "sources": [{"name": "flights", "finish_state": "running"}],
            "sinks": sinks,
            "row_counts": {
                "rows_read": rows,
                "rejected": {"flights": {"rows": rows, "broken": quarantined, "on": "quarantine"}},
                "quarantined": quarantined,
            },
        }
        final = FinalCheckpoint(
            job=present(JobDirectory(self.storage).name()),
            run_id=self.run_id,
            outcome="SUSPENDED",
            mode="STREAMING",
            attempts=1,
            started=ago(began),
            committed=ago(ended),
            rows_read=rows,
            late_rows=late,
            savepoint=None,
            queries={"daily": decode(FinalQuery, query)},
        )
        self.run.put_final(final)
        return self

    def ended_slice(self, rows: int, *, began: float, ended: float) -> PageJob:
        """Put the end of a run so many seconds ago, with these rows read and written."""
        sink = PublishedSink(name="out", epoch=3, rows=rows - 1)
        query = FinalQuery(query_id="id", batch_id=3, sinks=(sink,))
        identified(self.storage)
        self.run.storage.delete("run.json")
        self.run.put_record(a_run(self.run_id, params={"day": "1"}, started=ago(began)))
        attempt = an_attempt(1, driver_id="driver", started=ago(began), ended=ago(ended))
        self.run.put_attempt(dataclasses.replace(attempt, outcome="FINISHED"))
        final = FinalCheckpoint(
            job=present(JobDirectory(self.storage).name()),
            run_id=self.run_id,
            outcome="FINISHED",
            mode="BATCH",
            attempts=1,
            started=ago(began),
            committed=ago(ended),
            rows_read=rows,
            rows_minimum=True,
            savepoint=None,
            queries={"daily": query},
        )
        self.run.put_final(final)
        return self


def dag_run_id_of(one: Slice) -> str:
    """Return the id of the DAG run that :func:`put_slices` puts for a slice."""
    return f"backfill__{one.key or one.start.isoformat()}"


@contextlib.contextmanager
def reporting(jobs: Sequence[PageJob]) -> Iterator[None]:
    """Report from the drivers of these jobs, each every ten seconds or so."""
    ended = threading.Event()

    def report() -> None:
        for job in itertools.cycle(jobs):
            job.at_work()
            if ended.wait(10 / len(jobs)):
                return

    thread = threading.Thread(target=report)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextlib.contextmanager
def page_jobs(location: Path) -> Iterator[dict[str, PageJob]]:
    """Give a job that runs and has 300 savepoints, one that has failed and one that has finished."""
    made = {
        "running": PageJob(location / "running", name="daily_delays").history().state(),
        "failed": PageJob(location / "failed", name=IMG).fail(),
        "finished": PageJob(location / "finished", name=LONG),
    }
    made["finished"].run.storage.delete("run.json")
    made["finished"].finish()
    for number in range(300):
        name = f"periodic-20260101T{number:06}"
        made["running"].savepoint(name, seconds_ago=600 * (300 - number), batch=number)
    with made["running"].lease(), reporting([made["running"].at_work()]):
        yield made


def _batch(number: int, at: str) -> dict[str, Any]:
    swing = 1 + 0.3 * math.sin(number / 12) + (0.8 if number % 90 == 70 else 0)
    phases = {name: round(ms * swing * 7) for name, ms in PHASES.items()}
    return {
        "batch": number,
        "at": at,
        "attempt": 1 if number < 180 else 2,
        "rows": round(500_000 * swing),
        "late_rows": 12 if number % 60 == 5 else 0,
        "duration_ms": {**phases, "triggerExecution": sum(phases.values())},
        "input_rate": 50_000 * swing,
        "process_rate": 62_000 / swing,
        "watermark": at,
        "lag_s": 80 + 40 * math.cos(number / 20),
        "state_rows": 40_000 + number * 27,
        "state_bytes": 21_000_000 + number * 9000,
        "backlog": {"maxOffsetsBehindLatest": max(0, round(9000 * math.sin(number / 25)))},
        "limits": {"flights": 250_000},
        "decision": "unchanged",
        "reason": "batches take about as long as they should",
    }


def _hour(before: int) -> dict[str, Any]:
    swing = 1 + 0.3 * math.sin(before / 5)
    return {
        "hour": ago(3600 * (before + 1))[:13] + ":00:00.000Z",
        "batches": 360,
        "rows": round(180_000_000 * swing),
        "late_rows": 700 if before % 24 == 5 else 0,
        "min_ms": round(4200 * swing),
        "mean_ms": 8000 * swing,
        "max_ms": round((19_000 if before % 24 == 9 else 11_000) * swing),
        "state_rows": 40_000 - before * 90,
        "state_bytes": 21_000_000 - before * 40_000,
    }


def put_tasks(session: Session, tasks: Iterable[tuple[str, str, str, str | None, bool]]) -> None:
    """Put rows as Airflow has them: DAG, its run, task instance, rendered template and XCom.

    Args:
        session: of Airflow's database.
        tasks: per task the DAG, the task, its state, its job directory, and whether it is indexed.
    """
    from airflow.models.dag import DagModel
    from airflow.models.dagrun import DagRun

    now = dt.datetime.now(dt.timezone.utc)
    _put_bundle(session)
    for dag_id, task_id, state, job_dir, is_indexed in tasks:
        if session.get(DagModel, dag_id) is None:
            session.add(DagModel(dag_id=dag_id, bundle_name="page", fileloc="page.py"))
            session.flush()
            run = DagRun(dag_id=dag_id, run_id="run_1", run_type="manual", run_after=now)
            session.add(run)
            session.flush()
        _put_task(session, dag_id, task_id, state, job_dir, is_indexed=is_indexed)
    session.commit()


def put_slices(
    session: Session,
    dag_id: str,
    task_id: str,
    slices: Iterable[tuple[Slice, str | None, str | None]],
    **fields: Any,
) -> list[str]:
    """Put a run of a backfill for each slice, and the task in it, and return the runs' ids.

    Args:
        session: of Airflow's database.
        dag_id: a new DAG.
        task_id: its task.
        slices: the slice, the task's state, and its job directory; None before the task has begun.
        fields: further rendered templates.
    """
    from airflow.models.dag import DagModel
    from airflow.models.dagrun import DagRun

    _put_bundle(session)
    session.add(DagModel(dag_id=dag_id, bundle_name="page", fileloc="page.py"))
    session.flush()
    run_ids = []
    for one, state, job_dir in slices:
        run_ids.append(dag_run_id_of(one))
        start = None if one.interval is None else one.start
        run = DagRun(
            dag_id=dag_id,
            run_id=run_ids[-1],
            run_type="backfill",
            run_after=dt.datetime.now(dt.timezone.utc),
            logical_date=start,
            data_interval=one.interval,
            conf={"partition_key": one.key} if one.key else {},
        )
        session.add(run)
        session.flush()
        is_begun = job_dir is not None
        where = (dag_id, task_id, state, job_dir)
        _put_task(session, *where, run_id=run_ids[-1], is_indexed=is_begun, rendered=fields)
    session.commit()
    return run_ids


def _put_bundle(session: Session) -> None:
    from airflow.models.dagbundle import DagBundleModel

    if session.get(DagBundleModel, "page") is None:
        session.add(DagBundleModel(name="page"))
        session.flush()


def _put_task(
    session: Session,
    dag_id: str,
    task_id: str,
    state: str | None,
    job_dir: str | None,
    *,
    is_indexed: bool,
    run_id: str = "run_1",
    rendered: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    from airflow.models.dagrun import DagRun
    from airflow.models.renderedtifields import RenderedTaskInstanceFields
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.xcom import XComModel
    from sqlalchemy import insert, select

    where = {"dag_id": dag_id, "task_id": task_id, "run_id": run_id, "map_index": -1}
    now = dt.datetime.now(dt.timezone.utc)
    named = {
        **where,
        "id": _new_id(TaskInstance),
        "state": state,
        "operator": "SparkStreamingOperator",
    }
    instance = {**named, "try_number": 1, "pool": "default_pool", "pool_slots": 1}
    session.execute(insert(TaskInstance).values(**instance))
    fields = {"job_dir": job_dir, **rendered} if job_dir is not None else {}
    session.execute(insert(RenderedTaskInstanceFields).values(**where, rendered_fields=fields))
    if is_indexed:
        query = select(DagRun.id).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)
        # What an editor of XComs may write: nothing is read from there.
        value = {"job_dir": "/somewhere/else", "run_id": "other"}
        key = {"key": "spark_stream", "dag_run_id": session.scalar(query), "timestamp": now}
        session.execute(insert(XComModel).values(**where, **key, value=value))


def _new_id(model: Any) -> Any:
    """Return an id as the model has it, which is a text in some versions of Airflow."""
    made = uuid.uuid4()
    return made if hasattr(model.__table__.c.id.type, "as_uuid") else str(made)
