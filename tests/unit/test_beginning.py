"""The beginning of a job: every past of it, and what a start asks for."""

from __future__ import annotations

import pytest

from airflow_provider.runtime.driver.beginning import (
    Asked,
    EndReset,
    FromSavepoint,
    GoOn,
    PastBeginnings,
    decide_beginning,
)
from airflow_provider.runtime.errors import CheckpointError, ConfigError
from airflow_provider.runtime.jobdir.journal import OperationRecord, RestorePlan

NOW = "2026-01-01T00:00:00Z"


def operation(number: int, savepoint: str | None, *, step: int = 2, **plan) -> OperationRecord:
    restore = RestorePlan(savepoint, NOW if savepoint else None, {}, **plan)
    return OperationRecord(number=number, step=step, token=1, began=NOW, restore=restore)


A, B = operation(1, "/a"), operation(2, "/b")
A_OPEN, B_OPEN = operation(1, "/a", step=1), operation(2, "/b", step=1)
A_OF_8 = operation(1, "/a", partitions=8)
REWIND = operation(3, "/job/savepoints/rewind-r1")
REWIND_OPEN = operation(3, "/job/savepoints/rewind-r1", step=1)
RESET_OPEN = operation(4, None, step=1, keep_outputs=True)

OWN, FROM_A = Asked(None), Asked("/a")
MAY_RESET = Asked(None, allows_resets=True)
A_MAY_RESET = Asked("/a", allows_resets=True)
A_IN_4 = Asked("/a", partitions=4)


def past(*starts: OperationRecord, last: OperationRecord | None = None, begun: str | None = None):
    """Return the past of a job with these starts, the newest first."""
    return PastBeginnings("/job", last or next(iter(starts), None), starts, begun)


@pytest.mark.parametrize(
    ("then", "asked", "beginning"),
    [
        (past(), OWN, GoOn()),
        (past(), FROM_A, FromSavepoint()),
        (past(begun="q"), OWN, GoOn()),
        (past(A), OWN, GoOn()),
        (past(A), FROM_A, GoOn()),
        (past(B, A), FROM_A, GoOn()),  # a person has set it back since
        (past(A, last=REWIND), FROM_A, GoOn()),
        (past(A_OPEN), FROM_A, FromSavepoint()),  # a death in the middle: the same start ends it
        (past(A_OPEN), Asked("/a", partitions=4), FromSavepoint()),
        (past(A_OF_8), Asked("/a", partitions=8), GoOn()),
        (past(last=RESET_OPEN), MAY_RESET, EndReset(RESET_OPEN)),
        (past(A, last=RESET_OPEN), A_MAY_RESET, EndReset(RESET_OPEN)),
    ],
)
def test_where_a_job_begins(then, asked, beginning):
    """From the savepoint once; then from its own state, whatever was done to it in between."""
    assert beginning == decide_beginning(then, asked)


@pytest.mark.parametrize(
    ("then", "asked", "error", "why"),
    [
        (past(begun="q"), FROM_A, ConfigError, "has begun already"),
        (past(B), FROM_A, ConfigError, "was set to /b before, not to /a"),
        (past(A_OF_8), A_IN_4, ConfigError, "partitions=8, and 4 are requested"),
        (past(A_OPEN), OWN, CheckpointError, "a restore of /a began"),
        (past(B_OPEN), FROM_A, CheckpointError, "a restore of /b began"),
        (past(B_OPEN, A), FROM_A, CheckpointError, "a restore of /b began"),
        (past(A, last=REWIND_OPEN), FROM_A, CheckpointError, "did not end"),
        (past(last=RESET_OPEN), OWN, CheckpointError, "to be reset"),
        (past(last=RESET_OPEN), FROM_A, CheckpointError, "to be reset"),
    ],
)
def test_what_a_job_cannot_begin_from(then, asked, error, why):
    """What it began from otherwise, and what somebody has begun and not ended."""
    with pytest.raises(error, match=why):
        decide_beginning(then, asked)
