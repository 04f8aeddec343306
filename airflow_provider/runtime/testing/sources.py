"""The contract of a source, as tests: subclass it for your own source (docs/internals/extend.md).

Each test is a job with real runs: a fixture ``spark`` gives the session. It needs ``pytest`` and
``pyarrow``.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, Protocol

import pytest

from airflow_provider.runtime.api.sources import EndingSource, SameInBatch, SizedSource, Source
from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.driver.run import run_job
from airflow_provider.runtime.errors import ConfigError, RunFailedError
from airflow_provider.runtime.jobdir.layout import directory_at
from airflow_provider.runtime.jobdir.run_spec import RunSpec
from airflow_provider.runtime.queries import fixed_ends
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.savepoints.take import take_savepoint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from airflow_provider.runtime.jobdir.run_records import FinalCheckpoint

ROWS: Final = 10
"""In each piece that a case appends: a file, a commit."""


class SourceCase(Protocol):
    """A source to test, and a job that reads it.

    Attributes:
        entry: ``FILE:FUNCTION`` of a job with a query ``out``. It reads the source *bounded*, at
            most two pieces in a batch, with ``ends=`` the parameter ``ends`` if that is there, and
            writes the column ``id`` with ``files(ctx.params["output"])``.
        params: the job's other parameters.
    """

    entry: str
    params: Mapping[str, str]

    def open(self) -> Source:
        """Return the source."""

    def append(self, first: int) -> None:
        """Append a piece: rows with the ids from *first*, :data:`ROWS` of them."""


class SourceContract:
    """What :class:`~airflow_provider.runtime.api.sources.Source` and its capabilities promise.

    A subclass gives the fixture ``case``, a fresh :class:`SourceCase` without rows.
    """

    @pytest.fixture
    def job(self, spark: SparkSession, case: SourceCase, tmp_path: Path) -> SourceJob:
        return SourceJob(spark, case, tmp_path)

    def test_equal_sources_have_equal_locations(self, case: SourceCase) -> None:
        """What is stored about a source says the same of one that is opened again."""
        assert case.open().location() == case.open().location()
        assert case.open().kind == case.open().kind.lower()

    def test_each_row_is_read_once(self, job: SourceJob) -> None:
        """A later run reads what was appended since, and a run without new rows reads none."""
        job.append(3)
        assert (3 * ROWS, job.appended) == (job.run("r1").rows_read, job.ids())
        assert 0 == (job.run("r2").rows_read or 0)
        job.append(1)
        assert (ROWS, job.appended) == (job.run("r3").rows_read, job.ids())

    def test_a_batch_obeys_its_limit(self, job: SourceJob) -> None:
        """What is there is read in several batches, if the source can limit them."""
        job.append(6)
        job.run("r1")

        assert job.appended == job.ids()
        if isinstance(job.case.open(), SizedSource):
            assert job.batches() >= 6 // 2

    @pytest.mark.parametrize("point", ["ends.recorded", "sink.staged", "sink.precommitted"])
    def test_a_retry_reads_what_the_first_attempt_has_found(
        self, job: SourceJob, point: str
    ) -> None:
        """An attempt fails, rows arrive, and the next one reads as far as the first: no further."""
        if not isinstance(job.case.open(), EndingSource):
            pytest.skip("the source keeps no end")
        job.append(5)
        expected = list(job.appended)
        job.fail_at(point, "r1")
        job.append(2)

        final = job.run("r1")

        assert (expected, 5 * ROWS) == (job.ids(), final.rows_read)
        assert (2 * ROWS, job.appended) == (job.run("r2").rows_read, job.ids())

    def test_a_batch_whose_end_was_not_recorded_is_repeated(
        self, job: SourceJob, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An attempt fails when Spark has planned its first batch; the next one repeats that."""
        job.append(3)
        with monkeypatch.context() as patch:
            patch.setattr(fixed_ends, "find_ends", _fail)
            with pytest.raises(RunFailedError, match="not recorded"):
                job.run("r1")
        job.append(1)

        job.run("r1")
        job.run("r2")

        assert job.appended == job.ids()

    def test_an_end_that_cannot_be_is_refused(self, job: SourceJob) -> None:
        """One line names the source, before anything is written."""
        job.append(1)
        with pytest.raises(ConfigError, match="ends"):
            job.run("r1", ends="no such end")

        assert not job.output.exists()

    def test_a_savepoint_continues_where_it_was_taken(self, job: SourceJob, tmp_path: Path) -> None:
        """Another job that begins from it reads only what was appended since."""
        job.append(2)
        job.run("r1")
        url = str(tmp_path / "savepoint")
        take_savepoint(job_source(job.directory, SystemClock()), url)
        before = len(job.appended)
        job.append(1)
        other = SourceJob(job.spark, job.case, tmp_path / "other")

        final = other.run("r1", from_savepoint=url)

        assert (ROWS, job.appended[before:]) == (final.rows_read, other.ids())

    def test_batch_gives_the_rows_of_a_stream(self, job: SourceJob) -> None:
        """In BATCH each row is read once and counted, too."""
        if not isinstance(job.case.open(), SameInBatch):
            pytest.skip("the source may give BATCH other rows")
        job.append(3)
        final = job.run("r1", mode="batch", until="end", at_end="drain")

        assert (3 * ROWS, job.appended) == (final.rows_read, job.ids())


class SourceJob:
    """A job that reads the source of a case, in a directory of its own.

    Attributes:
        appended: the ids that were appended, sorted.
        output: the folder that it writes to.
    """

    def __init__(self, spark: SparkSession, case: SourceCase, root: Path) -> None:
        self.spark, self.case = spark, case
        self.appended: list[int] = []
        self.output = root / "output"
        self.directory = str(root / "job")

    def append(self, pieces: int) -> None:
        for _ in range(pieces):
            first = len(self.appended)
            self.case.append(first)
            self.appended += range(first, first + ROWS)

    def run(self, run_id: str, *, ends: str | None = None, **asked: Any) -> FinalCheckpoint:
        params = {**self.case.params, "output": str(self.output)}
        if ends is not None:
            params["ends"] = ends
        how = {"mode": "streaming", "until": "available", "at_end": "suspend", **asked}
        spec = RunSpec(
            job_dir=self.directory, entry=self.case.entry, params=params, run_id=run_id, **how
        )
        return run_job(spec, spark=self.spark)

    def fail_at(self, point: str, run_id: str) -> None:
        """Let a run fail when it first comes to a failpoint."""
        with failing_once(point), pytest.raises(RunFailedError, match=point):
            self.run(run_id)

    def ids(self) -> list[int]:
        """Return what the job has published."""
        import pyarrow.parquet as pq

        if not self.output.exists():
            return []
        return sorted(pq.read_table(self.output, columns=["id"])["id"].to_pylist())

    def batches(self) -> int:
        """Return the number of committed batches."""
        location = directory_at(self.directory).checkpoint("out")
        return CheckpointLogs(location).position().last_commit + 1


def _fail(*_: Any) -> Any:
    raise OSError("not recorded")


@contextlib.contextmanager
def failing_once(point: str) -> Iterator[None]:
    """Let whoever of this process comes to a failpoint first fail there."""
    left = [point]

    def fail(name: str) -> None:
        if name in left:
            left.remove(name)
            raise OSError(name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failpoints, "hit", fail)
        yield
