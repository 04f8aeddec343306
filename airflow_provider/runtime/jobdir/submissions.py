"""Submission documents: the DAG run, the intent, the launcher, the exit."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from airflow_provider.runtime.api.launchers import Handle, LaunchState, LaunchStatus
from airflow_provider.runtime.base.host import ProcessIdentity
from airflow_provider.runtime.base.typed_json import Address, Name, NonNegative, Seconds
from airflow_provider.runtime.storage.documents import Contents, Document


@dataclasses.dataclass(frozen=True, kw_only=True)
class SubmissionRecord(Document):
    """``submissions/<driver id>.json``: the intent to start a driver, put before it starts.

    Attributes:
        number: orders the run's submissions, independent of clocks.
        is_remote: whether the driver runs in deploy mode cluster, so that the end of the submitting
            process says nothing of the driver's.
        launcher: the launcher to ask about the driver until it has the lease; None for
            ``spark-submit``.
    """

    CONTENTS = Contents.FACTS
    PLACES = ("submissions/{driver_id}.json",)

    driver_id: Name
    run_id: Name
    submitted: str
    log: Address | None
    number: NonNegative = 0
    is_remote: bool = False
    launcher: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOwnerRecord(Document):
    """``runs/<run id>/owner.json``: the DAG run that began the run; put once.

    Attributes:
        run_type: Airflow's kind. A backfill that clears a run takes it over.
    """

    CONTENTS = Contents.FACTS
    NAME: ClassVar[str] = "owner.json"
    PLACES = ("runs/*/owner.json",)

    dag_id: str
    dag_run_id: str
    run_type: str
    slice: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessRecord(Document):
    """``submissions/<driver id>.process.json``: the process that looks after the driver; put once.

    Attributes:
        is_revoked: whether the next try has found no process behind the intent, and none may start.
        waits_for: what the launcher waits for before it starts the driver; empty for nothing.
    """

    CONTENTS = Contents.FACTS
    PLACES = ("submissions/*.process.json",)

    identity: ProcessIdentity
    is_revoked: bool = False
    waits_for: str = ""

    @property
    def driver_is_gone(self) -> bool:
        """Whether the driver has certainly ended, while the launcher, which comes first, lives."""
        started = dataclasses.replace(self.identity, processes=self.identity.processes[1:])
        return started.is_gone() and not self.identity.is_gone()


@dataclasses.dataclass(frozen=True, kw_only=True)
class LostRecord(Document):
    """``submissions/<driver id>.lost.json``: a watcher's wait for it to come up has timed out.

    It may come up all the same; then it drives the job like any other.

    Attributes:
        waited_s: on the watcher's own monotonic clock.
    """

    CONTENTS = Contents.FACTS
    PLACES = ("submissions/*.lost.json",)

    waited_s: Seconds


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExitRecord(Document):
    """``submissions/<driver id>.exit.json``: how the driver's process ended.

    Attributes:
        last_lines: the end of the driver's log, for the task's error.
    """

    CONTENTS = Contents.LOG
    PLACES = ("submissions/*.exit.json",)

    exit_code: int
    ended: str
    last_lines: list[str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class HandleRecord(Handle, Document):
    """``submissions/<driver id>.handle.json``: the driver's run on a cluster; put once."""

    CONTENTS = Contents.FACTS
    PLACES = ("submissions/{driver_id}.handle.json",)

    driver_id: Name


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaunchStatusRecord(Document):
    """``submissions/<driver id>.status.json``: a launcher's last answer about the run.

    For processes without a connection to the cluster.

    Attributes:
        state: ``queued``, ``running``, ``ended``, ``gone`` or ``unknown``; the first final one
            stays.
        exit_code: of the driver's process; None if the cluster reports none.
        reason: one line of the cluster's own, which may be a line of the driver's log; or empty.
        at: by the watcher's clock; for people.
    """

    CONTENTS = Contents.LOG
    PLACES = ("submissions/*.status.json",)

    state: str
    exit_code: int | None = None
    reason: str = ""
    at: str

    @classmethod
    def of(cls, status: LaunchStatus, at: str) -> LaunchStatusRecord:
        return cls(
            state=status.state.value, exit_code=status.exit_code, reason=status.reason, at=at
        )

    def status(self) -> LaunchStatus:
        """Return the answer; a state of a newer version is ``UNKNOWN``."""
        known = {each.value for each in LaunchState}
        state = LaunchState(self.state) if self.state in known else LaunchState.UNKNOWN
        return LaunchStatus(state, self.exit_code, self.reason)
