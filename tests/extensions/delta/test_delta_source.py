"""A Delta table as a job's source: the contract, and a table whose next commit is refused."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from driving import driving
from streams import read_with_pandas

from airflow_provider.extensions.delta import delta_table
from airflow_provider.runtime.api.sources import Source
from airflow_provider.runtime.driver.run import run_job
from airflow_provider.runtime.errors import RunFailedError
from airflow_provider.runtime.jobdir.layout import directory_at
from airflow_provider.runtime.jobdir.run_spec import RunSpec
from airflow_provider.runtime.testing.sources import ROWS, SourceContract, SourceJob, failing_once
from tests.extensions.delta.table_support import append
from tests.extensions.delta.test_table_changes import SCHEMA, Changes, counted, write

pytestmark = [pytest.mark.spark, pytest.mark.long]

JOBS = Path(__file__).parent / "delta_source_jobs.py"


class Table:
    """A table, a commit a piece."""

    entry = f"{JOBS}:copied"

    def __init__(self, root: Path) -> None:
        self.folder = root / "a table"
        append(self.folder)
        self.params = {"input": str(self.folder)}

    def open(self) -> Source:
        return delta_table(str(self.folder))

    def append(self, first: int) -> None:
        append(self.folder, *range(first, first + ROWS))


class TestDeltaTable(SourceContract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> Table:
        return Table(tmp_path)

    def test_a_run_does_not_end_before_a_commit_that_it_refuses(
        self, job: SourceJob, case: Table
    ) -> None:
        """The rows before it are published, and the run fails each time it is tried."""
        job.append(2)
        job.run("r1")
        job.append(1)
        DeltaTable(str(case.folder)).delete("id = 3")

        for _ in range(2):
            with pytest.raises(RunFailedError, match="deletes or updates rows"):
                job.run("r2")
        assert job.appended == job.ids()

    def test_the_backlog_is_in_the_history(self, job: SourceJob) -> None:
        """In files, after each batch."""
        job.append(6)
        job.run("r1")

        history = directory_at(job.directory).run("r1").history("out")
        assert history is not None
        assert [4, 2, 0] == [
            found["filesOutstanding"]
            for found in (each.backlog or {} for each in history.batches)
            if "filesOutstanding" in found
        ]


def test_a_table_that_the_job_writes_is_read_to_its_last_row(spark, tmp_path):
    """A query that reads what another one of the job writes ends when that has ended."""
    folder, table, output = tmp_path / "in", tmp_path / "table", tmp_path / "out"
    folder.mkdir()
    append(table)
    for number in range(3):
        (folder / f"{number}.csv").write_text(f"{number}\n")
    params = {"input": str(folder), "table": str(table), "output": str(output)}
    spec = RunSpec(
        job_dir=str(tmp_path / "job"),
        entry=f"{JOBS}:chained",
        params=params,
        run_id="r1",
        mode="streaming",
    )

    final = run_job(spec, spark=spark)

    assert "FINISHED" == final.outcome
    assert [0, 1, 2] == sorted(pq.read_table(output)["id"].to_pylist())


def minute(number: int, *ids: int) -> pa.Table:
    """Return rows of a minute."""
    at = pa.array([number * 60_000_000] * len(ids), pa.timestamp("us", "UTC"))
    return pa.table({"id": pa.array(ids, pa.int64()), "at": at})


def test_windows_close_while_a_table_is_silent(spark, location):
    """Its watermark is gone on without after its time; rows that it has later count, as of files."""
    table = str(location.root / "table")
    write_deltalake(table, minute(0, 1))

    def put(number: int) -> None:
        unfinished = location.input / f".{number}"
        unfinished.write_text(f"{number},1970-01-01 00:0{number}:00\n")
        unfinished.rename(location.input / f"{number}.csv")

    def written() -> list[tuple[Any, ...]]:
        folder = location.output
        return read_with_pandas(folder) if any(folder.glob("part-*")) else []

    location.input.mkdir()
    params = {"table": table}
    entry = f"{JOBS}:counted"
    with driving(spark, location, "counted", entry=entry, until="stopped", params=params) as driver:
        for number in (1, 2, 3):
            put(number)
        driver.until(lambda: written() == [(0, 1), (60, 1)])
        write_deltalake(table, minute(4, 2, 3), mode="append")
        put(5)
        driver.until(lambda: written() == [(0, 1), (60, 1), (120, 1), (180, 1)])
        driver.stop(drain=True)
        driver.end()

    assert [(0, 1), (60, 1), (120, 1), (180, 1), (240, 2), (300, 1)] == written()


def test_a_replica_is_equal_after_every_run(spark, tmp_path):
    """A job applies the changes by key, over retries after a failure in the middle of a batch."""
    folder, replica = tmp_path / "a table", tmp_path / "replica"
    write(folder, 1, 2, 3)
    write_deltalake(str(replica), SCHEMA.empty_table())
    changes = Changes(folder, random.Random(7))
    changes.next_id = 4

    def run(number: int) -> None:
        params = {"input": str(folder), "output": str(replica)}
        spec = RunSpec(
            job_dir=str(tmp_path / "job"),
            entry=f"{JOBS}:replicated",
            params=params,
            run_id=f"r{number}",
            mode="streaming",
            until="available",
            at_end="suspend",
        )
        run_job(spec, spark=spark)

    for number in range(3):
        for _ in range(4):
            changes.make()
        with failing_once("sink.staged"), pytest.raises(RunFailedError):
            run(number)
        changes.make()
        run(number)
        run(number + 10)

        tables = [pa.table(DeltaTable(str(each)).to_pyarrow_table()) for each in (folder, replica)]
        original, copied = (counted(table.to_pylist()) for table in tables)
        assert original == copied
