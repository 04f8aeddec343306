"""Retry budget: how long observers of a job tolerate a storage outage."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider.runtime.clock import Clock


log = logging.getLogger(__name__)

STORAGE_TIMEOUT_S: Final = 600.0  # nothing happens to the job meanwhile, so there is no hurry
WORKER_TIMEOUT_S: Final = 60.0  # who holds a worker has Airflow's retries, too
T = TypeVar("T")


class RetryBudget:
    """Bears failures of the storage until they have lasted for too long.

    Args:
        clock: its monotonic time measures.
        timeout_s: from the first failure to the one that is too many, with no success in between.
    """

    def __init__(self, clock: Clock, timeout_s: float = STORAGE_TIMEOUT_S) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        self._since: float | None = None

    def succeeded(self) -> None:
        """Forget what was borne."""
        self._since = None

    def should_retry(self, error: OSError) -> bool:
        """Tell whether to go on after one more failure."""
        now = self._clock.monotonic()
        if self._since is None:
            self._since = now
        lasted_s = now - self._since
        log.warning("the storage cannot be reached, for %.0f s now: %s", lasted_s, error)
        return lasted_s < self._timeout_s

    def retry(self, act: Callable[[], T], *, every_s: float) -> T:
        """Return what *act* does in the end; it must be idempotent.

        Raises:
            OSError: its last one.
        """
        while True:
            try:
                result = act()
            except OSError as error:
                if not self.should_retry(error):
                    raise
                self._clock.sleep(every_s)
            else:
                self.succeeded()
                return result


_SETTLED_WITHIN_S: Final = 300.0  # other writers may win for this long before a start is failed


class Backoff:
    """The pauses of a writer that lost against another one, and when it gives up.

    Args:
        clock: time.
        first_s: the first pause, drawn from its upper half; each next one is twice as long.
        longest_s: as long as they get.
    """

    def __init__(self, clock: Clock, *, first_s: float, longest_s: float) -> None:
        self._clock = clock
        self._deadline = clock.monotonic() + _SETTLED_WITHIN_S
        self._next_s = first_s
        self._longest_s = longest_s

    @property
    def is_over(self) -> bool:
        """Return whether others have won for so long that it is time to give up."""
        return self._clock.monotonic() > self._deadline

    def pause(self) -> None:
        """Let the others go first."""
        # Drawn by lot, so that writers that met do not meet again.
        self._clock.sleep(random.uniform(self._next_s / 2, self._next_s))  # noqa: S311
        self._next_s = min(2 * self._next_s, self._longest_s)
