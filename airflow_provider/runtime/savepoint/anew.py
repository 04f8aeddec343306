"""Queries that began anew beside what they had written.

A restore or a rewind counts epochs: what was written after an epoch goes, what was written up to it
stays. The epochs of a query that began anew are counted from 0 again, so no number tells which of
its rows are older; whoever would need to know that is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.errors import ConfigError, TakeBackError
from airflow_provider.runtime.jobdir.epochs import EpochRecords, query_ids
from airflow_provider.runtime.savepoint.restores import Restores

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.savepoint.catalog import Savepoint


def plan_anew(directory: JobDirectory, name: str) -> dict[str, Any]:
    """Choose what becomes of a query that begins anew while what it has written stays.

    Raises:
        ConfigError: it has committed what is not published yet, which nobody could publish then.
    """
    logs = CheckpointLogs(directory.checkpoint(name))
    query_id, last = logs.query_id(), logs.position().last_commit
    if query_id is not None:
        waiting = EpochRecords(directory.committables(name), query_id).find().precommitted
        if any(epoch <= last for epoch in waiting):
            msg = (
                f"{directory.url}: query {name!r} cannot begin anew yet: what it has committed is "
                "not published; run 'spark-stream cleanup JOB_DIR' with the job as it was first"
            )
            raise ConfigError(msg)
    return {"query_id": None, "from": "", "batch": -1, "replaces": query_id, "stays": last}


def check_not_parted(
    directory: JobDirectory, savepoint: Savepoint, names: Mapping[str, str]
) -> None:
    """Refuse to set a job back to before a query of it began anew beside what it had written.

    Args:
        directory: the job directory.
        savepoint: what it would be set to.
        names: for each of its queries the savepoint's that it would go on with, "" for none.

    Raises:
        ConfigError: the message names the query.
    """
    for name, theirs in names.items():
        saved = savepoint.record.queries.get(theirs)
        current = CheckpointLogs(directory.checkpoint(name)).query_id()
        if not _left_ids(directory, name) or (saved is None and current is None):
            continue
        if saved is None or saved.query_id not in _ids_since(directory, name, current):
            msg = (
                f"{directory.url}: query {name!r} began anew after the savepoint {savepoint.url} "
                "was taken, beside what it had written before, so these rows cannot be told from "
                "those after the savepoint; restore it into a new job directory"
            )
            raise ConfigError(msg)


def check_not_parted_in(directory: JobDirectory, name: str, run_id: str) -> None:
    """Refuse to rewind a run in the middle of which a query began anew.

    Raises:
        TakeBackError: the run had written before, and that has stayed.
    """
    for query_id in _left_ids(directory, name):
        records = EpochRecords(directory.committables(name), query_id)
        runs = {run for *_, run in records.history().ranges}
        if run_id in runs or any(record.run_id == run_id for record in records.all()):
            msg = (
                f"{directory.url}: run {run_id!r} cannot be rewound: query {name!r} began anew in "
                "it, or since, beside what it had written before"
            )
            raise TakeBackError(msg)


def _left_ids(directory: JobDirectory, name: str) -> list[str]:
    """Return the ids that the query had before it began anew."""
    storage = directory.committables(name)
    return [i for i in query_ids(storage) if EpochRecords(storage, i).is_left()]


def _ids_since(directory: JobDirectory, name: str, current: str | None) -> set[str | None]:
    """Return the ids that the query has had since it began anew."""
    ids = {current}
    for record in Restores(directory).newest_first():
        plan = record.queries.get(name)
        if plan is None:
            continue
        if record.outputs_stay:
            break
        ids |= {plan["query_id"], plan["replaces"]}
    return ids - {None}
