"""Jobs without Spark that write real Delta tables, and readers with positions in them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from airflow_provider.extensions.delta.sink import DeltaSink
from airflow_provider.extensions.maintenance.decision import Holds
from airflow_provider.extensions.maintenance.delta_files import DeltaFiles
from airflow_provider.extensions.maintenance.delta_maintenance import Wishes, maintain_delta
from airflow_provider.extensions.maintenance.facts import collect
from airflow_provider.extensions.maintenance.report import Report
from airflow_provider.runtime.api.sinks import OpenFence
from airflow_provider.runtime.jobdir.lease_records import newest_token
from airflow_provider.runtime.savepoints.rewind import (
    Rewind,
    begin_rewindable,
    forget_older,
    replayable_runs,
)
from airflow_provider.runtime.testing.job_directories import JobDirectoryBuilder, a_run
from tests.extensions.delta.delta_support import Frame, HandStagedDelta
from tests.unit.support import EpochBench, counted

LARGE = 10**9


class SlicedDelta(HandStagedDelta):
    """The sink, with a slice that its epochs replace."""

    def __init__(self, folder: Path, replace: str) -> None:
        DeltaSink.__init__(self, str(folder), (), {}, {}, replace=replace)
        self.folder = folder

    def stage(self, df: Any, epoch: Any) -> Any:
        found = super().stage(df, epoch)
        return type(found)(self._in_slice(found.data), found.rows)


class WritingJob:
    """A job whose runs write to a Delta table, as drivers do."""

    def __init__(self, root: Path, table: Path, replace: str | None = None) -> None:
        sink = HandStagedDelta(table) if replace is None else SlicedDelta(table, replace)
        self.table, self.root = table, root
        self.bench = EpochBench(root, sink).begun()
        self.epoch = 0

    @property
    def directory(self) -> Any:
        return JobDirectoryBuilder(self.root).directory

    def run(self, run_id: str, *epochs: list[tuple[int, str]], replayable: bool = True) -> None:
        """Let a run write epochs of rows, and end."""
        bench, directory = self.bench, self.directory
        committer = bench.recovered(run_id)
        start = bench.spark.logs.position().last_commit
        record = a_run(run_id, at_end="suspend", starting={"q": start}, replayable=replayable)
        directory.run(run_id).put_record(record)
        if replayable:
            begin_rewindable(directory, record, bench.clock)
        for number, rows in enumerate(epochs, start=start + 1):
            bench.spark.plan(number)
            committer.pre_commit(Frame(rows), number, counted(len(rows)))
            bench.spark.commit(number)
        committer.commit_ready()
        bench.close()

    def keep(self, run_id: str, runs: int) -> None:
        """Dispose of the savepoints of older runs, as each start does."""
        kept = replayable_runs(self.directory, run_id, runs)
        token = newest_token(self.bench.storage)
        forget_older(self.directory, kept, self.bench.clock, token=token)

    def rewind(self, run_id: str) -> None:
        query = SimpleNamespace(name="q", sinks=self.bench.sinks, native=None)
        Rewind(self.directory, run_id, [query], OpenFence(99), self.bench.clock).rewind()


def reader_at(root: Path, table: Path, version: int, **more: Any) -> str:
    """Make a job directory of a reader that has read up to a version, and return its address."""
    table_id = str(DeltaTable(str(table)).metadata().id)
    offset = json.dumps({"id": table_id, "version": version, "index": 0, **more})
    job = JobDirectoryBuilder(root).begin()
    job.spark.begin().plan(0, sources=[offset]).commit(0)
    return job.url


def maintain(
    table: Path, *jobs: Path | str, readers: tuple[str, ...] = (), **wishes: Any
) -> Report:
    """Maintain a table as the command does; nothing is kept for its age."""
    facts = collect([str(job) for job in jobs], readers)
    wanted = {"keep_s": 0.0, "target_bytes": LARGE, **wishes}
    return maintain_delta(DeltaFiles(str(table), {}), facts, Wishes(**wanted))


def rows_of(table: Path, version: int | None = None) -> list[tuple[Any, ...]]:
    """Return the rows that a reader of a version sees, sorted."""
    read = DeltaTable(str(table), version=version).to_pyarrow_table()
    return sorted(tuple(row.values()) for row in read.to_pylist())


def files_of(table: Path) -> int:
    return int(pa.table(DeltaTable(str(table)).get_add_actions()).num_rows)


def holders(holds: Holds) -> str:
    return "\n".join(sorted(holds))
