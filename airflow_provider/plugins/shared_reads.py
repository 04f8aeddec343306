"""Reads of job directories that all views share: snapshots, leases and savepoints.

Cached by address and credentials: with other credentials an address may be another store's.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from airflow_provider.runtime.base.clock import from_iso
from airflow_provider.runtime.base.names import is_name
from airflow_provider.runtime.checkpoint.operator_kinds import operator_title
from airflow_provider.runtime.errors.explanation import screen_lines
from airflow_provider.runtime.jobdir.layout import directory_at
from airflow_provider.runtime.jobdir.lease import LeaseObserver, Liveness
from airflow_provider.runtime.observe.snapshot import RunSnapshot, read_snapshot
from airflow_provider.runtime.observe.state import IN_AIRFLOW, RunCondition, assess, run_condition
from airflow_provider.runtime.savepoints.catalog import Savepoint, last_of_each_origin, read_folder
from airflow_provider.runtime.storage.file_tree import folders_in
from airflow_provider.runtime.storage.open import credentials_in_use, open_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from airflow_provider.runtime.api.launchers import LaunchStatus
    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.jobdir.lease_records import LeaseRecord
    from airflow_provider.runtime.savepoints.record import QuerySavepoint

V = TypeVar("V")
_MOST_OBSERVERS: Final = 1000
_MOST_SAVEPOINTS: Final = 5000  # a savepoint takes a kilobyte


class Cache(Generic[V]):
    """The values that were used last, for several threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: collections.OrderedDict[Hashable, V] = collections.OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], V] | None = None) -> V | None:
        with self._lock:
            if key not in self._kept and make is not None:
                self._put(key, make())
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: Hashable, value: V) -> None:
        with self._lock:
            self._put(key, value)

    def forget(self, is_old: Callable[[Hashable], bool]) -> None:
        with self._lock:
            for key in [key for key in self._kept if is_old(key)]:
                del self._kept[key]

    def _put(self, key: Hashable, value: V) -> None:
        self._kept[key] = value
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)


@dataclasses.dataclass(frozen=True)
class LeaseFacts:
    """A job's newest lease; each action is sent with its token."""

    token: int
    run_id: str
    driver_id: str
    host: str
    acquired: str
    liveness: Liveness


def lease_facts(lease: LeaseRecord | None, liveness: Liveness) -> LeaseFacts | None:
    """Return what the page shows of a lease."""
    if lease is None:
        return None
    where = (lease.run_id, lease.driver_id, lease.owner.host)
    return LeaseFacts(lease.since, *where, lease.acquired, liveness)


class ObservedJobs:
    """Polls jobs; the second poll shows whether a driver on another machine lives."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._watches: Cache[tuple[LeaseObserver, threading.Lock]] = Cache(_MOST_OBSERVERS)

    def poll(self, job_dir: str, run_id: str | None = None) -> RunSnapshot:
        """Read a run of a job, the newest one for None, without lines of its log.

        Raises:
            CheckpointError: a document is damaged.
            ConfigError: no job can lie there, or it is of a newer version.
        """
        observer, lock = self._watch(job_dir)
        with lock:
            return without_log(read_snapshot(directory_at(job_dir), run_id, observer=observer))

    def lease(self, job_dir: str) -> tuple[LeaseRecord | None, Liveness]:
        observer, lock = self._watch(job_dir)
        with lock:
            return observer.look()

    def _watch(self, job_dir: str) -> tuple[LeaseObserver, threading.Lock]:
        def make() -> tuple[LeaseObserver, threading.Lock]:
            return LeaseObserver(open_storage(job_dir), self._clock), threading.Lock()

        return self._watches.get((job_dir, credentials_in_use()), make) or make()


def condition_of(snapshot: RunSnapshot) -> RunCondition:
    """Return the condition of a run, for a user who has a task."""
    return run_condition(snapshot, assess(snapshot), steps=IN_AIRFLOW)


def without_log(snapshot: RunSnapshot) -> RunSnapshot:
    """Return a snapshot without lines of the driver's log, which need another right."""
    ended, launch = snapshot.exit, snapshot.launch
    if ended is not None:
        ended = dataclasses.replace(ended, last_lines=screen_lines(ended.last_lines))
    if launch is not None:
        launch = answer_without_log(launch)
    return dataclasses.replace(snapshot, exit=ended, launch=launch)


