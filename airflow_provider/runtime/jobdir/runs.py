"""The runs of a job, newest first, at a cost that does not follow how many there have been.

Each lease names its run, tokens have no gaps and leases are never removed, so the runs of the last
leases are found by name, from the newest token down: a job's ten thousandth run costs what its
tenth did. Only what asks for all runs (``status --all``, undoing runs) lists their folders.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.errors import (
    UnknownJobError,
)
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.lease_records import newest_token, read_lease

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.jobdir.lease_records import LeaseRecord
    from airflow_provider.runtime.jobdir.run_records import RunRecord


RECENT: Final = 10
"""How many runs a start and ``status`` look at; any older one is found by its id."""
_DRIVERS: Final = 100  # a run that was started again and again has had many; each costs a read


def recent_runs(directory: JobDirectory, count: int = RECENT) -> list[RunRecord]:
    """Return the newest runs of the last hundred drivers, newest first."""
    return list(itertools.islice(_walk(directory, is_all=False), count))


def newest_run(directory: JobDirectory) -> RunRecord | None:
    """Return the run that was begun last; None before the first one."""
    return next(iter(recent_runs(directory, 1)), None)


def runs_newest_first(directory: JobDirectory) -> Iterator[RunRecord]:
    """Yield every run, newest first; listing all runs costs only a caller that goes that far."""
    return _walk(directory, is_all=True)


def _walk(directory: JobDirectory, *, is_all: bool) -> Iterator[RunRecord]:
    """Yield runs in the order in which they were begun, whenever they were driven last."""
    token = newest_token(directory.storage)
    seen: set[str] = set()
    waiting: list[tuple[int, RunRecord]] = []  # begun under an earlier lease than those looked at
    drivers = 0
    while token > 0 and drivers < _DRIVERS:
        drivers += 1
        lease = read_lease(directory.storage, token)
        since = _begun(directory.storage, lease) if lease is not None else token
        if lease is not None and lease.run_id not in seen:
            seen.add(lease.run_id)
            record = directory.run(lease.run_id).record()
            if record is not None:
                waiting.append((record.token, record))
                waiting.sort(key=lambda each: each[0])
        while waiting and waiting[-1][0] >= since:
            yield waiting.pop()[1]
        token = since - 1
    if is_all or token <= 0:
        yield from _listed(directory, {record.run_id: record for _, record in waiting}, seen)
    else:
        yield from (record for _, record in reversed(waiting))


def _begun(storage: Storage, lease: LeaseRecord) -> int:
    """Return the first lease of the driver, which has taken all since then, for one run."""
    if not 0 < lease.since < lease.token:
        return lease.token
    first = read_lease(storage, lease.since)
    is_same = first is not None and (first.driver_id, first.run_id) == (
        lease.driver_id,
        lease.run_id,
    )
    return lease.since if is_same else lease.token


def _listed(
    directory: JobDirectory, known: dict[str, RunRecord], seen: set[str]
) -> Iterator[RunRecord]:
    """Yield those of *known* and those whose leases were not looked at."""
    others = [name for name in directory.storage.list("runs") if name not in seen]
    read = [directory.run(name).record() for name in others]
    found = [*known.values(), *(record for record in read if record is not None)]
    yield from sorted(found, key=lambda r: (r.token, r.run_id), reverse=True)


def last_run(directory: JobDirectory) -> RunRecord:
    """Return what the job's last run asked.

    Raises:
        UnknownJobError: no run of a job was ever recorded there.
    """
    record = newest_run(directory)
    if record is None:
        msg = f"{directory.url}: no run of a job is recorded here, so its function is not known"
        raise UnknownJobError(msg)
    return record
