"""Event times of published output, as Spark observes them while a batch runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from streams import SUSPEND, Location

from airflow_provider.runtime.driver.rewind_job import rewind_job
from airflow_provider.runtime.jobdir.epochs import EpochRecords, query_ids
from airflow_provider.runtime.jobdir.event_times import EventTimes, joined
from airflow_provider.runtime.jobdir.layout import directory_at
from airflow_provider.runtime.observe.events import Corrections

if TYPE_CHECKING:
    from airflow_provider.runtime.jobdir.epoch_documents import EpochRecord

pytestmark = pytest.mark.spark

JOBS = Path(__file__).with_name("event_time_jobs.py")
MINUTE = 60_000
START = 1_767_225_600_000  # 2026-01-01T00:00:00Z


def write(file: Path, *events: tuple[int, str]) -> None:
    """Write a file with events, each at so many minutes after the start of the day."""
    file.parent.mkdir(exist_ok=True)
    lines = (f"2026-01-01 {m // 60:02}:{m % 60:02}:00,{k}\n" for m, k in events)
    file.write_text("".join(lines))


def records(location: Location, query: str) -> list[EpochRecord]:
    storage = directory_at(str(location.job_dir)).committables(query)
    return [
        each for query_id in query_ids(storage) for each in EpochRecords(storage, query_id).all()
    ]


def times_of(location: Location, query: str) -> EventTimes | None:
    """Return the least and the greatest event time of all epochs of a query."""
    return joined(each.event_times for each in records(location, query))


def between(first: int, last: int, *, less_ms: int = 0) -> EventTimes:
    """Return the times from one minute of the day to another, or some milliseconds before it."""
    return EventTimes(START + first * MINUTE, START + last * MINUTE - less_ms)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["streaming", "batch"])
def test_each_form_of_event_time_is_observed(spark: Any, location: Location, mode: str) -> None:
    """
    A column with a watermark, also renamed and behind a filter; a window, its start or its end,
    which belongs to the period before. Rows that a stream passes on have theirs without a column.
    """
    write(location.input / "1.csv", (70, "a"), (80, "b"), (200, "b"))
    location.run(spark, "forms", entry=f"{JOBS}:forms", run_id="r1", mode=mode)
    expected: dict[str, EventTimes | None] = {
        "rows": between(70, 200),
        "renamed": between(80, 200),
        "windows": between(60, 240, less_ms=1),
        "starts": between(60, 180),
        "ends": EventTimes(START + 120 * MINUTE - 1, START + 240 * MINUTE - 1),
        "without": between(70, 200),
    }
    if mode == "batch":  # Spark leaves watermarks out of static plans
        expected = dict.fromkeys(expected)
    assert expected == {name: times_of(location, name) for name in expected}


@pytest.mark.long
def test_corrected_records_are_a_correction_of_the_hours_that_were_complete(
    spark: Any, location: Location
) -> None:
    """
    A batch reads new rows and corrected ones of an hour that was complete: the correction has the
    range of the corrected ones alone. When their run is rewound that is another one.
    """
    directory = directory_at(str(location.job_dir))
    folder = location.root / "corrected"
    params = {"corrected": str(folder)}
    entry = f"{JOBS}:corrected"
    write(location.input / "1.csv", (10, "a"), (300, "a"))
    location.run(
        spark, "corrected", entry=entry, run_id="r1", params=params, replayable_runs=1, **SUSPEND
    )
    source = Corrections()
    state = source.begin(source.read(directory, None))
    write(location.input / "2.csv", (400, "a"))
    write(folder / "1.csv", (65, "b"), (70, "b"))
    location.run(
        spark, "corrected", entry=entry, run_id="r2", params=params, replayable_runs=1, **SUSPEND
    )
    (step,) = source.steps(state, source.read(directory, state))
    rewind_job(str(location.job_dir), "r2", spark=spark)
    (other,) = source.steps(step.state, source.read(directory, step.state))

    assert ("also", "r2", "2026-01-01T01:05:00.000Z", "2026-01-01T01:10:00.000Z") == tuple(
        step.payload[name] for name in ("reason", "run_id", "least", "greatest")
    )
    assert ("rewind", "r2", 3, 0, "2026-01-01T01:05:00.000Z", "2026-01-01T06:40:00.000Z") == tuple(
        other.payload[name]
        for name in ("reason", "run_id", "rows_before", "rows_after", "least", "greatest")
    )
