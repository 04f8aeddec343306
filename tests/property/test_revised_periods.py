"""Revised periods over any corrections, watermarks and deaths of triggerers."""

from __future__ import annotations

import itertools
import json
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.runtime.jobdir.event_times import EventTimes
from airflow_provider.runtime.jobdir.revised_runs import RevisedQuery, RevisedRun
from airflow_provider.runtime.observe.completeness import Completeness
from airflow_provider.runtime.observe.corrections import (
    REPLAY,
    Correction,
    CorrectionPosition,
    SeenCorrections,
)
from airflow_provider.runtime.observe.revised_periods import RevisedPeriods, no_revisions

HOUR = 3_600_000
HOURS = 12


class Made(NamedTuple):
    """A replay of the hours from one to another.

    Attributes:
        begins: the look at which its rows are removed.
        lasts: how many looks later it has committed.
    """

    first: int
    length: int
    begins: int
    lasts: int

    @property
    def hours(self) -> set[int]:
        return {*range(self.first, min(self.first + self.length, HOURS))}

    def seen_at(self, look: int, number: int) -> Correction:
        times = EventTimes(self.first * HOUR, (self.first + self.length) * HOUR - 1)
        is_done = look >= self.begins + self.lasts
        return Correction(
            id=str(number),
            number=number,
            reason=REPLAY,
            runs=[RevisedRun("r", None, {"q": RevisedQuery(1, 1, times)})],
            replay="r.r2",
            is_replaying=not is_done,
            after={"q": RevisedQuery(1, 1, times)} if is_done else None,
        )


MADE = st.builds(
    Made, st.integers(0, HOURS - 1), st.integers(1, 5), st.integers(0, 6), st.integers(0, 4)
)
# How many of the events that follow from a look are registered before the triggerer dies.
LIVES = st.lists(st.integers(0, 6), min_size=12, max_size=12)


@given(made=st.lists(MADE, max_size=4), lives=LIVES, complete=st.integers(0, HOURS))
def test_each_revised_period_is_reported_when_its_last_correction_is_settled(
    made: list[Made], lives: list[int], complete: int
) -> None:
    """
    Each hour of a correction that was reported before is covered by an event after its replay has
    committed, once; no event is of another hour, and none of a replay that is at work.
    """
    periods = RevisedPeriods(HOUR)
    state: dict[str, Any] = no_revisions(CorrectionPosition("/job"))
    made = sorted(made, key=lambda each: each.begins)
    found: list[tuple[int, str]] = []
    for look, registered in enumerate([*lives, 1000]):
        items = [m.seen_at(look, n) for n, m in enumerate(made, start=1) if m.begins <= look]
        new = [each for each in items if each.number > state["operation"]]
        again = [each for each in items if each.id in state["open"]]
        seen = SeenCorrections(
            sorted({each.id: each for each in [*new, *again]}.values(), key=lambda c: c.number),
            CorrectionPosition("/job", max([state["operation"], *(c.number for c in new)])),
        )
        reached = Completeness({"q": HOURS * HOUR}, None)
        entered = periods.entered(state, seen, complete * HOUR)
        for due in itertools.islice(periods.due(entered, seen, reached), registered):
            state = json.loads(json.dumps(due.revisions))
            assert due.end_ms is not None
            assert not any(each.is_replaying for each in due.corrections)
            found += [(due.end_ms // HOUR - 1, each.id) for each in due.corrections]

    expected = [
        (hour, str(n)) for n, m in enumerate(made, start=1) for hour in m.hours if hour < complete
    ]
    assert sorted(expected) == sorted(found)
