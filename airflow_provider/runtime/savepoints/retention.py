"""Retention of savepoints: which ones may go, how one is removed, and leftovers of attempts.

Only a folder with the mark of a savepoint is removed: ``savepoint.json``, or a claim. One of them
exists from before the first file until after the last one, so that the leftovers of a crash differ
from other files beside the savepoints.

=====================================  =============================================================
a crash                                leaves
=====================================  =============================================================
after the claim                        a savepoint
after ``savepoint.json`` is removed    a claim that has ended: garbage, which the next call collects
while files are removed                the same
while claims are removed               the same, or an empty folder
=====================================  =============================================================
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
from typing import TYPE_CHECKING, Protocol

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.base.clock import Clock, SystemClock, from_iso
from airflow_provider.runtime.base.names import is_name
from airflow_provider.runtime.errors import (
    CheckpointError,
    ConfigError,
    OutageError,
    SavepointBusyError,
    SparkStreamError,
    refusing,
)
from airflow_provider.runtime.jobdir.layout import directory_at
from airflow_provider.runtime.jobdir.upgrade_record import describe_version, upgrade_over
from airflow_provider.runtime.savepoints.catalog import (
    IncompleteSavepoint,
    Savepoint,
    check_no_job,
    find_savepoints,
    is_job,
    open_savepoint,
    read_folder,
)
from airflow_provider.runtime.savepoints.record import (
    MANIFEST,
    READ_ONLY,
    REMOVE,
    TAKE,
    SavedFile,
    SavepointClaimRecord,
    busy,
    check_origin,
    claim,
    end,
    forget_readers,
    is_held,
    last_claim,
    put_reader,
    reader_path,
    readers,
    release,
    withdraw,
    working_under,
)
from airflow_provider.runtime.savepoints.restores import why_awaited
from airflow_provider.runtime.storage.file_tree import (
    files_under,
    folders_in,
    remove_if_empty,
    remove_tree,
)
from airflow_provider.runtime.storage.open import local_path_of, open_storage

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.checkpoint.inventory import NeededFile
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.jobdir.upgrade_record import UpgradeRecord
    from airflow_provider.runtime.storage.file_tree import FileFacts


log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Retention:
    """The savepoints that may be removed: too many or too old ones.

    Each series (a job, and a task that saves it) is counted separately, and its newest one always
    stays. The job's history decides which one is newer, never a clock; see :func:`in_order`.

    Attributes:
        keep: how many of the newest ones of each series stay; None for any number.
        max_age_s: the largest age in seconds, by the clocks of its writer and of this machine; None
            for any age.
        origins: only savepoints of these origins are considered.
        just_taken: only its series is considered, of which it is the newest; None for all.
    """

    keep: int | None = None
    max_age_s: float | None = None
    origins: tuple[str, ...] = ("periodic",)
    just_taken: Savepoint | None = None

    def __post_init__(self) -> None:
        if self.keep is None and self.max_age_s is None:
            raise ConfigError("retention needs a number to keep, a greatest age, or both")
        if self.keep is not None and self.keep < 1:
            raise ConfigError(
                f"keep={self.keep}: at least the newest savepoint is kept, so 1 is the least"
            )
        for origin in self.origins:
            check_origin(origin)

    def expired(self, savepoints: Sequence[Savepoint], now: dt.datetime) -> list[Savepoint]:
        """Return the savepoints that may be removed, oldest first, never the newest of a series."""
        ours = [s for s in savepoints if s.record.origin in self.origins]
        if self.just_taken is not None:
            ours = [s for s in ours if s.record.series == self.just_taken.record.series]
        return [s for ordered in in_order(ours) for s in self._expired(ordered, now)]

    def _expired(self, ordered: list[Savepoint], now: dt.datetime) -> list[Savepoint]:
        mine = self.just_taken.folder if self.just_taken is not None else None
        ordered = sorted(ordered, key=lambda s: s.folder == mine)  # the last one, if it is there
        too_many = 0 if self.keep is None else len(ordered) - self.keep
        older = ordered[:-1]
        return [s for n, s in enumerate(older) if n < too_many or self._is_old(s, now)]

    def _is_old(self, savepoint: Savepoint, now: dt.datetime) -> bool:
        if self.max_age_s is None:
            return False
        taken = from_iso(savepoint.record.taken)
        return (now - taken).total_seconds() > self.max_age_s


class RetentionRule(Protocol):
    """A policy that chooses the savepoints to remove; :class:`Retention` is one."""

    def expired(self, savepoints: Sequence[Savepoint], now: dt.datetime) -> list[Savepoint]:
        """Return the savepoints that may be removed."""


def in_order(savepoints: Iterable[Savepoint]) -> list[list[Savepoint]]:
    """Return the savepoints by series, each in the order in which they were taken."""
    there = list(savepoints)
    folders = {s.folder for s in there}

    def location(savepoint: Savepoint) -> tuple[object, ...]:
        record = savepoint.record
        return *record.history, len(folders & set(record.beside)), savepoint.folder

    def series(savepoint: Savepoint) -> str:
        *named, ids = savepoint.record.series
        return repr((*named, sorted(ids)))

    grouped = itertools.groupby(sorted(there, key=series), key=series)
    return [sorted(group, key=location) for _, group in grouped]


def retain(root_url: str, retention: RetentionRule, *, clock: Clock | None = None) -> list[str]:
    """Dispose of the savepoints that may be removed, and of the leftovers of broken attempts.

    Everything else in the folder stays: job directories, files, other folders, damaged savepoints,
    and those that another process is restoring. Return the names of the removed savepoints.

    Crash safety: calling it again completes it.
    """
    clock = clock or SystemClock()
    root = open_storage(root_url)
    with refusing(root.url, "read"):
        savepoints, _ = find_savepoints(root)
    gone = []
    for savepoint in retention.expired(savepoints, clock.now()):
        try:
            _unmake(savepoint, clock)
        except (ConfigError, CheckpointError, OutageError, PermissionError) as error:
            log.warning("%s: not disposed of: %s", savepoint.url, error)
            continue
        gone.append(savepoint.folder)
    collect_garbage(root_url, clock=clock)
    return gone


def dispose(url: str, *, clock: Clock | None = None) -> None:
    """Remove one savepoint; files that newer ones beside it share stay.

    Raises:
        ConfigError: it is a job directory, or may not be removed.
        OutageError: a job directory that may need it does not answer; nothing was removed.
        SavepointBusyError: another process is restoring or removing it.

    Crash safety: it is complete, or garbage; calling it again completes it.
    """
    clock = clock or SystemClock()
    location = open_storage(url)
    with refusing(location.url, "read"):
        check_no_job(location)
        before = last_claim(location)
        half_removed = before is not None and before.purpose == REMOVE
        half_removed = half_removed and not location.exists(MANIFEST)
    with refusing(location.url, "removed"):
        if not half_removed:
            _unmake(open_savepoint(url), clock)
        elif before is not None and not before.has_ended(clock):
            raise busy(location, before)
        collect_leftover(url, clock=clock)


@contextlib.contextmanager
def pinned_savepoint(url: str, clock: Clock, job_dir: str | None = None) -> Iterator[Savepoint]:
    """Yield the savepoint in the folder *url*, which is not removed while the block lasts.

    Nor is it removed after the block while a restore of it into *job_dir* is open.

    Any number of readers pin it at the same time. Where this process may not write, it reads
    without a pin: no process with the same permissions could remove the savepoint, others could.

    Raises:
        SavepointBusyError: another process is removing it.

    Crash safety: a process that dies in the block pins nothing, but for *job_dir*.
    """
    location, savepoint = (
        open_storage(url),
        open_savepoint(url),
    )  # nothing is put where there is none
    nonce = _put_reader(location, clock, job_dir)
    with working_under(nonce or ""):
        failpoints.hit("savepoint.pinned")
        try:
            with refusing(location.url, "read"):
                remover = last_claim(location)
            if remover is not None and remover.purpose == REMOVE and not remover.has_ended(clock):
                raise busy(location, remover)
            yield open_savepoint(url)  # read again: no process can begin to remove it now
        finally:
            with contextlib.suppress(OSError, SparkStreamError):
                if nonce is not None and not (job_dir and why_awaited(job_dir, savepoint)):
                    location.delete(reader_path(nonce))
                    remove_if_empty(location.url)


def _put_reader(location: Storage, clock: Clock, job_dir: str | None) -> str | None:
    try:
        return put_reader(location, clock, job_dir)
    except OSError as error:
        if not isinstance(error, PermissionError) and error.errno not in READ_ONLY:
            raise
        log.info("%s: read without a claim: %s", location.url, error)
        return None


def _unmake(savepoint: Savepoint, clock: Clock) -> None:
    location = open_storage(savepoint.url)
    mine = claim(location, REMOVE, clock)
    with working_under(mine.nonce):
        try:
            _check_unread(location, clock)
            _check_not_needed(savepoint)  # nobody can begin to restore it any more
            _check_only_ours(savepoint)
            failpoints.hit("savepoint.removing")
            _check_same(savepoint, mine)
        except BaseException:
            withdraw(location, mine)
            raise
        location.delete(MANIFEST)
        failpoints.hit("savepoint.removed")
        end(location, mine)


def _check_not_needed(savepoint: Savepoint) -> None:
    """Refuse while a job can go on from nothing else: from its restore, or its upgrade."""
    record, needs, away = savepoint.record, "", ""
    restored = {each.job_dir for each in readers(open_storage(savepoint.url)) if each.job_dir}
    for job_dir in sorted({*restored, *([record.source] if record.job else [])}):
        try:
            needs = why_awaited(job_dir, savepoint) or needs  # the rows after it are gone
            found = upgrade_over(directory_at(job_dir))
        except PermissionError as error:  # this account can never find out
            log.info("%s: not known whether %s needs it: %s", savepoint.url, job_dir, error)
            continue
        except OSError as error:
            away = f"{job_dir} does not answer: {error}"
            continue
        if found is not None and found[1].is_open and _is_of_upgrade(savepoint, *found):
            needs = describe_version(*found)
    if needs:
        raise ConfigError(f"{savepoint.url}: not removed, it is needed: {needs}")
    if away:
        raise OutageError(
            f"{savepoint.url}: not removed, a job may need it: {away}; try again, or if that "
            "directory is gone permanently, remove the savepoint's folder yourself"
        )


def _is_of_upgrade(savepoint: Savepoint, old: JobDirectory, upgrade: UpgradeRecord) -> bool:
    """Whether an upgrade begins with a savepoint, or reverts to it; it may not be recorded yet."""
    begins = upgrade.savepoint or f"{old.url}/savepoints/{upgrade.id}"
    return savepoint.url == begins or savepoint.record.is_start_of(upgrade.id)


def _check_unread(location: Storage, clock: Clock) -> None:
    for reader in readers(location):
        if not reader.has_ended(clock):
            raise busy(location, reader)


def _check_only_ours(savepoint: Savepoint) -> None:
    location, record = open_storage(savepoint.url), savepoint.record
    ours = {path for path, file in record.files() if file.holder is None}
    found = (f"queries/{path}" for path, _ in files_under(location.at("queries")))
    strange = next((path for path in found if path not in ours), None)
    if strange is not None:
        raise ConfigError(
            f"{location.url}/{strange}: was put there by another program, so the savepoint is not "
            "removed; move it away first"
        )


def _check_same(savepoint: Savepoint, mine: SavepointClaimRecord) -> None:
    location = open_storage(savepoint.url)
    if open_savepoint(savepoint.url) != savepoint or not is_held(location, mine):
        raise busy(location, last_claim(location) or mine)


def collect_garbage(root_url: str, *, clock: Clock | None = None) -> list[str]:
    """Remove claimed folders without a savepoint that no process uses, except shared files."""
    clock = clock or SystemClock()
    leftovers = find_savepoints(open_storage(root_url))[1]
    return [each.folder for each in leftovers if _collect(each, clock)]


def collect_leftover(url: str, *, clock: Clock | None = None) -> None:
    """Do for one folder what :func:`collect_garbage` does for all."""
    found = read_folder(open_storage(url))
    if isinstance(found, IncompleteSavepoint):
        _collect(found, clock or SystemClock())


def _collect(incomplete: IncompleteSavepoint, clock: Clock) -> bool:
    location, before = incomplete.location, incomplete.claim
    if incomplete.damage is not None or before is None or not before.has_ended(clock):
        return False
    try:
        mine = claim(location, REMOVE, clock)
    except SavepointBusyError:
        return False
    with working_under(mine.nonce):
        return _collect_under(mine, incomplete, clock)


def _collect_under(
    mine: SavepointClaimRecord, incomplete: IncompleteSavepoint, clock: Clock
) -> bool:
    location = incomplete.location
    failpoints.hit("savepoint.collecting")
    names = location.list("")
    if MANIFEST in names or is_job(names):  # it was completed, or reused
        withdraw(location, mine)
        return False
    shared: set[str] | None = set()
    if local_path_of(location.url) is None:
        shared = _shared_in(incomplete, clock)
    if shared is None:
        end(location, mine)
        return False
    removed = _remove_unshared(location, shared)
    failpoints.hit("savepoint.collected")
    if shared:
        end(location, mine)
        return removed
    forget_readers(location)
    release(location)
    remove_if_empty(location.url)
    return removed


def _shared_in(incomplete: IncompleteSavepoint, clock: Clock) -> set[str] | None:
    """Return the paths in a folder that savepoints beside it name; None when unknown.

    A taker writes its claim before it looks for removers.
    """
    root_url, _, folder = incomplete.location.url.rpartition("/")
    savepoints, others = find_savepoints(open_storage(root_url))
    for other in others:
        held = other.claim
        is_taken = held is not None and held.purpose == TAKE and not held.has_ended(clock)
        if is_taken or other.damage is not None:
            log.info("%s: stays while %s may need it", incomplete.location.url, other.location.url)
            return None
    return {
        path
        for savepoint in savepoints
        for path, file in savepoint.record.files()
        if file.holder == folder
    }


def _remove_unshared(location: Storage, shared: Collection[str]) -> bool:
    if not shared:
        remove_tree(location.at("queries"))
        return True
    found = [f"queries/{path}" for path, _ in files_under(location.at("queries"))]
    doomed = [path for path in found if path not in shared]
    for path in doomed:
        location.delete(path)
    return bool(doomed)


_Key = tuple[str, str, int, str]  # query id, path, size, tag


@dataclasses.dataclass(frozen=True)
class SharedFiles:
    """The savepoints beside a new one, and for each of their files the folder that holds it."""

    savepoints: list[str] = dataclasses.field(default_factory=list)
    holders: Mapping[_Key, str] = dataclasses.field(default_factory=dict)

    def where(
        self, query_id: str, needed: Iterable[NeededFile], found: Mapping[str, FileFacts]
    ) -> list[SavedFile]:
        files: list[SavedFile] = []
        for file in needed:
            tag = found[file.path].tag
            holder = self.holders.get((query_id, file.path, file.size_bytes, tag)) if tag else None
            files.append(SavedFile(file.path, file.size_bytes, tag, holder))
        return files


def shared_files_beside(target: Storage, clock: Clock) -> SharedFiles:
    """Return the files of the savepoints beside *target*; none on a local filesystem.

    Call it with *target* claimed: the garbage collector claims a folder first and then looks for
    takers' claims. So either it sees this claim and removes nothing shared, or this sees its claim.
    """
    root = open_storage(target.url.rpartition("/")[0])
    if local_path_of(target.url) is not None:
        with contextlib.suppress(PermissionError):  # who may not list them can still take one
            names = [name for name in folders_in(root) if is_name(name)]
            return SharedFiles([name for name in names if root.exists(f"{name}/{MANIFEST}")])
        return SharedFiles()
    found, others = find_savepoints(root)
    savepoints = [savepoint for savepoint in found if is_name(savepoint.folder)]
    folders = [savepoint.folder for savepoint in savepoints]
    claims = [other.claim for other in others if other.claim is not None]
    if any(held.purpose == REMOVE and not held.has_ended(clock) for held in claims):
        return SharedFiles(folders)
    holders: dict[_Key, str] = {}
    for savepoint in savepoints:
        for query in savepoint.record.queries.values():
            for file in query.files:
                if file.tag is not None:
                    key = (query.query_id, file.path, file.size, file.tag)
                    holders.setdefault(key, file.holder or savepoint.folder)
    return SharedFiles(folders, holders)
