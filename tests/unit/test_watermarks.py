"""Event times of sources, and how idle ones are moved along."""

from __future__ import annotations

import pytest

from airflow_provider.runtime.jobdir.end_of_input import is_marker, marker_name
from airflow_provider.runtime.queries.watermarks import SourceTime, move_along

NOW = 100.0


def at(latest, *, heard=NOW, idle_timeout=None, delay=0):
    return SourceTime(heard, idle_timeout, delay, latest)


@pytest.mark.parametrize(
    ("times", "moves"),
    [
        pytest.param({}, {}, id="no source"),
        pytest.param({"a": at(50), "b": at(10)}, {}, id="none can be idle"),
        pytest.param(
            {"a": at(50), "b": at(10, heard=90.0, idle_timeout=20)}, {}, id="not silent for long"
        ),
        pytest.param(
            {"a": at(50), "b": at(10, heard=80.0, idle_timeout=20)}, {"b": 50}, id="just idle"
        ),
        pytest.param(
            {"a": at(50, delay=5), "b": at(10, heard=0.0, idle_timeout=20, delay=7)},
            {"b": 52},
            id="watermarks meet, whatever the delays",
        ),
        pytest.param(
            {"a": at(50), "b": at(None, heard=0.0, idle_timeout=20)}, {"b": 50}, id="never heard"
        ),
        pytest.param(
            {"a": at(50), "b": at(70, heard=0.0, idle_timeout=20)}, {}, id="idle, but ahead"
        ),
        pytest.param(
            {"a": at(50), "c": at(30), "b": at(10, heard=0.0, idle_timeout=20)},
            {"b": 30},
            id="no further than the slowest",
        ),
        pytest.param(
            {"a": at(None), "c": at(30), "b": at(10, heard=0.0, idle_timeout=20)},
            {},
            id="one that is waited for has had no row",
        ),
        pytest.param(
            {name: at(t, heard=0.0, idle_timeout=20) for name, t in (("a", 50), ("b", 10))},
            {},
            id="all are idle",
        ),
        pytest.param(
            {
                "a": at(50),
                "b": at(10, heard=0.0, idle_timeout=20),
                "c": at(20, heard=0.0, idle_timeout=30),
            },
            {"b": 50, "c": 50},
            id="several are idle",
        ),
    ],
)
def test_idle_sources_are_moved_to_the_slowest_of_the_others(times, moves):
    """A silent source neither holds the others back nor overtakes them, and is moved once."""
    assert moves == move_along(times, NOW)


def test_a_marker_has_a_name_that_no_source_can_have():
    """Streams of markers are told from sources by name, in plans and in records."""
    assert is_marker(marker_name("events"))
    assert not any(is_marker(name) for name in ("events", "marker", "events.marker", None))
