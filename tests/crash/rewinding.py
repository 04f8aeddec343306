"""Drivers without Spark that write to four real sinks, are replayed, and can be killed anywhere.

``python -m tests.crash.rewinding`` reads what to do from its input, a JSON document a line, forks a
process for each, and prints its exit code: the libraries of four sinks take seconds to import.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from airflow_provider.extensions.postgres.sink import postgres
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.lease_records import newest_token
from airflow_provider.runtime.jobdir.run_records import JobRecord, RunRecord
from airflow_provider.runtime.savepoints.restores import check_no_open_restore
from airflow_provider.runtime.savepoints.rewind import (
    Rewind,
    begin_rewindable,
    forget_older,
    replayable_runs,
)
from airflow_provider.runtime.testing.job_directories import a_run, identified
from tests.extensions.delta import delta_support
from tests.extensions.iceberg import iceberg_support
from tests.extensions.postgres import postgres_support
from tests.unit.support import EpochBench, FakeFrame, HandStagedFiles, counted

CATALOG = "catalog.json"
SLOW_IMPORTS = (
    "deltalake.fs",
    "pandas",
    "pyarrow.dataset",
    "pyiceberg.catalog.sql",
    "pyiceberg.io.pyarrow",
    "sqlalchemy.dialects.sqlite",
)


class Delta(delta_support.HandStagedDelta):
    def stage(self, df: Any, epoch: Any) -> Any:
        return super().stage(delta_support.rows_of_epoch(epoch.epoch, *df.rows), epoch)


class Iceberg(iceberg_support.HandStagedTable):
    def stage(self, df: Any, epoch: Any) -> Any:
        rows = [{"id": number, "name": name} for number, name in enumerate(df.rows)]
        return super().stage(iceberg_support.Frame(iceberg_support.SCHEMA, rows), epoch)


class Sql:
    """The ``sql`` sink, for whose staging no Spark is needed."""

    def __init__(self, url: str) -> None:
        self._sink = postgres(url, "t")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def stage(self, df: Any, epoch: Any) -> Any:
        task, data = self._sink.begin_staging(
            postgres_support.schema_of(postgres_support.SCHEMA), epoch
        )
        rows = list(enumerate(df.rows))
        assert [len(rows)] == list(task(0, postgres_support.lines_of(rows)))
        return self._sink.end_staging(data, epoch)


def rows_of(run_id: str, first: int, upto: int) -> list[str]:
    """Return what a run writes in its epochs: another run writes other rows."""
    return [f"{run_id} {epoch}.{n}" for epoch in range(first, upto) for n in range(2)]


class Job:
    """A job directory of one query with four sinks, and what readers find in them.

    Args:
        root: a folder.
        url: a database of PostgreSQL.
    """

    def __init__(self, root: Path, url: str) -> None:
        if not (root / CATALOG).exists():
            (root / CATALOG).write_text(json.dumps(iceberg_support.catalog_properties(root)))
        self._catalog = json.loads((root / CATALOG).read_text())
        self._root = root
        self._url = url
        sinks: list[Any] = [
            HandStagedFiles(root / "files"),
            Delta(root / "delta"),
            Iceberg(self._catalog),
            Sql(url),
        ]
        self.bench = EpochBench(root / "job", *sinks)
        self.directory = JobDirectory(self.bench.storage)

    def visible(self) -> dict[str, list[str]]:
        """Return each sink's rows, sorted, with any duplicates."""
        iceberg = iceberg_support.rows_of(self._catalog)
        return {
            "files": HandStagedFiles(self._root / "files").visible(),
            "delta": delta_support.visible(self._root / "delta"),
            "iceberg": sorted(name for _, name in iceberg),
            "postgres": [name for (name,) in postgres_support.Table(self._url).rows("name")],
        }

    def rewind(self, run_id: str) -> None:
        """Undo a run, as its successor's driver does before anything else."""
        query = SimpleNamespace(name="q", sinks=self.bench.sinks, native=None)
        lease = self.bench.lease(run_id)
        Rewind(self.directory, run_id, [query], lease, self.bench.clock).rewind()
        self.bench.close()

    def run(self, run_id: str, upto: int, *, replays: str | None = None, keep: int = 3) -> None:
        """Be a driver until there are *upto* epochs: rewind, record, recover, save, write."""
        if replays is not None:
            self.rewind(replays)
        check_no_open_restore(self.directory)
        spark = self.bench.spark
        if spark.logs.query_id() is None:
            spark.begin(str(uuid.uuid5(uuid.NAMESPACE_OID, run_id)))
            spark.storage.put("sources/0/0", b"v1")
        identified(self.directory.storage)
        self.directory.put_job(JobRecord(name="job", created="now"))
        record = self.directory.run(run_id).put_record(self._asked(run_id))
        committer = self.bench.recovered(run_id)
        begin_rewindable(self.directory, record, self.bench.clock)
        kept = replayable_runs(self.directory, run_id, keep)
        token = newest_token(self.directory.storage)
        forget_older(self.directory, kept, self.bench.clock, token=token)
        for epoch in range(spark.logs.position().last_commit + 1, upto):
            spark.plan(epoch)
            rows = rows_of(run_id, epoch, epoch + 1)
            committer.pre_commit(FakeFrame(*rows), epoch, counted(len(rows)))
            spark.commit(epoch)
            committer.commit_ready()
        committer.remove_leftovers()
        self.bench.close()

    def _asked(self, run_id: str) -> RunRecord:
        return a_run(
            run_id,
            until="available",
            at_end="suspend",
            starting={"q": self.bench.spark.logs.position().last_commit},
            started=run_id,
            replayable=True,
        )


def act(root: str, url: str, action: str, arguments: list[Any], dies_at: str) -> None:
    """Do one thing, or die meanwhile."""
    os.environ["SPARK_STREAM_FAILPOINT"] = dies_at
    job = Job(Path(root), url)
    if action == "run":
        run_id, upto, replays, keep = arguments
        job.run(run_id, upto, replays=replays, keep=keep)
    else:
        job.rewind(*arguments)


def serve() -> None:
    """Do what is asked for, each in a process of its own."""
    for module in SLOW_IMPORTS:
        importlib.import_module(module)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            try:
                act(**json.loads(line))
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve()
