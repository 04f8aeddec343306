"""Batches of any fixed time, any time per row and any first size converge to the target time."""

from __future__ import annotations

import dataclasses
import random

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.runtime.queries.batch_sizing import (
    BatchSizeController,
    BatchSizingDecision,
    Limit,
    Load,
    next_pace,
)

NOISE = 0.1
NEAR = 0.25 + 1.5 * NOISE  # of the target: the threshold, and what noise hides
MOST = 0.8  # of the batches: noise makes the controller try another size now and then


@dataclasses.dataclass
class SimulatedQuery:
    """Reads as many rows as it may; a batch takes a fixed time, and a time for each row."""

    target_s: float
    fixed_s: float
    row_s: float
    limit: Limit
    dice: random.Random
    warm_up_s: float = 0.0

    def __post_init__(self) -> None:
        self.controller = BatchSizeController(self.target_s)
        self.sizes: list[int] = []
        self.true_s: list[float] = []
        self.decisions: list[BatchSizingDecision] = []

    @property
    def aim_s(self) -> float:
        return max(self.target_s, self.fixed_s + self.target_s / 2)

    def run(self, batches: int) -> None:
        for _ in range(batches):
            rows = self.limit.amount
            true_s = self.fixed_s + self.row_s * rows
            seconds = true_s * (1 + self.dice.uniform(-NOISE, NOISE)) + self.warm_up_s
            self.warm_up_s = 0.0
            pace = next_pace(self.controller, {"s": self.limit}, {"s": Load(rows)}, seconds)
            self.sizes.append(rows)
            self.true_s.append(true_s)
            self.decisions.append(pace.decision)
            self.limit = pace.limits["s"]

    def near_share(self, since: int) -> float:
        """Return which share of the batches since that one was near the target."""
        late = self.true_s[since:]
        near = [s for s in late if abs(s - self.aim_s) <= NEAR * self.aim_s]
        return len(near) / len(late)


@st.composite
def queries(
    draw: st.DrawFn, *, fixed: float = 0.4, away: float = 1000.0, least: int = 20
) -> SimulatedQuery:
    """Make a query whose best batch has at least 20 rows, and a first one far from it."""
    target_s = draw(st.floats(0.5, 100))
    fixed_s = target_s * draw(st.floats(0, fixed))
    row_s = (target_s - fixed_s) / draw(st.floats(least, 1e7))
    best = (target_s - fixed_s) / row_s
    first = max(round(best * away ** draw(st.floats(-1, 1))), 1)
    dice = random.Random(draw(st.integers(0, 2**32)))
    warm_up_s = target_s * draw(st.floats(0, 1))
    return SimulatedQuery(target_s, fixed_s, row_s, Limit(first, "rows"), dice, warm_up_s)


@given(queries())
def test_the_target_is_met_after_a_few_batches_and_kept(query):
    """
    Ten batches suffice from a first one a thousand times too large or too small, whatever the
    noise and the warm-up; from then on they are near the target, and the limit is hardly touched.
    """
    query.run(40)

    assert query.near_share(10) >= MOST, query.true_s
    assert (
        sum(decision is not BatchSizingDecision.UNCHANGED for decision in query.decisions[10:]) <= 6
    )


@given(queries())
def test_no_batch_but_the_first_takes_much_longer_than_the_target(query):
    """Growing is careful: what was not tried before may turn out slower, but not much."""
    query.run(40)

    assert max(query.true_s[1:]) <= 2 * query.aim_s * (1 + NOISE)


@given(queries(away=2.0, least=200), st.floats(-1, 1))
def test_a_changed_load_is_followed(query, exponent):
    """An operator that becomes up to ten times slower or faster is sized anew within eight batches."""
    query.run(15)
    query.row_s *= 10**exponent
    query.run(30)

    assert query.near_share(23) >= MOST, query.true_s


@given(queries(), st.integers(1, 1000))
def test_the_jobs_own_limit_is_never_exceeded(query, ceiling):
    """What the job has limited itself to holds at every batch, whatever the target would allow."""
    query.limit = Limit(ceiling, "rows", ceiling=ceiling)
    query.run(40)

    assert all(1 <= size <= ceiling for size in query.sizes)
