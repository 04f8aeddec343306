"""The driver that a task waits for, and where it runs."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from airflow_provider.runtime.jobdir.layout import RunDirectory
    from airflow_provider.runtime.jobdir.lease_records import LeaseRecord
    from airflow_provider.runtime.jobdir.submissions import SubmissionRecord


class DriverHome(enum.Enum):
    """Where a driver runs, seen from the task's process."""

    HERE = "here"  # among the processes of the task's machine or container
    SUBMITTED = "submitted"  # on a cluster, to which a process of this machine gives it
    ELSEWHERE = "elsewhere"  # on another machine, or on a cluster that a service gave it to

    @classmethod
    def of_new(cls, driver: SubmissionRecord) -> DriverHome:
        """Return the home of a driver that this task has submitted."""
        if driver.launcher is not None:
            return cls.ELSEWHERE
        return cls.SUBMITTED if driver.is_remote else cls.HERE

    @classmethod
    def of_found(cls, driver: SubmissionRecord, run: RunDirectory) -> DriverHome:
        """Return the home of a driver that another task has submitted, perhaps on this machine.

        A driver that another container or machine has is not touched by the end of this process.
        """
        process = run.process_of(driver.driver_id)
        if process is not None and process.identity.is_of_other_processes():
            return cls.ELSEWHERE
        return cls.of_new(driver)


class AwaitedDriver(NamedTuple):
    """The driver that a task waits for, and its log.

    Attributes:
        driver_id: None for another run's driver that must end first.
        submitted: when; None if unknown.
        last_run: the job's last run before this one; None if unknown.
        home: where it runs.
    """

    driver_id: str | None = None
    log: str | None = None
    submitted: str | None = None
    last_run: str | None = None
    home: DriverHome = DriverHome.ELSEWHERE

    @classmethod
    def of(cls, driver: SubmissionRecord, lease: LeaseRecord | None = None) -> AwaitedDriver:
        """Return a driver of this task; *lease* is the job's newest, from before it had one."""
        last = lease.run_id if lease is not None and lease.run_id != driver.run_id else None
        home = DriverHome.of_new(driver)
        return cls(driver.driver_id, driver.log, driver.submitted, last, home)

    @classmethod
    def found(cls, driver: SubmissionRecord, run: RunDirectory) -> AwaitedDriver:
        """Return a living driver of an earlier try, or of another task of this run."""
        return cls.of(driver)._replace(home=DriverHome.of_found(driver, run))
