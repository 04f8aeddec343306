"""Upgrades: one version of a job takes the place of another one, in a directory of its own.

The record lies with the old version, and decides which of the two may run. Each step is put before
what follows from it is done, so the same command goes on after a crash:

=====================  =============================  ==========================================
step                   a crash from here on leaves    the same command
=====================  =============================  ==========================================
none                   the old version, at work       checks the new version, and begins
``stopping``           the old version, at work, or   asks for the same stop; of one that has
                       its savepoint                  ended, takes the savepoint
``trial``              the new version, at work, or   resumes the new version; its probation
                       half begun                     begins again
``accepted``           the new version in force       resumes the new version
``rejected``           rows of the new version, some  takes back the others
                       of them taken back
``rolled back``        the old version in force       resumes the old version
=====================  =============================  ==========================================

From ``stopping`` on nobody else starts the old version, and from ``accepted`` on nobody does.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Final

from airflow_provider.runtime.errors import ConfigError, IllegalTransitionError
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.names import derive_run_id
from airflow_provider.runtime.storage.documents import Document
from airflow_provider.runtime.storage.open import open_storage
from airflow_provider.runtime.typed_json import Address, IsoTime, Name


class UpgradeStep(str, enum.Enum):
    """How far an upgrade has come."""

    STOPPING = "stopping"
    TRIAL = "trial"
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    ROLLED_BACK = "rolled back"


_NEXT: Final = {
    UpgradeStep.STOPPING: {UpgradeStep.TRIAL, UpgradeStep.ROLLED_BACK},
    UpgradeStep.TRIAL: {UpgradeStep.ACCEPTED, UpgradeStep.REJECTED},
    UpgradeStep.REJECTED: {UpgradeStep.ROLLED_BACK},
    UpgradeStep.ACCEPTED: set(),
    UpgradeStep.ROLLED_BACK: set(),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpgradeRecord(Document):
    """``upgrades/<id>.json``, in the directory of the old version.

    Attributes:
        id: made of the address of the new version's directory, and the run of both that is tried.
        to: the new version's directory.
        entry: the new version's function.
        old_run_id: the run of the old version that is stopped, whose options it goes on with.
        savepoint: with which the new version begins; None before it is taken.
        reason: why it was rejected, or was not begun; empty for no reason.
    """

    PLACES = ("upgrades/{id}.json",)

    id: Name
    to: Address
    entry: str
    old_run_id: Name
    began: IsoTime
    step: UpgradeStep = UpgradeStep.STOPPING
    savepoint: Address | None = None
    reason: str = ""

    def after(
        self, step: UpgradeStep, *, savepoint: str | None = None, reason: str = ""
    ) -> UpgradeRecord:
        """Return the record of the next step.

        Raises:
            IllegalTransitionError: it does not follow this one; a bug.
        """
        if step not in _NEXT[self.step]:
            msg = f"upgrade {self.id}: {step.value} does not follow {self.step.value}"
            raise IllegalTransitionError(msg)
        return dataclasses.replace(
            self,
            step=step,
            savepoint=savepoint or self.savepoint,
            reason=reason or self.reason,
        )

    @property
    def is_accepted(self) -> bool:
        """Tell whether the new version is in force."""
        return self.step is UpgradeStep.ACCEPTED

    @property
    def forbids_old(self) -> bool:
        """Tell whether nobody but the upgrade may start the old version."""
        return self.step is not UpgradeStep.ROLLED_BACK


def upgrade_id(to: str) -> str:
    """Return the id of the upgrade to the version in a directory, given by its address."""
    return derive_run_id(f"upgrade-{to}")


def read_upgrade(directory: JobDirectory, number: str) -> UpgradeRecord | None:
    """Return the upgrade of an id; None when it was never begun."""
    return UpgradeRecord.read(directory.storage, _path(number))


def put_upgrade(directory: JobDirectory, record: UpgradeRecord) -> UpgradeRecord:
    """Store the record of an upgrade, and return it. Idempotent: by id and step."""
    record.put(directory.storage, _path(record.id))
    return record


def upgrade_in_force(directory: JobDirectory) -> UpgradeRecord | None:
    """Return the upgrade for which the version in a directory is not started; None for none."""
    names = [name for name in directory.storage.list("upgrades") if name.endswith(".json")]
    found = (read_upgrade(directory, name.removesuffix(".json")) for name in sorted(names))
    return next((each for each in found if each is not None and each.forbids_old), None)


def upgrade_from(directory: JobDirectory, run_id: str) -> UpgradeRecord | None:
    """Return the upgrade for which a run was stopped, if its directory is not started any more."""
    upgrade = upgrade_in_force(directory)
    return upgrade if upgrade is not None and upgrade.old_run_id == run_id else None


def check_may_begin(directory: JobDirectory, new: JobDirectory) -> None:
    """Refuse an upgrade that the two directories forbid; nothing is written.

    Raises:
        ConfigError: another upgrade is in force, or the new directory is in use.
    """
    standing = upgrade_in_force(directory)
    if standing is not None:
        raise ConfigError(standing_of(directory.url, standing))
    if new.job() is not None or new.query_names():
        msg = f"{new.url}: there is a job already; a new version needs a new directory"
        raise ConfigError(msg)


def rejection_of(upgrade: UpgradeRecord) -> str:
    """Return that a version was rejected, and why."""
    return f"the version in {upgrade.to} was rejected: {upgrade.reason}"


@dataclasses.dataclass(frozen=True)
class Version:
    """A version of a job, with what its run was begun with.

    Attributes:
        job_dir: its directory.
        entry: its function.
        run_id: its run; after a stop the run has successors.
        from_savepoint: what it has begun from; empty for nothing, as a template renders it.
    """

    job_dir: str
    entry: str
    run_id: str
    from_savepoint: str = ""


def version_in_force(first: Version, *, before: str | None = None) -> Version:
    """Return the version that accepted upgrades have led to.

    While an upgrade is under way, that is the old version.

    Args:
        first: the version that the job began with.
        before: the directory of a version, for the version whose place that one takes, or has
            taken; None for the newest one.
    """
    last = JobDirectory(open_storage(before)).url if before is not None else None
    version = first
    while True:
        upgrade = upgrade_in_force(JobDirectory(open_storage(version.job_dir)))
        if upgrade is None or upgrade.step is not UpgradeStep.ACCEPTED or upgrade.to == last:
            return version
        version = Version(upgrade.to, upgrade.entry, upgrade.id, upgrade.savepoint or "")


def standing_of(url: str, upgrade: UpgradeRecord) -> str:
    """Return why the version in a directory is not started, and the way out."""
    if upgrade.step is UpgradeStep.ACCEPTED:
        return f"{url}: the version in {upgrade.to} has taken over; run that one"
    return (
        f"{url}: its upgrade to {upgrade.to} has not ended ({upgrade.step.value}); give the same "
        "'spark-stream upgrade' again, which goes on with it"
    )


def _path(number: str) -> str:
    return f"upgrades/{number}.json"
