"""Queries whose source is made again under its old name: refused, or begun anew, with real Spark."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pytest
from streams import SUSPEND, Location, savepoint_of

from airflow_provider.extensions.state_rewrite.rewrite import rewrite_savepoint
from airflow_provider.extensions.state_rewrite.rewrite_plan import Changes
from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.driver.restore_job import restore_job
from airflow_provider.runtime.driver.rewind_job import rewind_job
from airflow_provider.runtime.errors import RunFailedError
from airflow_provider.runtime.errors.explanation import FailureClass
from airflow_provider.runtime.failures.restart_strategy import FixedDelay
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.source_identities import kept_identities
from airflow_provider.runtime.storage.open import open_storage
from tests.present import present

pytestmark = pytest.mark.spark

ENTRY = f"{Path(__file__).with_name('identity_jobs.py')}:copy"
OLD, NEW = range(10), range(100, 125)  # the new one has more than the query has read


@dataclasses.dataclass
class Job:
    """A job, and the numbers that it reads."""

    spark: Any
    location: Location

    def make(self, identity: str, numbers: Sequence[int]) -> None:
        """Make the source, or make it again."""
        text = "".join(f"{number}\n" for number in numbers)
        self.location.input.write_text(text, encoding="utf-8")
        Path(f"{self.location.input}.id").write_text(identity, encoding="utf-8")

    def run(self, **asked: Any) -> Any:
        return self.location.run(self.spark, "copy", entry=ENTRY, **{**SUSPEND, **asked})

    def refused(self, **asked: Any) -> str:
        """Run it; return why that is refused for lost input."""
        with pytest.raises(RunFailedError) as raised:
            self.run(**asked)
        failure = raised.value.failure
        assert (FailureClass.DATA_MISSING, "LostInputError") == (
            failure.failure_class,
            failure.condition,
        )
        return failure.reason

    def beside(self, name: str) -> Job:
        """Return the same job in another job directory, with another output."""
        location = Location(self.location.root / name)
        location.root.mkdir()
        location.input.symlink_to(self.location.input)
        Path(f"{location.input}.id").symlink_to(f"{self.location.input}.id")
        return Job(self.spark, location)

    def ids(self) -> list[int]:
        files = f"{self.location.output}/*.parquet"
        return sorted(id_ for (id_,) in present(duckdb.sql(f"select id from '{files}'")).fetchall())

    def known(self) -> dict[str, dict[str, str]]:
        return kept_identities(JobDirectory(open_storage(str(self.location.job_dir))), "out")


@pytest.fixture
def job(spark, location):
    made = Job(spark, location)
    made.make("old", OLD)
    return made


def test_a_query_does_not_read_on_in_another_source_of_the_same_name(job, caplog):
    """
    It is DATA_MISSING, also from a savepoint of before, restored in place and elsewhere; what begins
    without a position reads all: a job that starts over, and one whose source was reset.
    """
    job.run()
    savepoint = savepoint_of(job.location)
    job.make("new", NEW)

    reason = job.refused()
    assert "source 'numbers' of query 'out': numbers was old, and is new" in reason
    assert "new job directory" in reason
    restore_job(str(job.location.job_dir), savepoint.url, spark=job.spark)
    assert reason == job.refused()
    assert reason == job.beside("fork").refused(from_savepoint=savepoint.url)
    assert [*OLD] == job.ids()
    assert {"numbers": {"numbers": "old"}} == job.known()

    over = job.beside("over")
    over.run()
    assert [*NEW] == over.ids()

    changed = str(job.location.root / "savepoints" / "changed")
    rewrite_savepoint(savepoint.url, changed, Changes(reset=("numbers",)), spark=job.spark)
    reset = job.beside("reset")
    reset.run(from_savepoint=changed)
    assert [*NEW] == reset.ids()
    job.make("newer", NEW)
    assert "numbers was new, and is newer" in reset.refused()


def test_a_query_may_read_on_where_the_options_accept_it(job, caplog):
    """The log says what was replaced, once; then the new one has to stay."""
    job.run()
    job.make("new", NEW)
    job.run(params={"accepts": "yes"})

    assert [*OLD, *NEW[len(OLD) :]] == job.ids()
    assert 1 == caplog.text.count("DATA LOSS: numbers is another one")
    job.make("new", range(100, 130))
    job.run()
    assert [*OLD, *range(100 + len(OLD), 130)] == job.ids()
    assert 1 == caplog.text.count("DATA LOSS: numbers is another one")
    job.make("newest", NEW)
    assert "numbers was new, and is newest" in job.refused()


def test_a_run_that_is_rewound_to_the_beginning_reads_the_new_one(job):
    """Its rows are reverted, and it has no position any more."""
    job.run(run_id="one", replayable_runs=1)
    job.make("new", NEW)
    job.refused(run_id="two")
    rewind_job(str(job.location.job_dir), "one", with_later=True, spark=job.spark)

    job.run(run_id="three")
    assert [*NEW] == job.ids()


def test_a_restart_in_the_driver_is_a_start(job, monkeypatch):
    """What is made again while a query runs is noticed when its driver starts it again."""
    job.run()
    job.make("old", range(15))

    def fail(point: str) -> None:
        if point == "sink.staged":
            job.make("new", NEW)
            raise OSError(point)

    monkeypatch.setattr(failpoints, "hit", fail)
    assert "numbers was old, and is new" in job.refused(restart=FixedDelay(3, delay_s=0))
    assert [*OLD] == job.ids()
