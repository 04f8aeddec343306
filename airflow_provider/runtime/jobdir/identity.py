"""Identity of a job directory: its format, which job lies there, and which jobs it continues.

A mount may be missing, emptied, or hold another job. So the first submission or driver puts
``identity.json``, with a random identity that never changes. Airflow
(:mod:`airflow_provider.hooks.job_memory`) and each sink that can
(:class:`~airflow_provider.runtime.api.sinks.MarkedSink`) remember it. They accept the same
identity, or one that follows it, and refuse any other; they refuse a directory without one unless
the request names the lost identity.

The version of ``identity.json`` is that of the whole directory's format, so each entry into a
directory reads it first: :func:`check_format`.

A directory follows the identities in ``predecessors/``: those of its savepoints, and those given up
with ``replaces_job``.
"""

from __future__ import annotations

import dataclasses
import re
import uuid
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.base.clock import Clock, to_iso
from airflow_provider.runtime.base.typed_json import Address, IsoTime, Name
from airflow_provider.runtime.errors import ConfigError, UnsupportedVersionError
from airflow_provider.runtime.errors.fixes import FROM_SCRATCH, set_option
from airflow_provider.runtime.storage.documents import Contents, Document, Written

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Self

    from airflow_provider.runtime.api.storages import Storage

PATH: Final = "identity.json"
PREDECESSORS: Final = "predecessors"
_OF_A_JOB: Final = ("job.json", "leases", "queries")
_DIGITS: Final = 15  # of hexadecimal: a table's transaction number, 63 bits, can hold it


@dataclasses.dataclass(frozen=True)
class BootstrapPurpose:
    """What the scratch job directory of a bootstrap is for.

    Attributes:
        savepoint: the address of the savepoint that it makes.
        digest: distinguishes the histories that may be read for it.
    """

    savepoint: Address
    digest: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class IdentityRecord(Document):
    """``identity.json``: the directory's format and identity; put before anything else.

    Attributes:
        identity: random; the same in every copy of the directory, such as a backup.
        bootstrap: the purpose of a scratch directory; None for a job's own.
    """

    VERSION: ClassVar[int] = 2  # of the format of the whole directory
    OLDEST: ClassVar[int] = 2
    CONTENTS = Contents.FACTS
    LOCATIONS = ("identity.json",)
    WRITTEN = Written("once", "first submission or driver", "a new directory, or a damaged one")

    identity: Name
    made: IsoTime
    bootstrap: BootstrapPurpose | None = None

    @classmethod
    def from_dict(cls, raw: Any, *, where: str) -> Self:
        """Refuse a directory of an older format, too."""
        version = raw.get("version") if isinstance(raw, dict) else None
        if type(version) is int and version < cls.OLDEST:
            raise UnsupportedVersionError(
                f"{where.removesuffix(f'/{PATH}')}: this job directory has format {version}, of a "
                f"development version; this version reads format {cls.OLDEST}: give a new "
                f"directory a savepoint ({set_option('from_savepoint', 'URL')}), or "
                f"{FROM_SCRATCH}"
            )
        return super().from_dict(raw, where=where)

    def problem(self) -> str | None:
        return None if is_identity(self.identity) else f"identity: {self.identity!r} is none"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredecessorRecord(Document):
    """``predecessors/<identity>.json``: the job here continues the job of that identity.

    Attributes:
        reason: a savepoint's address, or ``replaces_job``.
    """

    CONTENTS = Contents.FACTS
    LOCATIONS = ("predecessors/{identity}.json",)
    WRITTEN = Written("once", "task, driver or restore", "the job continues no other")

    identity: Name
    reason: str
    at: IsoTime


def is_identity(text: str) -> bool:
    """Whether *text* has the form of an identity."""
    return re.fullmatch(rf"[0-9a-f]{{{_DIGITS}}}", text) is not None


def identity_of(storage: Storage) -> str | None:
    """Return the identity of the job directory at *storage*; None if it has none."""
    record = IdentityRecord.read(storage, PATH)
    return record.identity if record is not None else None


