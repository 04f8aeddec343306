"""Numbers in names: one name for each, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider.runtime.base.names import number_in, numbers_in
from airflow_provider.runtime.checkpoint.logs import describe_checkpoint
from airflow_provider.runtime.jobdir.epochs import EpochRecords
from airflow_provider.runtime.jobdir.query_records import kept_topology
from airflow_provider.runtime.testing.job_directories import (
    QUERY_ID,
    JobDirectoryBuilder,
    an_attempt,
)

STRANGE = ["²", "007", "+7", "-7", "७", "7 ", " 7", "7_0", "1e3", "", ".DS_Store", "9" * 20]


@pytest.mark.parametrize(
    ("name", "number"), [("0", 0), ("7", 7), ("10", 10), ("9" * 19, 10**19 - 1)]
)
def test_a_number_is_written_in_one_way(name, number):
    """Digits without a zero before them are a number, also before a suffix."""
    assert number == number_in(name) == number_in(f"{name}.json", ".json")
    assert number_in(f"{name}.json") is None


@pytest.mark.parametrize("name", STRANGE)
def test_other_names_are_no_numbers(name):
    """What Python would take for a number, and would not be found by its name, is none."""
    assert number_in(name) is None
    assert [3, 12] == numbers_in(["12.json", f"{name}.json", "3.json", "3"], ".json")


def test_strange_files_beside_what_drivers_write_mean_nothing(tmp_path):
    """
    What an editor, a file manager or a person leaves in a checkpoint, among the records of epochs and
    among attempts is passed over by whoever reads there.
    """
    job = JobDirectoryBuilder(tmp_path / "job").begin().request_run("r1").ran(1)
    job.spark.keep_state()
    run = job.directory.run("r1")
    run.put_attempt(an_attempt(1))
    before = what_is_there(job)
    for name in STRANGE[:-3]:
        for folder in ("offsets", "commits", "state", "state/0"):
            job.spark.storage.put(f"{folder}/{name}", b"strange")
        run.storage.put(f"attempts/{name}.json", b"strange")
        committables = job.directory.committables("q").at(QUERY_ID)
        committables.put(f"{name}.json", b"strange")
        committables.put(f"{name}.1.json", b"strange")

    assert before == what_is_there(job)


def what_is_there(job: JobDirectoryBuilder) -> tuple[Any, ...]:
    records = EpochRecords(job.directory.committables("q"), QUERY_ID)
    run = job.directory.run("r1")
    return (
        job.spark.logs.position(),
        job.spark.logs.is_stateful(),
        describe_checkpoint(job.spark.storage),
        kept_topology(job.directory, "q"),
        records.find(),
        run.attempts(),
        run.attempt_count(),
    )
