"""Slices of partitions: Airflow's timetables say when the next one begins."""

from __future__ import annotations

from typing import Any

import airflow.sdk
import pendulum
import pytest
from airflow.sdk import DAG, Asset

from airflow_provider.slices import Slice, find_slice

if not hasattr(airflow.sdk, "CronPartitionTimetable"):
    pytest.skip("this version of Airflow has no partitions", allow_module_level=True)

from airflow.sdk import (
    CronDataIntervalTimetable,
    CronPartitionTimetable,
    PartitionedAssetTimetable,
)
from airflow.timetables.trigger import CronPartitionTimetable as CoreTimetable

LISTS_PARTITIONS = hasattr(CoreTimetable, "iter_partition_dagrun_infos")


def partition(timetable: Any, date: str, key: str = "k") -> Slice | None:
    """Return the slice of a run of this partition."""
    return find_slice(
        {
            "dag": DAG("flights", schedule=timetable),
            "partition_key": key,
            "partition_date": pendulum.parse(date),
        }
    )


def moment(text: str) -> pendulum.DateTime:
    found = pendulum.parse(text)
    assert isinstance(found, pendulum.DateTime)
    return found


@pytest.mark.parametrize(
    ("cron", "zone", "date", "end"),
    [
        ("0 0 * * *", "UTC", "2026-05-01T00:00Z", "2026-05-02T00:00Z"),
        ("0 0 1 * *", "UTC", "2026-02-01T00:00Z", "2026-03-01T00:00Z"),
        ("0 0 * * *", "America/New_York", "2026-03-08T05:00Z", "2026-03-09T04:00Z"),
        ("0 0 * * *", "Asia/Tokyo", "2026-04-30T15:00Z", "2026-05-01T15:00Z"),
        ("0 * * * *", "Europe/Berlin", "2026-10-25T00:00Z", "2026-10-25T01:00Z"),
        ("0 * * * *", "Europe/Berlin", "2026-10-25T01:00Z", "2026-10-25T02:00Z"),
    ],
)
def test_a_partition_is_until_the_next_one(cron: str, zone: str, date: str, end: str) -> None:
    """
    In the timetable's own zone, also over a change of the clocks. A version that does not list
    partitions tells the key alone.
    """
    found = partition(CronPartitionTimetable(cron, timezone=zone), date)

    interval = (moment(date), moment(end)) if LISTS_PARTITIONS else None
    assert Slice("k", interval) == found


@pytest.mark.parametrize(
    "timetable",
    [
        PartitionedAssetTimetable(assets=Asset("flights")),
        CronDataIntervalTimetable("0 0 * * *", timezone="UTC"),
        None,
    ],
)
def test_a_partition_whose_end_nobody_knows(timetable: Any) -> None:
    """Its key is the slice: partitions of assets, a key that a person gave."""
    assert Slice("eu") == partition(timetable, "2026-05-01T00:00Z", key="eu")
