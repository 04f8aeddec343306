"""Slices of task runs: decided from what the DAG run says, and in which order."""

from __future__ import annotations

import datetime as dt
import re
from types import SimpleNamespace

import pytest

from airflow_provider.runtime.base.names import check_name
from airflow_provider.slices import (
    NoSliceError,
    RunFacts,
    Slice,
    SliceInTemplates,
    choose_slice,
    find_slice,
    slice_of,
)

UTC = dt.timezone.utc
MAY = (dt.datetime(2026, 5, 1, tzinfo=UTC), dt.datetime(2026, 6, 1, tzinfo=UTC))
JUNE = (MAY[1], dt.datetime(2026, 7, 1, tzinfo=UTC))
NOON = (MAY[0], MAY[0])
CONF_OF_JUNE = {"interval_start": "2026-06-01T00:00:00Z", "interval_end": "2026-07-01"}


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (RunFacts(), None),
        (RunFacts(data_interval=NOON), None),
        (RunFacts(conf={"other": 1}), None),
        (RunFacts(conf=CONF_OF_JUNE), Slice(interval=JUNE)),
        (RunFacts(conf={"partition_key": "eu"}), Slice("eu")),
        (RunFacts(conf={"partition_key": "eu", **CONF_OF_JUNE}), Slice("eu", JUNE)),
        (RunFacts(data_interval=MAY, conf=CONF_OF_JUNE), Slice(interval=MAY)),
        (RunFacts(data_interval=NOON, conf=CONF_OF_JUNE), Slice(interval=JUNE)),
        (RunFacts(partition_key="eu", data_interval=MAY, conf=CONF_OF_JUNE), Slice("eu")),
        (RunFacts(partition_key="may", partition=MAY, data_interval=JUNE), Slice("may", MAY)),
    ],
)
def test_partition_key_then_data_interval_then_configuration(facts, expected):
    """The first one that tells decides alone; an empty data interval tells nothing."""
    assert expected == choose_slice(facts)


@pytest.mark.parametrize(
    "conf",
    [
        {"interval_start": "2026-06-01"},
        {"interval_end": "2026-06-01"},
        {"interval_start": "2026-06-01", "interval_end": "June"},
        {"interval_start": 1, "interval_end": 2},
        {"interval_start": "2026-06-01", "interval_end": "2026-06-01"},
        {"interval_start": "2026-06-01", "interval_end": "2026-05-01"},
        {"partition_key": 7},
        {"partition_key": ""},
    ],
)
def test_a_configuration_that_makes_no_slice_is_refused(conf):
    """It names the run and what was given; it is never taken for no configuration."""
    with pytest.raises(NoSliceError, match="run 'r1': ") as raised:
        choose_slice(RunFacts(run="r1", conf=conf))

    said = str(raised.value)
    assert said.endswith("empty") or all(repr(value) in said for value in conf.values())


def test_a_slice_is_named_by_its_time_in_utc_else_by_its_key():
    """Names are folders everywhere, and differ for different slices."""
    tokyo = dt.timezone(dt.timedelta(hours=9))
    there = (MAY[0].astimezone(tokyo), MAY[1].astimezone(tokyo))
    slices = [
        Slice(interval=MAY),
        Slice(interval=JUNE),
        Slice(interval=(MAY[0], JUNE[1])),
        Slice(interval=(MAY[0], MAY[1] + dt.timedelta(microseconds=5))),
        Slice("a/b"),
        Slice("a:b"),
        Slice("a_b"),
    ]

    assert "20260501T000000Z-20260601T000000Z" == slices[0].name == Slice("m", there).name
    assert len(slices) == len({check_name(each.name, what="slice") for each in slices})
    assert "a_b" == str(slices[-1])


def test_a_slice_without_an_interval_says_so():
    """A key that is no time has neither start nor end."""
    assert MAY == (Slice(interval=MAY).start, Slice(interval=MAY).end)
    for name in ("start", "end"):
        with pytest.raises(NoSliceError, match="partition key 'eu' is no time"):
            getattr(Slice("eu"), name)


def test_the_slice_of_a_context():
    """
    Of a scheduled run, of a manual one with configuration; keys that depend on a logical date may
    be missing.
    """
    scheduled = {"data_interval_start": MAY[0], "data_interval_end": MAY[1]}
    configured = {"dag_run": SimpleNamespace(conf=CONF_OF_JUNE, run_id="r1")}

    assert Slice(interval=MAY) == slice_of(scheduled)
    assert Slice(interval=JUNE) == slice_of(configured)
    assert Slice("eu") == slice_of({"partition_key": "eu", "dag": SimpleNamespace()})
    assert None is find_slice({"dag_run": SimpleNamespace(conf=None)})


@pytest.mark.parametrize(
    ("context", "seen"),
    [
        ({"run_id": "r1"}, "no data interval"),
        (
            {"run_id": "r1", "data_interval_start": NOON[0], "data_interval_end": NOON[1]},
            "an empty data interval at 2026-05-01 00:00:00+00:00",
        ),
    ],
)
def test_one_error_says_all_that_would_tell(context, seen):
    """What was looked for, what was found, and each fix."""
    with pytest.raises(NoSliceError) as raised:
        slice_of(context)

    said = str(raised.value)
    assert said.startswith("run 'r1': its slice is not known")
    assert seen in said
    for fix in ("CronDataIntervalTimetable", "CronPartitionTimetable", "logical date"):
        assert fix in said
    assert re.search(r'"interval_start": ….*"partition_key": …', said)


def test_templates_look_for_the_slice_only_when_they_use_it():
    """Those that do not use it need none."""
    unused = SliceInTemplates(lambda: slice_of({}))
    used = SliceInTemplates(lambda: Slice(interval=MAY))

    assert (MAY[0], f"{used}") == (used.start, Slice(interval=MAY).name)
    with pytest.raises(NoSliceError):
        str(unused)
