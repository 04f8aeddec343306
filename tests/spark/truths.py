"""Input without late rows for every kind of operator, and what plain Python makes of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

from streams import START, Event, Location, Rows, windows_of, write_events

# Two files, read as two batches: the first leaves windows open, the second closes some and opens
# others, and only the end of the data closes the rest.
EVENTS: tuple[list[Event], list[Event]] = (
    [(1, "a", 1), (2, "b", 2), (3, "a", 3), (3, "a", 3), (12, "c", 4), (14, "a", 5), (15, "b", 6)],
    [
        (15, "b", 6),
        (16, "a", 7),
        (16, "a", 7),
        (23, "c", 8),
        (31, "b", 9),
        (37, "a", 10),
        (38, "d", 11),
    ],
)
ALL = [*EVENTS[0], *EVENTS[1]]
CLICKED: tuple[list[Event], list[Event]] = (
    [(4, "a1", 0), (13, "c12", 0)],
    [(18, "b15", 0), (30, "c23", 0), (40, "a37", 0)],
)
# Named by key and second, so that a click belongs to one of them; the copies stay equal.
SHOWN = tuple([(t, f"{k}{t}", v) for t, k, v in batch] for batch in EVENTS)


def truth_of_windows() -> Rows:
    return windows_of(ALL)


def truth_of_windows_over_windows() -> Rows:
    found: dict[int, list[int]] = defaultdict(list)
    for start, _, n, _ in windows_of(ALL):
        found[start - (start - START) % 20].append(n)
    return sorted((start, len(counts), sum(counts)) for start, counts in found.items())


def truth_of_sessions(gap: int = 4) -> Rows:
    sessions: Rows = []
    for key in {k for _, k, _ in ALL}:
        times = sorted(t for t, k, _ in ALL if k == key)
        first, last, n = times[0], times[0], 0
        for t in times:
            if t >= last + gap:
                sessions.append((START + first, START + last + gap, key, n))
                first, n = t, 0
            last, n = t, n + 1
        sessions.append((START + first, START + last + gap, key, n))
    return sorted(sessions)


def truth_of_outer_join() -> Rows:
    clicks = [click for batch in CLICKED for click in batch]
    rows: Rows = []
    for t, shown, _ in [row for batch in SHOWN for row in batch]:
        hits = [START + c for c, clicked, _ in clicks if clicked == shown and t <= c <= t + 5]
        rows += [(shown, START + t, hit) for hit in hits or [-1]]
    return sorted(rows)


def truth_of_join_then_aggregation() -> Rows:
    found: dict[int, list[int]] = defaultdict(list)
    for _, shown, clicked in truth_of_outer_join():
        found[shown - (shown - START) % 10].append(clicked)
    return sorted((start, len(c), sum(x >= 0 for x in c)) for start, c in found.items())


def truth_of_deduplication() -> Rows:
    return sorted({(k, v) for _, k, v in ALL})


def truth_of_deduplication_then_windows() -> Rows:
    return windows_of(set(ALL))


def truth_of_buckets() -> Rows:
    counts = Counter((k, START + t - t % 10) for t, k, _ in ALL)
    return sorted((k, start, n) for (k, start), n in counts.items())


TRUTHS: dict[str, Callable[[], Rows]] = {
    "tumbling_window": truth_of_windows,
    "window_over_window": truth_of_windows_over_windows,
    "session_window": truth_of_sessions,
    "outer_join": truth_of_outer_join,
    "join_then_aggregation": truth_of_join_then_aggregation,
    "deduplication": truth_of_deduplication,
    "deduplication_then_window": truth_of_deduplication_then_windows,
    "timers": truth_of_buckets,
    "timers_in_pandas": truth_of_buckets,
    "timeouts_in_pandas": truth_of_buckets,
}
NEEDS_ROCKSDB = {"timers", "timers_in_pandas"}
JOINS = {"outer_join", "join_then_aggregation"}


def prepare(location: Location, job: str) -> dict[str, Any]:
    """Write the job's input and return what to ask for."""
    params = {"files_per_batch": "1"}
    if job in JOINS:
        params["shown"] = str(write_events(location.root / "shown", *SHOWN))
        params["clicked"] = str(write_events(location.root / "clicked", *CLICKED))
    else:
        write_events(location.input, *EVENTS)
    return {"params": params}
