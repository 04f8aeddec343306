"""Actions on a job, as the commands of ``spark-stream`` carry them out."""

from __future__ import annotations

import dataclasses
import secrets
from typing import TYPE_CHECKING, Final

from airflow_provider.plugins.shared_reads import savepoint_names
from airflow_provider.runtime.base.names import check_name
from airflow_provider.runtime.control.stop import savepoint_address
from airflow_provider.runtime.jobdir.layout import known_job
from airflow_provider.runtime.jobdir.lease import TAKEABLE
from airflow_provider.runtime.jobdir.requests import (
    STOP,
    find_request,
    put_cancel,
    put_request,
    read_reply,
)
from airflow_provider.runtime.savepoints.catalog import open_savepoint, verify_savepoint
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.savepoints.retention import dispose
from airflow_provider.runtime.savepoints.take import take_savepoint

if TYPE_CHECKING:
    from airflow_provider.plugins.shared_reads import ObservedJobs, SavepointCache
    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.jobdir.lease_records import LeaseRecord

ALIGNED_TIMEOUT_S: Final = 20.0  # of a savepoint: a person waits for it in front of a page


class OutdatedViewError(Exception):
    """The job has another driver than the user saw, or what was typed is not its name."""


@dataclasses.dataclass(frozen=True)
class ActionBody:
    """The body of an action's request.

    Attributes:
        token: the lease that the user saw; None when there was none.
        confirmed: the name that the user has typed to confirm.
        savepoint: the savepoint, or the name of the new one.
    """

    token: int | None
    confirmed: str | None = None
    savepoint: str | None = None


@dataclasses.dataclass(frozen=True)
class ActionAnswer:
    """The outcome of an action.

    Attributes:
        request_id: the request to the driver, by which the page polls for its answer.
    """

    message: str
    request_id: str | None = None
    is_done: bool = True
    is_ok: bool = True


class Actions:
    """Carries out the actions of users.

    Each action first compares the lease that the user saw with the current one, so that no user
    stops a driver that they have not seen.
    """

    def __init__(self, jobs: ObservedJobs, savepoints: SavepointCache, clock: Clock) -> None:
        self._jobs = jobs
        self._savepoints = savepoints
        self._clock = clock

    def stop(self, job_dir: str, body: ActionBody, *, drain: bool = False) -> ActionAnswer:
        """Ask the driver to end its batch, and then the run; with a savepoint if one is named."""
        directory = known_job(job_dir)
        lease = self._seen(directory, body)
        if drain:
            _check_typed(body, directory.name())
        saved = savepoint_address(directory.url, _new_name(body)) if body.savepoint else None
        request = put_request(
            directory.storage,
            STOP,
            lease.driver_id,
            self._clock,
            drain=drain,
            run_id=lease.run_id,
            token=lease.since,
            savepoint=saved,
        )
        what = "drain the job" if drain else "stop after its batch"
        return _asked(lease, what, request.id)

    def cancel(self, job_dir: str, body: ActionBody) -> ActionAnswer:
        """Ask the driver to end immediately; its run can be resumed."""
        directory = known_job(job_dir)
        lease = self._seen(directory, body)
        request_id = put_cancel(directory.storage, lease.driver_id, self._clock)
        return _asked(lease, "end at once", request_id)

    def take(self, job_dir: str, body: ActionBody) -> ActionAnswer:
        """Take a savepoint in the job's own folder."""
        directory = known_job(job_dir)
        self._compare(directory, body)
        taken = take_savepoint(
            job_source(job_dir, self._clock),
            f"{directory.url}/savepoints/{self._name(body)}",
            origin="manual",
            labels={},
            aligned_timeout_s=ALIGNED_TIMEOUT_S,
            clock=self._clock,
        )
        kind = "aligned" if taken.record.aligned else "unaligned"
        size = f"{taken.record.bytes:,} bytes"
        return ActionAnswer(f"Savepoint {taken.folder} is complete: {kind}, {size}.")

    def verify(self, job_dir: str, body: ActionBody) -> ActionAnswer:
        """Compare every file of a savepoint with its size and checksum."""
        directory = known_job(job_dir)
        self._compare(directory, body)
        savepoint = open_savepoint(_listed(directory, body))
        wrong = verify_savepoint(savepoint)
        if wrong:
            return ActionAnswer("; ".join(wrong[:5]), is_ok=False)
        files = sum(len(query.files) for query in savepoint.record.queries.values())
        size = f"{files} files, {savepoint.record.bytes:,} bytes"
        return ActionAnswer(f"Savepoint {savepoint.folder} is all right: {size}.")

    def dispose(self, job_dir: str, body: ActionBody) -> ActionAnswer:
        """Remove a savepoint whose name the user has typed."""
        directory = known_job(job_dir)
        self._compare(directory, body)
        url = _listed(directory, body)
        _check_typed(body, body.savepoint)
        dispose(url, clock=self._clock)
        self._savepoints.forget(url)
        return ActionAnswer(f"Savepoint {body.savepoint} is disposed of.")

    def answer(self, job_dir: str, request_id: str) -> ActionAnswer:
        """Return what the driver has answered to a request so far."""
        directory = known_job(job_dir)
        request = find_request(directory.storage, check_name(request_id, what="request"))
        if request is None:
            raise LookupError(request_id)
        reply = read_reply(directory.storage, request.id)
        if reply is not None:
            message = reply.message
            if reply.ok and request.savepoint:
                message += f" Its savepoint is {request.savepoint}."
            return ActionAnswer(message, request.id, is_ok=reply.ok)
        lease, liveness = self._jobs.lease(job_dir)
        is_gone = lease is None or lease.driver_id != request.driver_id or liveness in TAKEABLE
        if is_gone:
            message, is_ok = "The driver has ended without an answer.", request.kind != STOP
            return ActionAnswer(message, request.id, is_ok=is_ok)
        return ActionAnswer("The driver has not answered yet.", request.id, is_done=False)

    def _compare(self, directory: JobDirectory, body: ActionBody) -> LeaseRecord | None:
        """Return the lease of the driver that runs, which must be the one that the user saw."""
        lease, liveness = self._jobs.lease(directory.url)
        running = lease if lease is not None and liveness not in TAKEABLE else None
        token = lease.since if lease is not None else None
        if token != body.token:
            raise OutdatedViewError(
                "another driver has taken over since you looked; look at the job, and ask again"
            )
        return running

    def _seen(self, directory: JobDirectory, body: ActionBody) -> LeaseRecord:
        lease = self._compare(directory, body)
        if lease is None:
            raise OutdatedViewError("no driver is running this job, so there is nothing to end")
        return lease

    def _name(self, body: ActionBody) -> str:
        made = f"manual-{self._clock.now():%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"
        return _new_name(body) if body.savepoint else made


def _asked(lease: LeaseRecord, what: str, request_id: str) -> ActionAnswer:
    message = f"The driver of run {lease.run_id} is asked to {what}."
    return ActionAnswer(message, request_id, is_done=False)


def _new_name(body: ActionBody) -> str:
    return check_name(body.savepoint or "", what="savepoint")


def _listed(directory: JobDirectory, body: ActionBody) -> str:
    name = body.savepoint or ""
    location = directory.storage.at("savepoints")
    if name not in savepoint_names(location):
        raise LookupError(name)
    return location.at(name).url


def _check_typed(body: ActionBody, name: str | None) -> None:
    if name is None or body.confirmed != name:
        raise OutdatedViewError(f"type the name {name!r} to confirm")
