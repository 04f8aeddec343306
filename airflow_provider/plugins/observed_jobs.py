"""Observed jobs: one look at a job directory, with what earlier looks have learnt of its lease."""

from __future__ import annotations

import collections
import dataclasses
import threading
from typing import TYPE_CHECKING, Final

from airflow_provider.plugins.responses import LeaseView
from airflow_provider.runtime.errors.explanation import screen_lines
from airflow_provider.runtime.jobdir.layout import JobDirectory, directory_at
from airflow_provider.runtime.jobdir.lease import LeaseObserver, Liveness
from airflow_provider.runtime.jobdir.runs import newest_run
from airflow_provider.runtime.observe.snapshot import read_snapshot
from airflow_provider.runtime.observe.state import IN_AIRFLOW, assess, run_condition
from airflow_provider.runtime.storage.open import credentials_in_use, open_storage

if TYPE_CHECKING:
    from airflow_provider.runtime.api.launchers import LaunchStatus
    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.jobdir.lease_records import LeaseRecord
    from airflow_provider.runtime.jobdir.run_records import RunRecord
    from airflow_provider.runtime.observe.snapshot import RunSnapshot
    from airflow_provider.runtime.observe.state import RunCondition
    from airflow_provider.runtime.storage.open import StoreCredentials

_MOST_OBSERVERS: Final = 1000


@dataclasses.dataclass(frozen=True)
class Observed:
    """What one look at a job has shown.

    Attributes:
        run_id: the newest run; None when nobody has begun one.
        record: its options; None before its first attempt.
        condition: of that run, in people's words.
    """

    directory: JobDirectory
    name: str | None
    run_id: str | None
    record: RunRecord | None = None
    view: RunSnapshot | None = None
    condition: RunCondition | None = None

    @property
    def lease(self) -> LeaseView | None:
        """Return the newest lease and what is known of its holder; None when there is none."""
        if self.view is None or self.view.lease is None:
            return None
        return lease_view(self.view.lease, self.view.liveness)


@dataclasses.dataclass
class _Watch:
    observer: LeaseObserver
    turn: threading.Lock = dataclasses.field(default_factory=threading.Lock)


class ObservedJobs:
    """Looks at jobs; whether a driver elsewhere lives is known from the second look on.

    Args:
        clock: measures how long a heartbeat has not changed.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Who opens a job with other credentials must not see it through these.
        self._watches: collections.OrderedDict[tuple[str, StoreCredentials | None], _Watch] = (
            collections.OrderedDict()
        )
        self._lock = threading.Lock()

    def look(self, job_dir: str) -> Observed:
        """Look once at the newest run of a job.

        Raises:
            OSError: the storage cannot be read.
            CheckpointError: a document is damaged.
            ConfigError: no job can lie there, or it is of a newer version.
        """
        directory = directory_at(job_dir)
        name = directory.name()
        newest = newest_run(directory)
        run_id = newest.run_id if newest is not None else directory.submitted_run()
        if run_id is None:
            return Observed(directory, name, None)
        watch = self._watch(job_dir)
        with watch.turn:
            view = without_log(read_snapshot(directory, run_id, observer=watch.observer))
        condition = run_condition(view, assess(view), steps=IN_AIRFLOW)
        return Observed(directory, name, run_id, newest, view, condition)

    def lease(self, job_dir: str) -> tuple[LeaseRecord | None, Liveness]:
        """Return a job's newest lease, and what is known of its holder by now.

        Raises:
            OSError: the storage cannot be read.
        """
        watch = self._watch(job_dir)
        with watch.turn:
            return watch.observer.look()

    def _watch(self, job_dir: str) -> _Watch:
        key = (job_dir, credentials_in_use())
        with self._lock:
            watch = self._watches.get(key)
            if watch is None:
                watch = _Watch(LeaseObserver(open_storage(job_dir), self._clock))
                self._watches[key] = watch
            self._watches.move_to_end(key)
            while len(self._watches) > _MOST_OBSERVERS:
                self._watches.popitem(last=False)
            return watch


def without_log(view: RunSnapshot) -> RunSnapshot:
    """Return a view without the driver's log, except for the error that the driver has reported.

    Any other line of a log needs a right that the page's views do not ask for.
    """
    ended, launch = view.exit, view.launch
    if ended is not None:
        ended = dataclasses.replace(ended, last_lines=screen_lines(ended.last_lines))
    if launch is not None:
        launch = answer_without_log(launch)
    return dataclasses.replace(view, exit=ended, launch=launch)


def answer_without_log(answer: LaunchStatus) -> LaunchStatus:
    """Return a launcher's answer without its reason, which may be a line of the driver's log."""
    return dataclasses.replace(answer, reason="")


def lease_view(lease: LeaseRecord, liveness: Liveness) -> LeaseView:
    """Return what people see of a lease."""
    return LeaseView(
        token=lease.since,
        run_id=lease.run_id,
        driver_id=lease.driver_id,
        host=lease.owner.host,
        acquired=lease.acquired,
        liveness=liveness.value,
    )
