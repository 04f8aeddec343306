"""Submission of a driver: from the intent to the run on its cluster; nothing is lost in between.

:func:`submit_through` is the same for every launcher; the table of
:mod:`~airflow_provider.runtime.api.launchers` has the crashes of a run on a cluster. For
``spark-submit``: ``submissions/<driver id>.process.json`` is put if absent, by the process that is
about to start it, or by the next try that finds an intent without a process. One of the two wins,
whatever has died or is only late; no clock is read.

==========================  ========================================================================
a crash, or a long pause    what the next try finds, and does
==========================  ========================================================================
before the intent           nothing: it submits
``submission.intended``     an intent: it revokes it, and submits. A launcher that comes up after
                            that starts nothing
``submission.launched``     the same, or the launcher, which it adopts with its driver
``submission.entered``      (the launcher's) a process that is gone: it submits
``submission.started``      (the launcher's) ``spark-submit``, which continues: it adopts the driver
==========================  ========================================================================

The token of a submission is its driver id: it is in the command line, in its record, in the
application's name, tags or labels, in the lease that the driver takes, and in its attempt.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.api.launchers import Application
from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.base.host import identify
from airflow_provider.runtime.base.retry import Retries, RetryPolicy
from airflow_provider.runtime.control.spark_submit import SparkSubmitLauncher, WarmSettings
from airflow_provider.runtime.errors import LauncherAwayError, LeaseHeldError
from airflow_provider.runtime.jobdir.submissions import ProcessRecord
from airflow_provider.runtime.observe.state import RunState, driver_at_work

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from airflow_provider.runtime.api.launchers import Handle, Launcher
    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.jobdir.layout import RunDirectory
    from airflow_provider.runtime.jobdir.run_spec import DriverSpec
    from airflow_provider.runtime.jobdir.submissions import SubmissionRecord
    from airflow_provider.runtime.observe.snapshot import RunSnapshot
    from airflow_provider.runtime.observe.state import Assessment


# Who holds a worker has Airflow's retries, too, and each of them submits the same token again.
AGAIN: Final = RetryPolicy(first_s=1.0, longest_s=8.0, for_s=60.0, failures=5)


def submit_driver(
    run: RunDirectory,
    record: SubmissionRecord,
    *,
    job_dir: str,
    log: Path,
    command: Sequence[str],
    warm: WarmSettings | None = None,
    environment: Mapping[str, str],
) -> None:
    """Submit a driver with ``spark-submit``, or give the run to a warm driver; see the table above.

    It returns without waiting for the driver; a busy warm driver is waited for up to eight seconds.
    """
    launcher = SparkSubmitLauncher(
        run=run,
        job_dir=job_dir,
        log_file=log,
        command=lambda _: command,
        warm=warm,
        environment=environment,
    )
    _intend(run, record)
    launcher.submit(Application(arguments=()), record.driver_id)


def submit_through(
    launcher: Launcher,
    application: Application,
    *,
    run: RunDirectory,
    record: SubmissionRecord,
    clock: Clock,
) -> Handle:
    """Store the intent, submit the driver to a cluster, and store its handle.

    Raises:
        ConfigError: the cluster refuses it; nothing was started.
        LauncherAwayError: perhaps it was started; the next try submits it again, with its token.

    Crash safety: see the table of the launchers' protocol.
    Idempotent: by the driver id of *record*.
    """
    _intend(run, record)
    handle = _submit(launcher, application, record.driver_id, Retries(AGAIN, clock))
    failpoints.hit("launch.submitted")
    run.put_handle(handle)
    return handle


def _submit(launcher: Launcher, application: Application, token: str, retries: Retries) -> Handle:
    while True:
        try:
            return launcher.submit(application, token)
        except LauncherAwayError:
            if not retries.failed():
                raise
            retries.pause()


def _intend(run: RunDirectory, record: SubmissionRecord) -> None:
    run.put_submission(record)
    failpoints.hit("submission.intended")


def unsubmitted(run: RunDirectory, spec: DriverSpec, kind: str) -> SubmissionRecord | None:
    """Return the last intent to submit again with its token; None for another submission."""
    submissions = run.submissions()
    last = submissions[-1] if submissions else None
    if last is None or last.launcher != kind or last.driver_id not in run.unstarted():
        return None
    if run.end_of(last.driver_id) is not None:
        return None
    return last if spec.is_what_was_sent(last) else None


def revoke_unstarted(run: RunDirectory) -> bool:
    """Revoke every unstarted intent for this machine; return False if one has begun meanwhile."""
    local = {each.driver_id for each in run.submissions() if each.launcher is None}
    return all(_revoke(run, driver_id) for driver_id in run.unstarted() if driver_id in local)


def revoke_others(run: RunDirectory, driver_id: str) -> None:
    """Revoke the intents for clusters of which no handle is known, but for one. Idempotent."""
    for other in run.unstarted():
        if other != driver_id:
            _revoke(run, other)


def check_not_revoked(run: RunDirectory, driver_id: str) -> None:
    """Refuse to be a driver whose intent was revoked: the next try has submitted another one."""
    process = run.process_of(driver_id)
    if process is not None and process.is_revoked:
        raise LeaseHeldError(
            f"{run.storage.url}: driver {driver_id} was given up before it came up, and another "
            "one was submitted in its place"
        )


def _revoke(run: RunDirectory, driver_id: str) -> bool:
    nobody = ProcessRecord(identity=identify([]), is_revoked=True)
    return nobody.put_if_absent(run.storage, f"submissions/{driver_id}.process.json")


ON_EXISTING: Final = ("adopt", "wait", "fail")


class Action(str, enum.Enum):
    """What a task does about the state of the job directory."""

    FINISH = "finish"
    ADOPT = "adopt"
    WAIT = "wait"  # for the end of a driver that is in the way
    SUBMIT = "submit"
    REFUSE = "refuse"


@dataclasses.dataclass(frozen=True)
class Decision:
    """An action, and the driver it is about."""

    action: Action
    driver_id: str | None = None
    reason: str = ""
    ends_replaced: bool = False


def reconcile(
    snapshot: RunSnapshot,
    assessment: Assessment,
    *,
    on_existing: str = "adopt",
    replays: str | None = None,
    is_leaving: bool = False,
) -> Decision:
    """Decide what a task does about the state of the job directory; pure.

    ======================================  ======================================================
    found                                   what follows
    ======================================  ======================================================
    the final checkpoint                    FINISH
    another run's live driver               REFUSE; WAIT with ``on_existing="wait"``, and for the
                                            replaced run, whose driver is stopped
    this run's driver, requested to end     WAIT for its end
    this run's driver, alive or starting    ADOPT it; REFUSE with ``on_existing="fail"``
    nothing, an unstarted intent, or a      SUBMIT; an unstarted intent is revoked
    driver that has ended or not come up
    ======================================  ======================================================

    Airflow's own stores are not read: they may be empty, of another run, or gone.
    """
    if assessment.run_state.is_done:
        return Decision(Action.FINISH)
    if assessment.run_state is RunState.FOREIGN:
        is_replaced = snapshot.lease is not None and snapshot.lease.run_id == replays
        waits = on_existing == "wait" or is_replaced
        return (
            Decision(Action.WAIT, ends_replaced=is_replaced)
            if waits
            else Decision(Action.REFUSE, reason=assessment.reason)
        )
    driver_id = driver_at_work(snapshot, assessment.run_state)
    if driver_id is None:
        return Decision(Action.SUBMIT)
    if is_leaving:
        return Decision(Action.WAIT, driver_id)
    if on_existing == "fail":
        reason = f"driver {driver_id} of this run is alive, and on_existing is 'fail'"
        return Decision(Action.REFUSE, driver_id, reason)
    return Decision(Action.ADOPT, driver_id)
