"""Retry policy: how often, after which pauses, and when to give up."""

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
    """The decisions after a failure; pure.

    Attributes:
        first_s: the first pause; each next one is twice as long.
        longest_s: the longest pause; None for the first one.
        for_s: the time from the first failure after which to give up.
        failures: the number of failures after which to give up, whatever the time.
        jitter: the part of a pause that is random: writers that met do not meet again.
    """

    first_s: float
    longest_s: float | None = None
    for_s: float = math.inf
    failures: int | None = None
    jitter: float = 0.0

    def is_over(self, failures: int, lasted_s: float) -> bool:
        return lasted_s >= self.for_s or failures == self.failures

    def pause_s(self, failures: int, drawn: float) -> float:
        doubled = self.first_s
        longest_s = self.first_s if self.longest_s is None else self.longest_s
        for _ in range(failures - 1):
            if doubled >= longest_s:
                break
            doubled *= 2
        return min(doubled, longest_s) * (1 - self.jitter * drawn)


class Retries:
    """The failures of one repeated operation, in monotonic time of *clock*."""

    def __init__(self, policy: RetryPolicy, clock: Clock) -> None:
        self._policy = policy
        self._clock = clock
        self._failures = 0
        self._since = 0.0

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self) -> bool:
        if not self._failures:
            self._since = self._clock.monotonic()
        self._failures += 1
        return not self._policy.is_over(self._failures, self.lasted_s)

    @property
    def lasted_s(self) -> float:
        return self._clock.monotonic() - self._since if self._failures else 0.0

    def pause(self) -> None:
        self._clock.sleep(self._policy.pause_s(self._failures, random.random()))  # noqa: S311 - dice


class RetryBudget(Retries):
    """Tolerates failures of the storage until they have lasted for too long, by *clock*."""

    def __init__(
        self, clock: Clock, timeout_s: float = STORAGE_TIMEOUT_S, *, every_s: float = 1.0
    ) -> None:
        super().__init__(RetryPolicy(first_s=every_s, for_s=timeout_s), clock)
        self._said_s = 0.0

    def succeeded(self) -> None:
        super().succeeded()
        self._said_s = 0.0

    def should_retry(self, error: OSError) -> bool:
        """Whether to retry after one more failure; log it, the less often the longer."""
        goes_on = self.failed()
        if isinstance(error, FileNotFoundError) and self.lasted_s >= _ABSENT_TIMEOUT_S:
            goes_on = False
        if not goes_on or self.lasted_s >= 2 * self._said_s:
            self._said_s = max(self.lasted_s, _FIRST_SAID_S)
            log.warning("the storage cannot be used, for %.0f s now: %s", self.lasted_s, error)
        return goes_on

    def retry(self, act: Callable[[], T]) -> T:
        """Retry the idempotent *act* and return its result; raise its last OSError."""
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
