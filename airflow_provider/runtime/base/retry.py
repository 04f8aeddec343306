"""One policy for trying again: how often, after which pauses, and when it is given up."""

from __future__ import annotations

import dataclasses
import logging
import math
import random
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider.runtime.base.clock import Clock


log = logging.getLogger(__name__)

STORAGE_TIMEOUT_S: Final = 600.0  # nothing happens to the job meanwhile, so there is no hurry
WORKER_TIMEOUT_S: Final = 60.0  # a task that holds a worker has Airflow's retries, too
_ABSENT_TIMEOUT_S: Final = 60.0  # of a file that is not there: a mount that flaps is back by then
_FIRST_SAID_S: Final = 2.0
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class RetryPolicy:
    """What is decided after a failure; pure.

    Attributes:
        for_s: from the first failure to the one that is too many.
        failures: so many are too many, whatever the time.
        first_s: the first pause; each next one is twice as long.
        longest_s: as long as pauses get; None for as long as the first.
        jitter: the part of a pause that is drawn by lot: writers that met do not meet again.
    """

    first_s: float
    longest_s: float | None = None
    for_s: float = math.inf
    failures: int | None = None
    jitter: float = 0.0

    def is_over(self, failures: int, lasted_s: float) -> bool:
        """Whether it is time to give up.

        Args:
            failures: how many there have been.
            lasted_s: from the first to the last of them.
        """
        return lasted_s >= self.for_s or failures == self.failures

    def pause_s(self, failures: int, drawn: float) -> float:
        """Return the pause after so many failures.

        Args:
            failures: 1 or more.
            drawn: by lot, from 0 to 1.
        """
        doubled = self.first_s
        longest_s = self.first_s if self.longest_s is None else self.longest_s
        for _ in range(failures - 1):
            if doubled >= longest_s:
                break
            doubled *= 2
        return min(doubled, longest_s) * (1 - self.jitter * drawn)


class Retries:
    """The failures of one thing that is tried again and again.

    Args:
        policy: what follows from them.
        clock: its monotonic time measures, and passes in the pauses.
    """

    def __init__(self, policy: RetryPolicy, clock: Clock) -> None:
        self._policy = policy
        self._clock = clock
        self._failures = 0
        self._since = 0.0

    def succeeded(self) -> None:
        """Forget all failures so far."""
        self._failures = 0

    def failed(self) -> bool:
        """Count one more failure, and tell whether to try again."""
        if not self._failures:
            self._since = self._clock.monotonic()
        self._failures += 1
        return not self._policy.is_over(self._failures, self.lasted_s)

    @property
    def lasted_s(self) -> float:
        """Return for how long it has failed."""
        return self._clock.monotonic() - self._since if self._failures else 0.0

    def pause(self) -> None:
        """Wait for the next try, after a failure."""
        self._clock.sleep(self._policy.pause_s(self._failures, random.random()))  # noqa: S311 - dice


class RetryBudget(Retries):
    """Tolerates failures of the storage until they have lasted for too long.

    Args:
        clock: its monotonic time measures.
        timeout_s: from the first failure to the one that is too many, with no success in between;
            at most a minute where the failure is that a file is not there.
        every_s: the pause between two tries of :meth:`retry`.
    """

    def __init__(
        self, clock: Clock, timeout_s: float = STORAGE_TIMEOUT_S, *, every_s: float = 1.0
    ) -> None:
        super().__init__(RetryPolicy(first_s=every_s, for_s=timeout_s), clock)
        self._said_s = 0.0

    def succeeded(self) -> None:
        """Forget all failures so far."""
        super().succeeded()
        self._said_s = 0.0

    def should_retry(self, error: OSError) -> bool:
        """Whether to go on after one more failure; log it, the less often the longer."""
        goes_on = self.failed()
        if isinstance(error, FileNotFoundError) and self.lasted_s >= _ABSENT_TIMEOUT_S:
            goes_on = False
        if not goes_on or self.lasted_s >= 2 * self._said_s:
            self._said_s = max(self.lasted_s, _FIRST_SAID_S)
            log.warning("the storage cannot be used, for %.0f s now: %s", self.lasted_s, error)
        return goes_on

    def retry(self, act: Callable[[], T]) -> T:
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
                self.pause()
            else:
                self.succeeded()
                return result
