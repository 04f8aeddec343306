"""The runs of a job, newest first, at a cost independent of their number.

Each lease names its run, tokens have no gaps, and leases are never removed, so the last runs are
found by name. Only requests for all runs list their folders.
"""

from __future__ import annotations

import dataclasses
import itertools
import uuid
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.base.clock import from_iso
from airflow_provider.runtime.errors import (
    ConfigError,
    UnknownJobError,
)
from airflow_provider.runtime.errors.fixes import FROM_SCRATCH
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.lease_records import newest_token, read_lease
from airflow_provider.runtime.jobdir.run_options import RunOptions, options_of
from airflow_provider.runtime.jobdir.run_records import FINISHED, AttemptRecord, RunRecord
from airflow_provider.runtime.jobdir.run_spec import RunSpec, parse_interval

if TYPE_CHECKING:
    import datetime as dt
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
    others = [name for name in directory.storage.list("runs") if name not in seen]
    read = [directory.run(name).record() for name in others]
    found = [*known.values(), *(record for record in read if record is not None)]
    yield from sorted(found, key=lambda r: (r.token, r.run_id), reverse=True)


def last_run(directory: JobDirectory) -> RunRecord:
    """Return what the job's last run asked."""
    record = newest_run(directory)
    if record is None:
        raise UnknownJobError(
            f"{directory.url}: no run of a job is recorded here, so its function is not known"
        )
    return record


def resolve_run_id(directory: JobDirectory, spec: RunSpec, now: dt.datetime) -> str:
    """Return the run that the options mean.

    Without a run id: the job's unfinished run, else its drained run, else a new one, among the
    newest (:data:`~.runs.RECENT`). A replay means a run that began after the replayed one.
    """
    if spec.run_id is not None:
        return spec.run_id
    for record in recent_runs(directory):
        run = directory.run(record.run_id)
        if run.run_id == spec.replays:
            break
        final = run.final()
        if (final is None or final.outcome == FINISHED) and run.rewound() is None:
            return run.run_id
    return f"manual-{now:%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:6]}"


def with_stored_options(spec: RunSpec, stored: RunRecord | None) -> RunSpec:
    """Return the request with the stored moment of the run that it continues.

    An interval without length is the moment of a DAG run without data; the next DAG run has
    another.
    """
    if stored is None or stored.interval is None or spec.interval is None:
        return spec
    start, end = (from_iso(text) for text in stored.interval)
    if start != end or spec.interval[0] != spec.interval[1]:
        return spec
    return dataclasses.replace(spec, interval=(start, end))


def check_same_spec(requested: RunRecord, stored: RunRecord | None) -> None:
    """Refuse another attempt of a run that asks for something else."""
    if stored is None:
        return
    before, now = stored.requested(), requested.requested()
    for field, value in now.items():
        if value != before[field]:
            name = options_of(RunSpec)[field].name
            raise ConfigError(
                f"run {requested.run_id!r} was begun with {name}={before[field]!r} and is now "
                f"requested with {name}={value!r}; request the same, use another run id, "
                f"or {FROM_SCRATCH}"
            )


def check_same_as_ended(spec: RunSpec, stored: RunRecord | None) -> None:
    """Refuse as :func:`check_same_spec` does for an ended run, without the job's function."""
    if stored is None:
        return
    begun = stored.options
    # Left to the job, it ends with its sources' data, or when it is stopped.
    is_open = spec.until is None and begun.until in {"end", "stopped"}
    until = begun.until if is_open else spec.until
    at_end = spec.at_end or ("drain" if until == "end" else "suspend")
    requested = dataclasses.replace(
        stored,
        params=dict(spec.params),
        secret_params=dict(spec.secret_params),
        interval=spec.stored_interval,
        from_savepoint=spec.from_savepoint,
        options=RunOptions.of(spec).settled(
            mode=begun.mode if spec.mode == "automatic" else spec.mode,
            until=until or "end or stopped",
            at_end=str(begun.at_end) if until is None else at_end,
        ),
    )
    check_same_spec(requested, stored)


def request_of(run: RunRecord, attempt: AttemptRecord | None, job_dir: str) -> RunSpec:
    """Return the request for another run with the options of the last attempt.

    The run's own beginning, such as a savepoint, and Spark's options are not in it.
    """
    options = run.options if attempt is None else attempt.options
    return RunSpec(
        **options.inherited(),
        job_dir=job_dir,
        entry=run.entry,
        params=run.params,
        secret_params=run.secret_params,
        interval=parse_interval(run.interval),
    )
