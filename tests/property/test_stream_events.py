"""Events of complete periods: whatever the watermark does and wherever a triggerer dies, each comes once."""

from __future__ import annotations

import itertools
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.runtime.base.clock import millis_to_iso
from airflow_provider.runtime.checkpoint.drain_step import MAX_WATERMARK_MS
from airflow_provider.runtime.observe.completeness import Completeness
from airflow_provider.runtime.observe.events import CompletePeriods, SeenPeriods, State
from airflow_provider.triggers.event_position import Position

HOUR = 3_600_000
WATERMARKS = st.none() | st.integers(1, 60 * HOUR) | st.just(MAX_WATERMARK_MS)
# What a look finds: a watermark for each query, and which run has finished the job, if one has.
LOOKS = st.tuples(
    st.fixed_dictionaries({"a": WATERMARKS, "b": WATERMARKS}),
    st.sampled_from([None, None, "r1"]),
)
# How many of the events that follow from it are registered before the triggerer dies.
LIVES = st.lists(st.tuples(LOOKS, st.integers(0, 80)), min_size=1, max_size=12)
SINCE = st.none() | st.integers(0, 30 * HOUR)


class Watched:
    """A watcher that dies after each look, and what its Airflow has kept of it.

    Args:
        source: what it reports.
    """

    def __init__(self, source: CompletePeriods) -> None:
        self.source = source
        self.ids: list[str] = []
        self.payloads: list[dict[str, Any]] = []
        self._stored: str | None = None

    def live(self, seen: Completeness, registered: int) -> State:
        """Look once, and die; return the state after the last event that is registered."""
        stored = Position.from_dict(json.loads(self._stored)) if self._stored else None
        position = stored or Position(0, self.source.begin(SeenPeriods(seen)))
        self._stored = json.dumps(position.to_dict())
        for step in itertools.islice(
            self.source.steps(position.state, SeenPeriods(seen)), registered
        ):
            position = Position(position.number + 1, step.state)
            self.ids.append(step.id)
            self.payloads.append(json.loads(json.dumps(step.payload)))
            self._stored = json.dumps(position.to_dict())
        return position.state


@given(lives=LIVES, since=SINCE)
def test_each_period_is_reported_once_and_in_order(
    lives: list[tuple[tuple[dict[str, int | None], str | None], int]], since: int | None
) -> None:
    """
    Over any watermarks, any restores to earlier ones, and a death after any event, no id comes
    twice, the periods have no gap, and when all is quiet none is missing.
    """
    watched = Watched(CompletePeriods(HOUR, since_ms=since))
    for (watermarks, finished_by), registered in lives:
        watched.live(Completeness(watermarks, finished_by), registered)
    seen = Completeness(*lives[-1][0])
    state = watched.live(seen, 10_000)
    periods = [payload for payload in watched.payloads if payload["event"] == "complete"]
    boundaries = [payload["boundary"] for payload in periods]

    assert len(watched.ids) == len(set(watched.ids))
    assert sorted(set(boundaries)) == boundaries
    assert all(a["boundary"] == b["start"] for a, b in itertools.pairwise(periods))
    reached = seen.reached_ms
    if reached is not None:
        assert state["boundary_ms"] >= reached // HOUR * HOUR
        assert [] == boundaries or boundaries[-1] == millis_to_iso(state["boundary_ms"])


@given(reached=st.integers(0, 100 * HOUR), every=st.sampled_from([1000, 900_000, HOUR, 86_400_000]))
def test_the_periods_are_aligned_to_the_epoch(reached: int, every: int) -> None:
    """A period that is reported is complete, the next one is not, and each has its length."""
    source = CompletePeriods(every, since_ms=0)
    seen = SeenPeriods(Completeness({"q": reached or None}, None))

    steps = itertools.islice(source.steps(source.begin(seen), seen), 200)
    boundaries = [step.state["boundary_ms"] for step in steps]

    assert boundaries == [every * (n + 1) for n in range(min(reached // every, 200))]
