"""Submission documents: the DAG run, the intent, the launcher, the end."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from airflow_provider.runtime.api.launchers import Handle, LaunchState, LaunchStatus
from airflow_provider.runtime.base.host import ProcessIdentity
from airflow_provider.runtime.base.typed_json import Address, IsoTime, Name, NonNegative, Seconds
from airflow_provider.runtime.storage.documents import Contents, Document, Written


@dataclasses.dataclass(frozen=True, kw_only=True)
class SubmissionRecord(Document):
    """``submissions/<driver id>.json``: the intent to start a driver, put before it starts.

    Attributes:
        command: what the driver does: ``run``, ``upgrade`` or ``bootstrap``.
        request: the values of that command's :class:`.DriverSpec`.
        number: orders the run's submissions, independent of clocks.
        is_remote: whether the driver runs in deploy mode cluster, so that the end of the submitting
            process says nothing of the driver's.
        launcher: the service that starts the driver; None for a process of the submitter's machine,
            ``spark-submit`` or the driver itself.
    """

    CONTENTS = Contents.FACTS
    LOCATIONS = ("runs/<run id>/submissions/{driver_id}.json",)
    WRITTEN = Written("once", "task or command, before it starts the driver", "no such driver")
    IS_EXACT = True

    driver_id: Name
    run_id: Name
    submitted: str
    log: Address | None
    command: str = "run"
    request: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    number: NonNegative = 0
    is_remote: bool = False
    launcher: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOwnerRecord(Document):
    """``runs/<run id>/owner.json``: the DAG run that began the run; put before its first driver.

    Attributes:
        run_type: Airflow's kind. A backfill that clears a run takes it over.
        max_tries: Airflow's number then, which only a clear raises; replaced by a clear before the
            run has begun.
        next_run_id: after a clear, the run that replaces this one and rewinds it.
    """

    CONTENTS = Contents.FACTS
    NAME: ClassVar[str] = "owner.json"
    LOCATIONS = ("runs/<run id>/owner.json",)
    WRITTEN = Written("replaced", "task", "a command began the run")

    dag_id: str
    dag_run_id: str
    run_type: str
    slice: str | None
    max_tries: int
    next_run_id: Name | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReturnRecord(Document):
    """``runs/<run id>/returned.json``: a task has returned the run's result, and so was green.

    Until then a clear of a task whose worker died asks for the result, not for another run.
    """

    CONTENTS = Contents.FACTS
    NAME: ClassVar[str] = "returned.json"
    LOCATIONS = ("runs/<run id>/returned.json",)
    WRITTEN = Written("once", "task or trigger, before it succeeds", "a clear returns the result")

    at: IsoTime


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessRecord(Document):
    """``submissions/<driver id>.process.json``: the process that looks after the driver; put once.

    Attributes:
        is_revoked: whether the next try has found no process behind the intent, and none may start.
        waits_for: what the launcher waits for before it starts the driver; empty for nothing.
        beat: grows while the process lives and its driver has not begun; 0 for one that does not
            beat.
    """

    CONTENTS = Contents.FACTS
    LOCATIONS = ("runs/<run id>/submissions/<driver id>.process.json",)
    WRITTEN = Written("completed", "launcher process, or the next try", "no process started it")

    identity: ProcessIdentity
    is_revoked: bool = False
    waits_for: str = ""
    beat: NonNegative = 0

    @property
    def driver_is_gone(self) -> bool:
        """Whether the driver has certainly ended, while the launcher, which comes first, lives."""
        started = dataclasses.replace(self.identity, processes=self.identity.processes[1:])
        return started.is_gone() and not self.identity.is_gone()


@dataclasses.dataclass(frozen=True, kw_only=True)
class HandleRecord(Handle, Document):
    """``submissions/<driver id>.handle.json``: the driver's run on a cluster, and its last state.

    Each writer writes the same handle, so a late writer only restores an older answer.

    Attributes:
        state: the launcher's last answer for processes without a connection to the cluster:
            ``queued``, ``running`` or ``unknown``; None before the first one.
        reason: one line of the cluster's own, which may be a line of the driver's log; or empty.
    """

    CONTENTS = Contents.LOG
    LOCATIONS = ("runs/<run id>/submissions/{driver_id}.handle.json",)
    WRITTEN = Written("replaced", "task or trigger", "not submitted to a cluster")

    driver_id: Name
    state: str | None = None
    reason: str = ""

    def handle(self) -> Handle:
        return Handle(
            driver_id=self.driver_id, launcher=self.launcher, id=self.id, location=self.location
        )

    def status(self) -> LaunchStatus | None:
        return _status(self.state, None, self.reason) if self.state is not None else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class DriverEnd(Document):
    """``submissions/<driver id>.end.json``: how the driver ended, or that it has not come up.

    A driver that has not come up in time may do so later; then it drives the job like any other.
    The first writer puts the document if absent. A later writer only adds what is missing, the end
    or the wait, so a late writer removes neither, and the first end stays.

    Attributes:
        state: ``ended``, or ``gone`` if the cluster has forgotten the driver; ``unknown`` after a
            wait, and after ``spark-submit`` has given the driver to a cluster and ended with 0.
        exit_code: of the driver's process, or of ``spark-submit``; None if it is not known.
        reason: one line of the cluster's own, which may be a line of the driver's log; or empty.
        last_lines: the end of the driver's log, for the task's error; empty on a cluster.
        at: by the writer's clock.
        waited_s: how long a watcher waited in vain for the driver to come up, on its own monotonic
            clock; None if no wait has timed out.
    """

    CONTENTS = Contents.LOG
    LOCATIONS = ("runs/<run id>/submissions/<driver id>.end.json",)
    WRITTEN = Written("completed", "launcher process, task or trigger", "no end is known")

    state: str
    exit_code: int | None = None
    reason: str = ""
    last_lines: list[str] = dataclasses.field(default_factory=list)
    at: str
    waited_s: Seconds | None = None

    def status(self) -> LaunchStatus:
        return _status(self.state, self.exit_code, self.reason)

    def with_missing(self, later: DriverEnd) -> DriverEnd:
        """Return this record with what only a later one knows."""
        known = later if later.status().is_over and not self.status().is_over else self
        waited_s = self.waited_s if self.waited_s is not None else later.waited_s
        return dataclasses.replace(known, waited_s=waited_s)


def _status(state: str, exit_code: int | None, reason: str) -> LaunchStatus:
    """Return the answer; a state of a newer version is ``UNKNOWN``."""
    known = {each.value: each for each in LaunchState}
    return LaunchStatus(known.get(state, LaunchState.UNKNOWN), exit_code, reason)
