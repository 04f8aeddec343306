"""Batch histories: whatever batches come, nothing is lost that is to be kept, and nothing grows."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider.runtime.base.clock import millis_to_iso
from airflow_provider.runtime.jobdir.batch_history import (
    FULL,
    HOURS,
    LARGEST_BYTES,
    TOTAL,
    BatchEntry,
    BatchHistory,
    add_batches,
    cut_to_size,
    hour_of,
)

COUNTS = st.integers(0, 2**40)
AMOUNTS = st.one_of(COUNTS, st.floats(0, 1e9))
TEXTS = st.text(max_size=300)
AT = 1_767_225_600_000  # 2026
BEGUN = BatchHistory(query="q", updated=millis_to_iso(AT))


@st.composite
def entries(draw: st.DrawFn) -> BatchEntry:
    """Make a batch of any size."""
    return BatchEntry(
        batch=draw(COUNTS),
        at=millis_to_iso(AT + draw(st.integers(-(2**33), 2**33))),
        attempt=draw(st.integers(1, 9)),
        rows=draw(st.none() | COUNTS),
        late_rows=draw(st.none() | COUNTS),
        duration_ms=draw(st.dictionaries(TEXTS, COUNTS, max_size=20)) | {TOTAL: draw(COUNTS)},
        input_rate=draw(st.none() | st.floats(0, 1e9)),
        watermark=draw(st.none() | TEXTS),
        state_rows=draw(st.none() | COUNTS),
        backlog=draw(st.none() | st.dictionaries(TEXTS, COUNTS, max_size=40)),
        limits=draw(st.none() | st.dictionaries(TEXTS, AMOUNTS, max_size=40)),
        reason=draw(st.none() | TEXTS),
    )


@st.composite
def streams(draw: st.DrawFn) -> list[list[BatchEntry]]:
    """Make what a driver adds, time after time: a few kinds of batches, many of each."""
    kinds = draw(st.lists(entries(), min_size=1, max_size=4))
    steps = draw(st.lists(st.tuples(st.sampled_from(kinds), st.integers(0, 400)), max_size=6))
    hours = draw(st.integers(0, 2))
    added, number = [], 0
    for kind, count in steps:
        batches = []
        for _ in range(count):
            at = millis_to_iso(AT + number * hours * 1_800_000) if hours else kind.at
            batches.append(dataclasses.replace(kind, batch=number, at=at))
            number += 1
        added.append(batches)
    return added


def grown(added: list[list[BatchEntry]]) -> BatchHistory:
    history = BEGUN
    for batches in added:
        history = add_batches(history, batches, updated=BEGUN.updated)
    return history


@pytest.mark.slow
@settings(deadline=None)
@given(streams())
def test_a_history_stays_small_and_can_be_read(added):
    """Whatever comes, it is no larger than it may be, and is read as it was written."""
    history = grown(added)
    data = history.to_bytes()

    assert len(data) <= LARGEST_BYTES
    assert len(history.batches) <= FULL
    assert len(history.hours) <= HOURS
    assert history == BatchHistory.from_dict(json.loads(data), where="history/q.json")
    assert history == BatchHistory.from_dict(history.to_dict(), where="history/q.json")


@pytest.mark.slow
@settings(deadline=None)
@given(streams())
def test_every_batch_is_in_a_history_once(added):
    """
    The last ones in full and in order, those before them in their hours, unless a week has passed.
    """
    history = grown(added)
    batches = [cut_to_size(batch) for some in added for batch in some]
    folded = batches[: len(batches) - len(history.batches)]
    kept = {hour.hour for hour in history.hours}

    assert batches[len(folded) :] == history.batches
    assert bool(batches) == bool(history.batches)
    assert len(kept) == len(history.hours)
    if len(kept) < HOURS:
        assert {hour_of(batch) for batch in folded} == kept
    for hour in history.hours:
        own = [batch for batch in folded if hour_of(batch) == hour.hour]
        times = [batch.time_ms for batch in own]
        assert len(own) == hour.batches
        assert sum(batch.rows or 0 for batch in own) == hour.rows
        assert sum(batch.late_rows or 0 for batch in own) == hour.late_rows
        assert (min(times), max(times)) == (hour.min_ms, hour.max_ms)
        assert abs(sum(times) / len(times) - hour.mean_ms) <= 1 + 1e-9 * hour.max_ms
        assert own[-1].state_rows == hour.state_rows or own[-1].state_rows is None
