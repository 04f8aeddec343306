"""A Delta table as a job's source: the contract, and a table whose next commit is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from airflow_provider.extensions.delta import delta_table
from airflow_provider.runtime.api.sources import Source
from airflow_provider.runtime.errors import RunFailedError
from airflow_provider.runtime.jobdir.layout import directory_at
from airflow_provider.runtime.testing.sources import ROWS, SourceContract, SourceJob
from tests.extensions.delta.table_support import append

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
