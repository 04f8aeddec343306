"""Choice of a savepoint's batch: aligned, unaligned, and what is worth waiting for."""

from __future__ import annotations

import pytest

from airflow_provider.runtime.checkpoint.drain_step import LogPosition
from airflow_provider.runtime.savepoints.checkpoint_source import (
    PUBLISHING_S,
    CheckpointSample,
    NothingYet,
    Take,
    Wait,
    choose,
)


def seen(
    offsets: int, commits: int, published: int | None = None, *, driven: bool = True
) -> CheckpointSample:
    return CheckpointSample(LogPosition(offsets, commits, 0), published, driven)


IDLE, IN_FLIGHT = seen(5, 5), seen(6, 5)


@pytest.mark.parametrize(
    ("first", "now", "waited_s", "timeout_s", "expected"),
    [
        pytest.param(IDLE, IDLE, 0, 30, Take(5, planned=False), id="nothing in flight"),
        pytest.param(IN_FLIGHT, IN_FLIGHT, 0, 30, Wait(), id="in flight: wait for it"),
        pytest.param(IN_FLIGHT, IN_FLIGHT, 29.9, 30, Wait(), id="wait on"),
        pytest.param(IN_FLIGHT, IN_FLIGHT, 30, 30, Take(5, planned=True), id="unaligned after all"),
        pytest.param(IN_FLIGHT, IN_FLIGHT, 0, 0, Take(5, planned=True), id="unaligned at once"),
        pytest.param(IN_FLIGHT, seen(6, 6), 9, 30, Take(6, planned=False), id="it has committed"),
        pytest.param(
            IN_FLIGHT,
            seen(7, 6),
            9,
            30,
            Take(6, planned=False),
            id="the one that began since is not waited for",
        ),
        pytest.param(
            seen(6, 5, driven=False),
            seen(6, 5, driven=False),
            0,
            30,
            Take(5, planned=True),
            id="nobody is at it: nothing to wait for",
        ),
        pytest.param(seen(0, -1), seen(0, -1), 0, 30, Wait(), id="the first batch is in flight"),
        pytest.param(seen(0, -1), seen(0, -1), 30, 30, NothingYet(), id="it takes too long"),
        pytest.param(seen(-1, -1), seen(-1, -1), 0, 0, NothingYet(), id="no batch was planned"),
        pytest.param(seen(0, -1), seen(0, 0), 5, 30, Take(0, planned=False), id="the first one"),
        # What sinks have not published yet is not part of a savepoint, for it would be lost.
        pytest.param(seen(5, 5, 4), seen(5, 5, 4), 0, 0, Wait(), id="being published"),
        pytest.param(seen(5, 5, 4), seen(5, 5, 5), 0.1, 0, Take(5, planned=False), id="published"),
        pytest.param(
            seen(6, 5, 4), seen(6, 5, 5), 0.1, 0, Take(5, planned=True), id="published, unaligned"
        ),
        pytest.param(
            seen(5, 5, 4),
            seen(5, 5, 4),
            PUBLISHING_S,
            0,
            Take(4, planned=True),
            id="not published in time: the batch before, which runs again",
        ),
        pytest.param(
            seen(5, 5, 4, driven=False),
            seen(5, 5, 4, driven=False),
            0,
            30,
            Take(4, planned=True),
            id="never to be published: the batch before",
        ),
        pytest.param(
            seen(6, 5, 5), seen(6, 6, 5), 30, 30, Wait(), id="committed in time, being published"
        ),
        pytest.param(
            seen(0, 0, -1, driven=False),
            seen(0, 0, -1, driven=False),
            0,
            0,
            NothingYet(),
            id="nothing is published, and nobody will",
        ),
    ],
)
def test_what_is_taken(first, now, waited_s, timeout_s, expected):
    """The state after the newest batch that is whole, and nothing that its sinks do not have."""
    assert expected == choose(first, now, waited_s=waited_s, aligned_timeout_s=timeout_s)