def answer_without_log(answer: LaunchStatus) -> LaunchStatus:
    """Return a launcher's answer without its reason, which may be a line of the driver's log."""
    return dataclasses.replace(answer, reason="")


@dataclasses.dataclass(frozen=True)
class SavedQuery:
    """A query's position in a savepoint.

    Attributes:
        state: the bytes of each stateful operator, by its title.
    """

    name: str
    batch: int
    watermark: str
    bytes: int
    state: dict[str, int]


@dataclasses.dataclass(frozen=True)
class SavepointFacts:
    """One savepoint; *problem* says why it cannot be used, and the rest is then empty."""

    name: str
    problem: str | None = None
    url: str | None = None
    origin: str | None = None
    taken: str | None = None
    age_s: float | None = None
    is_aligned: bool | None = None
    bytes: int | None = None
    labels: dict[str, str] = dataclasses.field(default_factory=dict)
    queries: list[SavedQuery] = dataclasses.field(default_factory=list)


class SavepointCache:
    """Keeps the facts of complete savepoints: their records never change."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: Cache[SavepointFacts] = Cache(_MOST_SAVEPOINTS)

    def all(self, directory: JobDirectory) -> list[SavepointFacts]:
        location = directory.storage.at("savepoints")
        found = (self._read(location, name) for name in savepoint_names(location))
        shown = [self._aged(each) for each in found if each is not None]
        return sorted(shown, key=lambda each: (each.taken or "", each.name), reverse=True)

    def newest(self, directory: JobDirectory) -> SavepointFacts | None:
        location = directory.storage.at("savepoints")
        found = (
            self._read(location, name) for name in last_of_each_origin(savepoint_names(location))
        )
        usable = [each for each in found if each is not None and each.taken is not None]
        return max(usable, key=lambda each: each.taken or "", default=None)

    def forget(self, url: str) -> None:
        """Forget a savepoint that was disposed of: another one may get its name."""
        self._kept.forget(lambda key: isinstance(key, tuple) and key[0] == url)

    def _read(self, location: Storage, name: str) -> SavepointFacts | None:
        where = location.at(name)
        key = (where.url, credentials_in_use())
        kept = self._kept.get(key)
        if kept is not None:
            return kept
        found = read_folder(where)
        if found is None:
            return None
        if not isinstance(found, Savepoint):
            problem = found.damage or "it is not complete: it is being taken or removed"
            return SavepointFacts(name, problem)
        facts = _savepoint_facts(name, found)
        self._kept.put(key, facts)
        return facts

    def _aged(self, saved: SavepointFacts) -> SavepointFacts:
        if saved.taken is None:
            return saved
        age_s = (self._clock.now() - from_iso(saved.taken)).total_seconds()
        return dataclasses.replace(saved, age_s=age_s)


def savepoint_names(location: Storage) -> list[str]:
    """Return the names of the folders of a job's savepoints, sorted."""
    return [name for name in folders_in(location) if is_name(name)]


def _savepoint_facts(name: str, savepoint: Savepoint) -> SavepointFacts:
    record = savepoint.record
    return SavepointFacts(
        name=name,
        url=savepoint.url,
        origin=record.origin,
        taken=record.taken,
        is_aligned=record.aligned,
        bytes=record.bytes,
        labels=record.labels,
        queries=[
            SavedQuery(query, saved.batch, saved.watermark, saved.bytes, _state_bytes(saved))
            for query, saved in record.queries.items()
        ],
    )


def _state_bytes(query: QuerySavepoint) -> dict[str, int]:
    sizes: collections.Counter[str] = collections.Counter()
    for file in query.files:
        folder, _, rest = file.path.partition("/")
        if folder == "state":
            sizes[rest.partition("/")[0]] += file.size
    return {
        operator_title(each.get("job_name"), each["id"], each["name"]): sizes[str(each["id"])]
        for each in query.operators
    }
