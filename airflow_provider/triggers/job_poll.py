"""One poll of a job for a trigger; triggerers load it in a thread, since it takes a second."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from airflow_provider.hooks.stream_metrics import metrics_of
from airflow_provider.hooks.task_runs import put_returned
from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.base.retry import STORAGE_TIMEOUT_S, RetryBudget
from airflow_provider.runtime.errors import SparkStreamError
from airflow_provider.runtime.jobdir.dropped_rows import describe_dropped_rows
from airflow_provider.runtime.jobdir.layout import directory_at
from airflow_provider.runtime.observe.state import Assessment, RunState
from airflow_provider.runtime.storage.open import local_path_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_provider.hooks.driver_hook import DriverHook
    from airflow_provider.hooks.storage_connection import TaskStorage
    from airflow_provider.runtime.observe.observer import RunWatcher

log = logging.getLogger(__name__)

_WAITING: Final = frozenset({RunState.RUNNING, RunState.STARTING, RunState.ENDING})


def is_waiting(run_state: RunState, *, wait_for_foreign: bool) -> bool:
    """Whether a task continues to wait."""
    return run_state in _WAITING or (wait_for_foreign and run_state is RunState.FOREIGN)


class PollResult(NamedTuple):
    """The result of one poll.

    Attributes:
        lines: the driver's log since the last poll.
        end: the assessment that ends the wait; None while it continues.
    """

    lines: Sequence[str] = ()
    end: Assessment | None = None


class AwaitedRun(Protocol):
    """The run that a trigger waits for; see :class:`~.spark_streaming.SparkStreamingTrigger`."""

    job_dir: str
    run_id: str
    driver_id: str | None
    wait_for_foreign: bool
    log_path: str | None
    log_offset: int
    request: Mapping[str, str] | None
    supervision: Mapping[str, Any] | None
    storage: TaskStorage

    @property
    def hook(self) -> DriverHook:
        """The hook of the task's launcher."""

    @property
    def task_instance(self) -> Any:
        """The task instance that waits; None in ``dag.test()``."""

    def take_over(self) -> None:
        """Take over from the triggerer that has waited until now."""


class Poll:
    """Polls the job once at each call, in a thread.

    Attributes:
        is_near: whether a poll reads a disk alone, and asks no store and no cluster.
    """

    def __init__(self, wait: AwaitedRun) -> None:
        self._wait = wait
        self._watcher: RunWatcher | None = None  # made in the thread, too: it may load a library
        self._retry_budget = RetryBudget(SystemClock(), STORAGE_TIMEOUT_S)
        self._metrics = metrics_of(wait.job_dir, wait.run_id, wait.task_instance)
        with wait.storage.opened():
            self.is_near = _is_near(wait)
            self.follower = wait.hook.follow(
                wait.job_dir, wait.run_id, wait.driver_id, wait.log_path, wait.log_offset
            )

    def __call__(self) -> PollResult | None:
        """Return new log lines or the end of the wait; None if there are neither."""
        try:
            with self._wait.storage.opened():
                assessment = self._measured(self._assess())
            self._retry_budget.succeeded()
        except SparkStreamError as error:
            assessment = self._measured(Assessment(RunState.FAILED, str(error), fatal=True))
        except OSError as error:
            if self._retry_budget.should_retry(error):
                return None
            reason = f"{self._wait.job_dir} cannot be read: {error}"
            assessment = self._measured(Assessment(RunState.FAILED, reason))
        lines = self.follower.new_lines()
        if not is_waiting(assessment.run_state, wait_for_foreign=self._wait.wait_for_foreign):
            return PollResult(lines, assessment)
        return PollResult(lines) if lines else None

    def final(self) -> dict[str, Any] | None:
        if self._watcher is None:
            return None
        with self._wait.storage.opened():
            final = self._watcher.verified_final()
            if final is None:
                return None
            put_returned(directory_at(self._wait.job_dir).run(final.run_id), SystemClock())
        for dropped in describe_dropped_rows(final):
            log.warning("run %s: %s", self._wait.run_id, dropped)
        return final.to_dict()

    def _measured(self, assessment: Assessment) -> Assessment:
        if self._metrics is not None:
            self._metrics.look(assessment.run_state)
        return assessment

    def _assess(self) -> Assessment:
        wait = self._wait
        if self._watcher is None:
            self._watcher = wait.hook.watcher(
                wait.job_dir,
                wait.run_id,
                wait.driver_id,
                request=wait.request,
                supervision=wait.supervision,
            )
        assessment = self._watcher.assess()
        wait.take_over()  # only now, when it is known that what is read is the job directory
        return assessment


def _is_near(wait: AwaitedRun) -> bool:
    if local_path_of(wait.job_dir) is None:
        return False
    try:
        return not directory_at(wait.job_dir).run(wait.run_id).has_handles()
    except (OSError, SparkStreamError):  # the first poll reports it
        return False
