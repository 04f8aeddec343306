"""Rules that take no row out are counted in the rows as they come, and name some that break them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from streams import Location, read_with_pandas, write_events

from airflow_provider.runtime.errors import RunFailedError

pytestmark = pytest.mark.spark

JOBS = Path(__file__).with_name("counting_jobs.py")


@pytest.fixture
def location(tmp_path: Path) -> Location:
    """Give two files with the values 0 to 9; the keys of 0 and 5 are missing."""
    location = Location(tmp_path)
    rows = [(value, "" if value % 5 == 0 else "k", value) for value in range(10)]
    write_events(location.input, rows[:6], rows[6:])
    return location


def broken(location: Location) -> dict[str, int]:
    """Return the counts of the last epoch with rules."""
    records = location.job_dir.glob("queries/out/**/committables/*/*.json")
    taps = [
        tap for file in records for tap in json.loads(file.read_text()).get("taps", {}).values()
    ]
    return dict(max(taps, key=lambda tap: tap["rows"])["broken"])


@pytest.mark.parametrize("mode", ["streaming", "batch"])
@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ("counted", {"small": 5, "given": 2, "never": 10, "always": 0, "no error": 1}),
        ("in_python", {"small": 5, "given": 2}),
    ],
)
def test_each_rule_counts_and_every_row_continues(
    spark: Any, location: Location, mode: str, job: str, expected: dict[str, int]
) -> None:
    """Rules of Spark and of Python, constant ones, and one with an error, in both modes."""
    location.run(spark, job, entry=f"{JOBS}:{job}", mode=mode, run_id="r")

    assert expected == broken(location)
    assert list(range(10)) == sorted(row[0] for row in read_with_pandas(location.output))


@pytest.mark.parametrize("mode", ["streaming", "batch"])
def test_a_limit_that_is_crossed_shows_rows(spark: Any, location: Location, mode: str) -> None:
    """The rows are found again in the batch, with the columns that Spark has carried so far."""
    with pytest.raises(RunFailedError) as error:
        location.run(spark, "limited", entry=f"{JOBS}:limited", mode=mode, run_id="r")

    assert "rule 'small' is broken by 5 of the run's 10 rows" in str(error.value)
    assert '"k":null,"v":5}; {' in str(error.value)
    assert not list(location.output.glob("**/*.parquet"))
