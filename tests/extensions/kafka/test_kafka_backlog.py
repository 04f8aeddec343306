"""Backlog of Kafka, from the offsets that Spark reports of a source in Python."""

from __future__ import annotations

import pytest

from airflow_provider.runtime.queries.batch_reports import backlog_of

READ = {"a": {"0": 5, "1": 7}}
LATEST = {"a": {"0": 15, "1": 7, "2": 3}}


@pytest.mark.parametrize(
    ("source", "backlog"),
    [
        (
            {"endOffset": READ, "latestOffset": LATEST},
            {"minOffsetsBehindLatest": 0, "maxOffsetsBehindLatest": 10},
        ),
        (
            {"endOffset": {}, "latestOffset": READ},
            {"minOffsetsBehindLatest": 5, "maxOffsetsBehindLatest": 7},
        ),
        ({"endOffset": READ, "latestOffset": None}, None),
        ({"endOffset": {"n": 5}, "latestOffset": {"n": 9}}, None),  # of another source in Python
        ({"endOffset": "5", "latestOffset": "9"}, None),
        (
            {"endOffset": READ, "latestOffset": LATEST, "metrics": {"maxOffsetsBehindLatest": "4"}},
            {"maxOffsetsBehindLatest": 4},  # Spark's connector says so itself
        ),
    ],
)
def test_what_is_unread_is_known_from_two_offsets(source, backlog):
    """By the measures of Spark's connector; of what has other offsets nothing is said."""
    assert backlog == backlog_of([source], None)
