"""Rows with nulls, nested values and times of three zones, and the state that plain Python makes of them."""

from __future__ import annotations

import datetime as dt
import statistics
from collections.abc import Callable
from typing import Any

import state_jobs

In = dict[str, Any]
Rows = list[tuple[Any, ...]]


def row(time: str, k: str | None, n: int | None, v: int, location: In | None) -> In:
    return {"time": time, "k": k, "n": n, "v": v, "location": location}


HOME: In = {"city": "Zürich", "tags": ["x", None]}
AWAY: In = {"city": None, "tags": []}
# One file is one batch. Their clocks are of three zones, and one hour is that of a change.
FILES: list[list[In]] = [
    [
        row("2026-03-29T01:30:00+01:00", "a", 1, 10, HOME),
        row("2026-03-29T00:31:00Z", "a", None, 11, None),
        row("2026-03-28T19:32:00-05:00", None, 2, 12, HOME),
    ],
    [
        row("2026-03-29T03:34:00+02:00", "a", 2, 13, HOME),
        row("2026-03-29T00:36:00Z", "b", 3, 14, AWAY),
        row("2026-03-29T00:37:00Z", None, 2, 15, None),
    ],
    [
        row("2026-03-29T00:45:00Z", "a", 1, 16, AWAY),
        row("2026-03-29T00:39:00Z", "b", None, 17, AWAY),
        row("2026-03-29T00:50:00Z", None, None, 18, HOME),
        row("2026-03-29T00:36:00Z", "b", 3, 19, HOME),  # the moment of an earlier one
    ],
]


def until(batch: int) -> list[In]:
    return [each for file in FILES[: batch + 1] for each in file]


def instant(each: In) -> int:
    return int(dt.datetime.fromisoformat(each["time"].replace("Z", "+00:00")).timestamp())


def location_of(each: In) -> tuple[Any, ...] | None:
    location = each["location"]
    return None if location is None else (location["city"], tuple(location["tags"]))


def grouped(batch: int, key: Callable[[In], Any]) -> dict[Any, list[In]]:
    found: dict[Any, list[In]] = {}
    for each in until(batch):
        found.setdefault(key(each), []).append(each)
    return found


def sums(batch: int) -> Rows:
    groups = grouped(batch, lambda each: (each["k"], location_of(each)))
    return [(*key, *_aggregates(rows)) for key, rows in groups.items()]


def _aggregates(rows: list[In]) -> tuple[Any, ...]:
    """Count, sum, average, minimum, maximum and deviation, in the parts in which Spark keeps them."""
    values, numbers = [r["v"] for r in rows], [r["n"] for r in rows if r["n"] is not None]
    n, mean = float(len(rows)), statistics.fmean(values)
    deviation = sum((v - mean) ** 2 for v in values)
    total, last = sum(values), max(instant(r) for r in rows)
    average = (float(total), len(rows))
    return (len(rows), total, *average, min(numbers, default=None), last, n, mean, deviation)


def windows(batch: int) -> Rows:
    groups = grouped(batch, lambda each: (instant(each) // 600 * 600, each["k"]))
    return [
        ((start, start + 600), k, max(each["v"] for each in rows))
        for (start, k), rows in groups.items()
    ]


def sessions(batch: int) -> Rows:
    found = []
    for k, rows in grouped(batch, lambda each: each["k"]).items():
        open_rows: list[In] = []
        for each in sorted(rows, key=instant):
            if open_rows and instant(each) > instant(open_rows[-1]) + 300:
                found.append((k, open_rows))
                open_rows = []
            open_rows = [*open_rows, each]
        found.append((k, open_rows))
    return [
        (
            k,
            instant(rows[0]),
            (instant(rows[0]), instant(rows[-1]) + 300),
            sum(r["v"] for r in rows),
        )
        for k, rows in found
    ]


def totals(batch: int) -> Rows:
    return [(sum(each["v"] for each in until(batch)),)]


def keys(batch: int) -> Rows:
    return [*grouped(batch, lambda each: (each["k"], each["n"]))]


def keys_until(batch: int) -> Rows:
    groups = grouped(batch, lambda each: (each["k"], each["n"]))
    return [(*key, (instant(rows[0]) + 86_400) * 1_000_000) for key, rows in groups.items()]


def left_rows(batch: int) -> Rows:
    return [
        (r["k"], instant(r), r["k"], location_of(r)) for r in until(batch) if r["k"] is not None
    ]


def right_rows(batch: int) -> Rows:
    return [(r["k"], instant(r), r["k"], r["v"]) for r in until(batch) if r["k"] is not None]


def all_left(batch: int) -> Rows:
    return [(r["k"], instant(r), r["k"], location_of(r)) for r in until(batch)]


def right_above_13(batch: int) -> Rows:
    return [(r["k"], instant(r), r["k"], r["v"]) for r in until(batch) if r["v"] > 13]


def first_two(batch: int) -> Rows:
    return [(min(2, len(until(batch))),)]


def last_values(batch: int) -> Rows:
    return [
        (k, sum(each["v"] for each in rows), location_of(rows[-1]))
        for k, rows in grouped(batch, lambda each: each["k"]).items()
    ]


def lists(batch: int) -> Rows:
    groups = grouped(batch, lambda each: each["k"])
    return [(k, tuple((each["n"],) for each in rows)) for k, rows in groups.items()]


def cities(batch: int) -> Rows:
    groups = grouped(batch, lambda each: (each["k"], each["location"] and each["location"]["city"]))
    return [(*key, len(rows), location_of(rows[-1])) for key, rows in groups.items()]


def recent(batch: int) -> Rows:
    groups = grouped(batch, lambda each: each["k"])
    return [
        (k, tuple((each["v"], location_of(each)) for each in rows)) for k, rows in groups.items()
    ]


def numbers(batch: int) -> Rows:
    return [(each["k"], each["n"], each["v"], location_of(each)) for each in until(batch)]


def values(batch: int) -> Rows:
    return [(each["k"], each["v"]) for each in until(batch)]


def total_of_keys(batch: int) -> Rows:
    groups = grouped(batch, lambda each: each["k"])
    return [(k, sum(each["v"] for each in rows)) for k, rows in groups.items()]


def timers(batch: int) -> Rows:
    return [(each["k"], state_jobs.FAR_MS + each["v"]) for each in until(batch)]


def group_states(batch: int) -> Rows:
    return [
        (k, total, any(each["n"] is None for each in rows), state_jobs.FAR_MS + total)
        for k, rows in grouped(batch, lambda each: each["k"]).items()
        for total in [sum(each["v"] for each in rows)]
    ]
