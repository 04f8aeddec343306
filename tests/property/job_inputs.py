"""Jobs that Hypothesis puts together, and input out of order for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import HealthCheck, Phase, assume
from hypothesis import strategies as st
from streams import Event

KEYS = ("a", "b", "c", "d")

# By head: which tails follow it.
_ON_WINDOWS = ("windows", "windows_over_windows", "sessions")
_JOINS = ("inner", "leftOuter", "rightOuter", "fullOuter")
FAMILIES: Mapping[str, Sequence[tuple[str, str]]] = {
    "windows": [("events", tail) for tail in _ON_WINDOWS],
    "distinct": [
        (head, tail)
        for tail in (*_ON_WINDOWS, "rows")
        for head in ("distinct", "distinct_within_watermark")
    ],
    "joins": [
        ("join:leftOuter", "windows"),
        *((f"join:{how}", "rows") for how in reversed(_JOINS)),
        ("join:inner", "windows"),
    ],
    "timers": [("events", "timers")],
}
# Without shrinking: an example takes seconds, and a failing one is short enough to be read whole.
SETTINGS: dict[str, Any] = {
    "deadline": None,
    "database": None,
    "suppress_health_check": [HealthCheck.too_slow],
    "phases": (Phase.explicit, Phase.generate),
}


@st.composite
def plans(draw: st.DrawFn, pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return a plan of one of the pairs of head and tail."""
    head, tail = draw(st.sampled_from(pairs))
    size = draw(st.sampled_from((10, 4, 20)))
    slide = draw(st.sampled_from((size, size // 2)))
    return {"head": head, "tail": tail, "size": size, "slide": slide}


@st.composite
def inputs(draw: st.DrawFn, files: int) -> list[list[Event]]:
    """Return rows that come late by less than the watermark's delay, cut into files."""
    step = st.tuples(
        st.sampled_from((3, 0, 1, 2, 7, 25)),  # seconds after the one before
        st.sampled_from(KEYS),
        st.integers(0, 9),
        st.sampled_from((0, 4, 2, 1)),  # seconds after its own time that it arrives
        st.sampled_from((1, 1, 2)),  # copies
    )
    now, arrivals = 0, []
    for gap, key, value, lag, copies in draw(
        st.lists(step, min_size=files + 8, max_size=files + 50)
    ):
        now += gap
        arrivals += [(now + lag, (now, key, value))] * copies
    rows = [row for _, row in sorted(arrivals, key=lambda arrival: arrival[0])]
    assume(rows != sorted(rows, key=lambda row: row[0]))  # what comes in order proves less
    cut = st.integers(0, len(rows))
    even = [len(rows) * number // files for number in range(1, files)]
    cuts = draw(st.just(even) | st.lists(cut, min_size=files - 1, max_size=files - 1).map(sorted))
    return [rows[a:b] for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
