"""A folder of corrected records beside a source: what it is read as, and what is refused."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any

import pytest

from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.queries.query import QueryDefinition, check_sources
from airflow_provider.runtime.queries.read_options import with_also
from tests.declaring import declared

OF_EVENTS: dict[str, Any] = {
    "format": "json",
    "path": "/data/in/*.json",
    "schema": "n int",
    "options": {"maxFilesPerTrigger": "1"},
    "watermark": ("at", "1 hour"),
    "ends": dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc),
}
EVENTS = declared("events", **OF_EVENTS)


def test_corrected_records_are_a_source_of_their_own():
    """It is read as the source is, except for what decides about both, and for the end."""
    also = with_also(EVENTS, "/data/corrected", ()).also

    assert also is not None
    assert also.files is not None
    assert ("events.also", "/data/corrected") == (also.name, also.path)
    assert also.files.may_be_missing
    assert (None, None) == (also.watermark, also.ends)
    assert (EVENTS.options, "n int", EVENTS.bounded) == (
        also.options,
        also.files.schema,
        also.bounded,
    )


def test_what_chooses_files_of_the_source_chooses_none_of_the_folder():
    """A file of corrected records has a name and a time of its own, and is read all the same."""
    of_both = {"header": "true", "recursiveFileLookup": "true"}
    of_the_source = {"pathGlobFilter": "*.csv", "modifiedbefore": "2026-01-01", "basePath": "/data"}
    events = declared("events", **{**OF_EVENTS, "options": {**of_both, **of_the_source}})

    also = with_also(events, "/data/corrected", ()).also

    assert also is not None
    assert of_both == also.options


@pytest.mark.parametrize(
    ("how", "also", "why"),
    [
        ({"format": "kafka", "path": None}, "/data/c", "only files are read from two locations"),
        ({"schema": None}, "/data/c", "both locations need one schema"),
        ({}, "/data/c/*.json", "it is to be a folder, and no pattern"),
        ({}, "/data/out", "a query of the job writes there"),
        ({"path": "/data"}, "/data/corrected", "its files are read in /data as well"),
        ({"path": "/data/corrected/in"}, "/data/corrected", "its files are read in"),
        ({"path": "/data/corrected"}, "/data/corrected/", "its files are read in"),
    ],
)
def test_a_folder_that_cannot_be_read_beside_the_source_is_refused(how, also, why):
    """The message names the source, the folder and the fix."""
    events = declared("events", **{**OF_EVENTS, **how})

    with pytest.raises(ConfigError, match=r"^source 'events': also=") as error:
        with_also(events, also, {"/data/out"})

    assert why in str(error.value)


def test_a_source_that_ends_beside_others_has_no_corrected_records():
    """It is not read again after its end, so corrected records would wait for ever."""
    both = with_also(EVENTS, "/data/corrected", ())
    endless = dataclasses.replace(EVENTS, name="clicks", bounded=False)
    query = QueryDefinition("out", None, (), "append", operators=(), sources=(both, endless))  # type: ignore[arg-type]

    with pytest.raises(ConfigError, match=r"source 'events' ends while others continue"):
        check_sources(query)
