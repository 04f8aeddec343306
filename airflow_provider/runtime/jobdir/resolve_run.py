"""Run resolution: the run that a driver's options mean, and whether the driver may start it."""

from __future__ import annotations

import dataclasses
import uuid
from typing import TYPE_CHECKING

from airflow_provider.runtime.base.clock import from_iso
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.run_options import RunOptions, options_of
from airflow_provider.runtime.jobdir.run_records import FINISHED, AttemptRecord, RunRecord
from airflow_provider.runtime.jobdir.run_spec import RunSpec, parse_interval
from airflow_provider.runtime.jobdir.runs import recent_runs

if TYPE_CHECKING:
    import datetime as dt

    from airflow_provider.runtime.jobdir.layout import JobDirectory


def resolve_run_id(directory: JobDirectory, spec: RunSpec, now: dt.datetime) -> str:
    """Return the run that the options mean.

    Without a run id they mean the job's unfinished run, so that the same command resumes; else
    its drained run, which is done; else a new one. Only the newest runs are looked at
    (:data:`~.runs.RECENT`). One that replays means a run that began after the replayed one.
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
    """Return the request with the moment of the run that it goes on with.

    An interval without length is the moment of a DAG run without data of its own, such as one that
    was triggered by hand. The next DAG run has another, and goes on with the same run all the same.
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
            msg = (
                f"run {requested.run_id!r} was begun with {name}={before[field]!r} and is now "
                f"requested with {name}={value!r}; request the same, or use another run id "
                "or job directory"
            )
            raise ConfigError(msg)


def check_same_as_ended(spec: RunSpec, stored: RunRecord | None) -> None:
    """Refuse as :func:`check_same_spec` does, of a run that has ended, without the job's function.

    What the function would settle is taken to be as it was, where it could have been that.
    """
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
    """Return the request for another run like one that was, as its last attempt was asked for.

    What is about how that run began, such as a savepoint, is not in it, and neither is what no
    record has: Spark's own options.
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
