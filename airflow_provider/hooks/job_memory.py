"""Airflow's memory of a job directory: the identity of the job that a task has begun there.

A job directory that is not mounted, or was emptied, looks new. Each identity is therefore also in
an Airflow variable, which outlives tries, clears, DAG runs and ``airflow db clean``. It is set
before the first driver is submitted, and deleted when a run has FINISHED, or by a user.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.api.sinks import key_of
from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.errors import OutageError
from airflow_provider.runtime.jobdir.identity import (
    add_predecessors,
    begin_identity,
    check_not_emptied,
    check_remembered,
    lineage_of,
)
from airflow_provider.runtime.jobdir.layout import directory_at

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow.sdk import Context


log = logging.getLogger(__name__)

_PREFIX: Final = "spark_stream_job."
_DESCRIPTION: Final = (
    "The streaming job whose job directory is at this address; written by its tasks. Delete it "
    "only to let a task begin a new job in an empty job directory"
)


def variable_of(url: str) -> str:
    """Return the name of the variable of a job directory."""
    return _PREFIX + key_of(url)


def identity_in(stored: Any) -> str | None:
    """Return the identity in a variable's value; None if it has none."""
    found = stored.get("identity") if isinstance(stored, dict) else None
    return str(found) if found is not None else None


class JobMemory:
    """The identity that Airflow remembers of one job directory."""

    def __init__(self, job_dir: str) -> None:
        self._directory = directory_at(job_dir)
        self._name = variable_of(self._directory.url)

    def check(self, followed: Callable[[], Sequence[str]] = tuple) -> None:
        """Refuse a job directory that is not the remembered one; remember a job begun elsewhere.

        Args:
            followed: returns the identities that a new job may follow; called only on a mismatch.

        Raises:
            ConfigError: the message names the missing identity, and the fixes.
        """
        storage, url = self._directory.storage, self._directory.url
        remembered, lineage = self._identity(), lineage_of(storage)
        if remembered is not None and remembered not in lineage:
            check_remembered(url, remembered, lineage, followed=followed())
        check_not_emptied(storage)
        if lineage and remembered != lineage[0]:
            self._remember(lineage[0])

    def check_same(self) -> None:
        """Refuse a job directory that is not the remembered one; for tasks that begin no job."""
        remembered = self._identity()
        if remembered is not None:
            directory = self._directory
            check_remembered(directory.url, remembered, lineage_of(directory.storage))

    def begin(self, followed: Callable[[], Sequence[str]] = tuple) -> None:
        """Give the job directory an identity, and remember it, before a driver is submitted.

        Raises:
            OutageError: Airflow has not stored it; no driver may be submitted.

        Crash safety: the identity is put first; the next try remembers it. Idempotent.
        """
        remembered, clock = self._identity(), SystemClock()
        identity = begin_identity(self._directory.storage, clock)
        if remembered not in {None, *lineage_of(self._directory.storage)}:
            known = [each for each in followed() if each == remembered]
            add_predecessors(self._directory.storage, known, "a task's argument", clock)
        if remembered != identity:
            self._remember(identity)

    def forget(self) -> None:
        from airflow.sdk import Variable

        if Variable.get(self._name, default=None) is not None:
            Variable.delete(self._name)

    def _identity(self) -> str | None:
        from airflow.sdk import Variable

        return identity_in(Variable.get(self._name, default=None, deserialize_json=True))

    def _remember(self, identity: str) -> None:
        from airflow.sdk import Variable

        value = {"job_dir": self._directory.url, "identity": identity}
        Variable.set(self._name, value, _DESCRIPTION, serialize_json=True)
        if self._identity() != identity:  # Airflow before 3.3 logs a refused write, and returns
            raise OutageError(
                f"{self._directory.url}: Airflow did not store the variable {self._name}, without "
                "which a retry could take an emptied job directory for a new job; see the API "
                "server's log, and clear the task"
            )
        log.info("%s: the job here has the identity %s", self._directory.url, identity)


STREAM_KEY: Final = "spark_stream"
"""The XCom's key; a page of another version looks for the same."""


def push_stream(context: Context, job_dir: str, run_id: str) -> None:
    """Store this task instance's job for the page "Streams"; a later try replaces it."""
    context["ti"].xcom_push(key=STREAM_KEY, value={"job_dir": job_dir, "run_id": run_id})
