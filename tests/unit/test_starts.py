"""``starts=`` of ``ctx.read``: what each source makes of it, and who refuses it."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from airflow_provider.extensions.delta import delta_table
from airflow_provider.extensions.iceberg import iceberg_table
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.sources.shorthand import source_of_format
from airflow_provider.runtime.sources.starts import started

MOMENT = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)


def kafka(**options: str):
    return source_of_format("kafka", options={"subscribe": "t", **options})


@pytest.mark.parametrize(
    ("starts", "options"),
    [
        (None, {}),
        ("beginning", {"startingOffsets": "earliest"}),
        ("now", {"startingOffsets": "latest"}),
        (
            MOMENT,
            {
                "startingTimestamp": "1767225600000",
                "startingOffsetsByTimestampStrategy": "latest",
            },
        ),
    ],
)
def test_topics_begin_by_their_options(starts, options):
    """A time without a message in a partition is the end of that partition, and no error."""
    found: Any = started("s", kafka(), starts, streaming=True)

    assert {"subscribe": "t", **options} == found.options
    assert kafka() == started("s", kafka(), starts, streaming=False)


def test_tables_begin_as_they_are_or_with_later_versions():
    """The words of ``ctx.read`` are those of the tables, but for the beginning."""
    for table in (delta_table("/t"), iceberg_table("a.b", catalog="c")):
        found: dict[Any, Any] = {}
        for starts in ("beginning", "now", MOMENT):
            begun: Any = started("s", table, starts, streaming=True)
            found[starts] = begun.options.starts
        assert {"beginning": "snapshot", "now": "now", MOMENT: MOMENT} == found


@pytest.mark.parametrize(
    ("source", "starts", "said"),
    [
        (kafka(startingOffsets="latest"), "now", "option startingOffsets says where it begins"),
        (delta_table("/t", starts=3), "now", r"delta_table\(starts=…\) says where it begins"),
        (iceberg_table("a.b", catalog="c", starts="now"), "now", r"iceberg_table\(starts=…\) says"),
        (source_of_format("csv", "/in"), "now", "Spark's file source begins with all files"),
        (source_of_format("csv", "/in"), MOMENT, "refuses modifiedAfter"),
        (source_of_format("rate"), "now", "it cannot be told where to begin"),
        (kafka(), "latest", "is not a start"),
        (kafka(), dt.datetime(2026, 1, 1), "needs a time zone"),  # noqa: DTZ001 - the mistake
    ],
)
def test_a_start_that_is_not_possible_is_refused_by_name(source, starts, said):
    """Also in BATCH, where a start is no other one."""
    for streaming in (True, False):
        with pytest.raises(ConfigError, match=f"source 'clicks' .*: starts=.*{said}"):
            started("clicks", source, starts, streaming=streaming)


def test_files_begin_at_their_beginning():
    """Which is no other source."""
    files = source_of_format("csv", "/in")

    assert files == started("s", files, "beginning", streaming=True)