def check_format(storage: Storage) -> None:
    """Refuse a directory of another format; one without an identity has not begun.

    Raises:
        UnsupportedVersionError: the message names the directory and the fix.
    """
    identity_of(storage)


def lineage_of(storage: Storage) -> list[str]:
    """Return the directory's identity, then its predecessors'; empty if it has no identity."""
    identity = identity_of(storage)
    if identity is None:
        return []
    names = [name.removesuffix(".json") for name in storage.list(PREDECESSORS)]
    return [identity, *names]


def begin_identity(
    storage: Storage,
    clock: Clock,
    replaces_job: str | None = None,
    bootstrap: BootstrapPurpose | None = None,
) -> str:
    """Return the directory's identity; put one if it has none.

    Args:
        storage: the job directory.
        clock: for the records' times.
        replaces_job: the identity of a lost directory that this one follows; None for none.
        bootstrap: the purpose of a new scratch directory.

    Raises:
        ConfigError: the directory has a job's records and no identity: a part of it is missing.

    Crash safety: one document, put if absent; the same call adds the predecessor. Idempotent.
    """
    check_not_emptied(storage)
    made = to_iso(clock.now())
    record = IdentityRecord(identity=uuid.uuid4().hex[:_DIGITS], made=made, bootstrap=bootstrap)
    found = identity_of(storage)
    if found is None:
        is_new = record.put_if_absent(storage, PATH)
        failpoints.hit("identity.put")
        found = record.identity if is_new else identity_of(storage) or record.identity
    if replaces_job is not None:
        add_predecessors(storage, [replaces_job], "replaces_job", clock)
    return found


def check_not_emptied(storage: Storage) -> None:
    """Refuse a directory that has a job's records and no identity; nothing is written."""
    if identity_of(storage) is None:
        left = next((name for name in _OF_A_JOB if storage.exists(name)), None)
        if left is not None:
            raise ConfigError(
                f"{storage.url}: {left} is there, and {PATH} is not, so a part of the job "
                "directory is missing; mount or restore the whole directory, or "
                f"{FROM_SCRATCH}"
            )


def add_predecessors(
    storage: Storage, identities: Iterable[str], reason: str, clock: Clock
) -> None:
    """Record that the job here continues the jobs of *identities*. Idempotent."""
    known = lineage_of(storage)
    for identity in identities:
        if identity not in known:
            record = PredecessorRecord(identity=identity, reason=reason, at=to_iso(clock.now()))
            record.put_if_absent(storage, f"{PREDECESSORS}/{identity}.json")


def check_remembered(
    url: str, remembered: str | None, lineage: Iterable[str], *, followed: Iterable[str] = ()
) -> None:
    """Refuse a directory that is not the one in which a job was begun; pure.

    Args:
        url: the address of the job directory.
        remembered: the identity that the caller knows; None for none.
        lineage: from :func:`lineage_of`.
        followed: the identities that the request says a new job follows.
    """
    found = [*lineage]
    if remembered is None or remembered in found or remembered in followed:
        return
    there = f"has the identity {found[0]}" if found else f"has no {PATH}"
    raise ConfigError(
        f"{url}: the job that ran here has the identity {remembered}, and this directory {there}: "
        f"it was emptied, replaced, or is not mounted. {_fixes(remembered)}"
    )


def check_writers(sink: str, writers: Iterable[str], url: str, lineage: Iterable[str]) -> None:
    """Refuse an output that another job has written under the same address; pure.

    Args:
        sink: the sink's name.
        writers: the identities that have published there for the address *url*.
        url: the address of the job directory.
        lineage: the identities that the job may follow, its own among them.
    """
    strange = sorted(set(writers) - set(lineage))
    if strange:
        raise ConfigError(
            f"{sink}: was written by another job directory at {url}, with the identity "
            f"{strange[0]}, so the rows that this job would write may be there already. "
            f"{_fixes(strange[0])}"
        )


def _fixes(identity: str) -> str:
    return (
        "Mount or restore that directory. If it is lost, begin from a savepoint of its job, or "
        "say that a new job adds its rows to what is there: "
        f"{set_option('replaces_job', identity)}"
    )
