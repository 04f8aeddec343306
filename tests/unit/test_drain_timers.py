"""Timers after a drain batch: those that wait, and renewals, which the drain ignores."""

from __future__ import annotations

import pytest

from airflow_provider.runtime.checkpoint.operator_kinds import AGGREGATION, kind_named
from airflow_provider.runtime.queries.flush import Unflushed, _by_origin
from airflow_provider.runtime.queries.spark_state import TimersAfter

TIMERS = "transformWithStateInPySparkExec"


def _left(timers, fed=()):
    """Return, by operator, the timers that wait and those that are ignored."""
    found = [Unflushed(each, TIMERS, timers[each].older, "timers") for each in timers]
    left = _by_origin(found, timers, fed=frozenset(fed))
    return {each.id: (each.rows, each.ignored) for each in left}


@pytest.mark.parametrize(
    ("timers", "fed", "left"),
    [
        ({0: TimersAfter(0, 0, 0)}, [], {}),
        ({0: TimersAfter(2, 0, 0)}, [], {0: (2, 0)}),
        ({0: TimersAfter(0, 0, 3)}, [], {0: (0, 3)}),
        ({0: TimersAfter(0, 3, 0)}, [], {0: (0, 3)}),
        ({0: TimersAfter(1, 2, 4)}, [], {0: (1, 6)}),
        ({1: TimersAfter(0, 3, 0)}, [1], {1: (3, 0)}),
        ({0: TimersAfter(0, 0, 1), 1: TimersAfter(0, 3, 0)}, [1], {0: (0, 1), 1: (0, 3)}),
        ({0: TimersAfter(0, 1, 0), 1: TimersAfter(0, 3, 0)}, [1], {0: (0, 1), 1: (0, 3)}),
        ({0: TimersAfter(1, 0, 0), 1: TimersAfter(0, 3, 0)}, [1], {0: (1, 0), 1: (3, 0)}),
        ({1: TimersAfter(0, 3, 1)}, [1], {1: (0, 4)}),
    ],
)
def test_a_timer_waits_if_it_was_there_or_a_row_set_it(timers, fed, left):
    """
    A timer of before the batch always waits, one of a row only where nothing has renewed itself.
    """
    assert left == _left(timers, fed)


def test_what_cannot_be_counted_stays_as_it_is():
    """Rows without timers, and timers that this Spark cannot read, wait for a later watermark."""
    found = [Unflushed(0, AGGREGATION, 5, "groups"), Unflushed(1, TIMERS, None, "timers")]

    assert found == _by_origin(found, {}, fed=frozenset())


def test_each_kind_with_callbacks_says_when_they_are_called():
    """
    Every state of which an event time sets off the user's callback names the column of that time.
    """
    parts = [
        part
        for name, setting in ((TIMERS, "EventTime"), ("applyInPandasWithState", "EventTimeTimeout"))
        for part in kind_named(name).waiting[setting]
    ]

    assert ["expiration_timestamp_ms", "value.timeoutTimestamp"] == [p.fires_at for p in parts]
