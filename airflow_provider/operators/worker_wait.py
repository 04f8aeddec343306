"""The wait of a worker for a short run, before it defers the task to a triggerer.

A wait in the worker costs a slot; a deferral costs a second start of a worker, and a deferred task
is green after 13 seconds at the earliest. So the worker waits for a run that
is expected to be shorter, by the last run of the job or of the task.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow_provider.hooks.job_memory import STREAM_KEY
from airflow_provider.runtime.base.clock import from_iso
from airflow_provider.runtime.jobdir.layout import directory_at
from airflow_provider.runtime.jobdir.run_records import FINISHED
from airflow_provider.runtime.observe.state import RunState, driver_at_work

if TYPE_CHECKING:
    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.jobdir.layout import RunDirectory
    from airflow_provider.runtime.observe.observer import RunWatcher
    from airflow_provider.runtime.observe.state import Assessment

log = logging.getLogger(__name__)

DEFERRAL_S: Final = 13.0
"""When a deferred task is green at the earliest; by default no worker waits for longer."""
SHORT_S: Final = 10.0
"""A run that took less is expected to take less than a deferral the next time."""


KILL_S: Final = 4.0
"""Airflow kills a task five seconds after it has asked it to end."""
_END_POLL_S: Final = 0.2


class RunLocation(NamedTuple):
    """A run, and its job directory."""

    job_dir: str
    run_id: str


def await_driver_end(watcher: RunWatcher, clock: Clock, *, within_s: float) -> bool:
    """Wait until no driver is at work on the run; return whether that came in time."""
    deadline = clock.monotonic() + within_s
    while True:
        snapshot = watcher.poll()
        if driver_at_work(snapshot, watcher.decide(snapshot).run_state) is None:
            return True
        if clock.monotonic() >= deadline:
            return False
        clock.sleep(_END_POLL_S)


def has_left(watcher: RunWatcher, assessment: Assessment, driver_id: str | None) -> bool:
    """Whether a driver needs no process of this machine any more: its cluster has it, or none."""
    is_up = driver_id is None or assessment.run_state is RunState.RUNNING
    return is_up or watcher.has_left(str(driver_id))


def choose_wait_s(last_s: float | None, *, is_warm: bool, passed_s: float = 0.0) -> float:
    """Return how long a worker waits before it defers; pure.

    =====================================  ======================
    the last run took                      seconds in the worker
    =====================================  ======================
    more than :data:`SHORT_S`              0
    less time than this one has taken      0
    otherwise, if known                    :data:`DEFERRAL_S`
    an unknown time, with a warm driver    :data:`DEFERRAL_S`
    an unknown time                        0
    =====================================  ======================

    A short wait that is given up costs both, the wait and the deferral. So the worker does not wait
    for just the expected time, which a cold start exceeds where a warm driver was expected.

    Args:
        last_s: from the submission of the last run's driver to its final checkpoint; None if
            unknown.
        is_warm: whether the run may be given to a warm driver.
        passed_s: since the submission of this run's driver.
    """
    if last_s is None:
        return DEFERRAL_S if is_warm else 0.0
    return DEFERRAL_S if passed_s <= last_s <= SHORT_S else 0.0


def seconds_of(run: RunDirectory) -> float | None:
    """Return a finished run's seconds from its submission; None if it had several drivers."""
    final = run.final()
    if final is None or final.outcome != FINISHED:
        return None
    submissions = run.submissions()
    if len(submissions) != 1:
        return None
    return (from_iso(final.committed) - from_iso(submissions[0].submitted)).total_seconds()


def last_seconds(task_instance: Any, last: RunLocation | None) -> float | None:
    """Return the seconds of the last run; None if they are unknown, for whatever reason.

    Args:
        task_instance: Airflow's, which knows the task's last success: the job directory of a slice
            has no earlier run.
        last: the last run in the task's own job directory; None without one.
    """
    try:
        location = last or _last_success(task_instance)
        return seconds_of(directory_at(location.job_dir).run(location.run_id)) if location else None
    except Exception as error:  # noqa: BLE001 - the run is worth more than a guess about it
        log.info("The seconds of the last run are not known: %s", error)
        return None


def _last_success(task_instance: Any) -> RunLocation | None:
    get_previous = getattr(task_instance, "get_previous_ti", None)  # of Airflow 3.2
    if get_previous is None:
        return None
    last = get_previous(state="success", map_index=task_instance.map_index)
    if last is None:
        return None
    location = task_instance.xcom_pull(key=STREAM_KEY, run_id=last.run_id)
    return RunLocation(**location) if location else None
