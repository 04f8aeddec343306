"""Rules that take no row out are counted in the rows as they come, and name some that break them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from streams import Place, read_with_pandas, write_events

from airflow_provider.runtime.errors import RunFailedError

pytestmark = pytest.mark.spark

JOBS = Path(__file__).with_name("counting_jobs.py")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Give two files with the values 0 to 9; the keys of 0 and 5 are missing."""
    place = Place(tmp_path)
    rows = [(value, "" if value % 5 == 0 else "k", value) for value in range(10)]
    write_events(place.input, rows[:6], rows[6:])
    return place


def broken(place: Place) -> dict[str, int]:
    """Return the counts of the last epoch with rules."""
    records = place.job_dir.glob("queries/out/**/committables/*/*.json")
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
    spark: Any, place: Place, mode: str, job: str, expected: dict[str, int]
) -> None:
    """Rules of Spark and of Python, constant ones, and one with an error, in both modes."""
    place.run(spark, job, entry=f"{JOBS}:{job}", mode=mode, run_id="r")

    assert expected == broken(place)
    assert list(range(10)) == sorted(row[0] for row in read_with_pandas(place.output))


@pytest.mark.parametrize("mode", ["streaming", "batch"])
def test_a_limit_that_is_crossed_shows_rows(spark: Any, place: Place, mode: str) -> None:
    """The rows are found again in the batch, with the columns that Spark has carried so far."""
    with pytest.raises(RunFailedError) as error:
        place.run(spark, "limited", entry=f"{JOBS}:limited", mode=mode, run_id="r")

    assert "rule 'small' is broken by 5 of the run's 10 rows" in str(error.value)
    assert '"k":null,"v":5}; {' in str(error.value)
    assert not list(place.output.glob("**/*.parquet"))
