"""Why a trigger that is done at once waits a little before it says so."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from airflow_provider.runtime.clock import Clock

HOLD_S: Final = 10.0
"""A worker's end is noticed about six seconds after its task was deferred; then some to spare."""


async def hold_back(began: float, clock: Clock) -> None:
    """Wait until Airflow has noticed that the worker which deferred the task has ended.

    A task that runs again before that is taken for one whose worker was lost: it is retried, or
    fails without a retry, whatever it is about to return (apache/airflow#72716).

    Args:
        began: when the trigger began, by the clock's monotonic time.
        clock: time.
    """
    left_s = began + HOLD_S - clock.monotonic()
    if left_s > 0:
        await asyncio.sleep(left_s)
