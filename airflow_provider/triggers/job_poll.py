"""One poll of a job for a trigger: whether the wait is over, and the driver's new log lines.

A triggerer loads this module in a thread: it takes a second, in which its event loop goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from airflow_provider.hooks.spark_streaming import SparkStreamingHook
from airflow_provider.runtime.clock import SystemClock
from airflow_provider.runtime.control.observer import Assessment, RunState
from airflow_provider.runtime.errors import SparkStreamError
from airflow_provider.runtime.retry import STORAGE_TIMEOUT_S, RetryBudget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider.runtime.control.observer import RunWatcher
    from airflow_provider.triggers.spark_streaming import SparkStreamingTrigger

_WAITING: Final = frozenset({RunState.RUNNING, RunState.STARTING})


def is_waiting(run_state: RunState, *, wait_for_foreign: bool) -> bool:
    """Tell whether a task goes on waiting."""
    return run_state in _WAITING or (wait_for_foreign and run_state is RunState.FOREIGN)


class PollResult(NamedTuple):
    """The result of one poll.

    Attributes:
        lines: what the driver has logged since the last one.
        end: how the wait ends; None when it goes on.
    """

    lines: Sequence[str] = ()
    end: Assessment | None = None


class Poll:
    """Looks at the job once whenever it is called, in a thread."""

    def __init__(self, trigger: SparkStreamingTrigger) -> None:
        self._trigger = trigger
        self._watcher: RunWatcher | None = None  # made in the thread, too: it may load a library
        self._retry_budget = RetryBudget(SystemClock(), STORAGE_TIMEOUT_S)
        self.follower = SparkStreamingHook().follow(
            trigger.job_dir,
            trigger.run_id,
            trigger.driver_id,
            trigger.log_path,
            trigger.log_offset,
        )

    def __call__(self) -> PollResult | None:
        """Return what there is to tell; None for nothing."""
        try:
            assessment = self._assess()
            self._retry_budget.succeeded()
        except SparkStreamError as error:
            assessment = Assessment(RunState.FAILED, str(error), fatal=True)
        except OSError as error:
            if self._retry_budget.should_retry(error):
                return None
            reason = f"{self._trigger.job_dir} cannot be read: {error}"
            assessment = Assessment(RunState.FAILED, reason)
        lines = self.follower.new_lines()
        if not is_waiting(assessment.run_state, wait_for_foreign=self._trigger.wait_for_foreign):
            return PollResult(lines, assessment)
        return PollResult(lines) if lines else None

    def _assess(self) -> Assessment:
        trigger = self._trigger
        if self._watcher is None:
            self._watcher = SparkStreamingHook().watcher(
                trigger.job_dir,
                trigger.run_id,
                trigger.driver_id,
                bootstrap=trigger.bootstrap,
                supervision=trigger.supervision,
            )
        assessment = self._watcher.assess()
        trigger.take_over()  # only now, when it is known that what is read is the job directory
        return assessment
