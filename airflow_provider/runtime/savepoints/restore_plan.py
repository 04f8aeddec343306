"""The plan of a restore, from what is asked for and the history of the job; pure."""

from __future__ import annotations

import dataclasses
import uuid
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.journal import RestorePlan
from airflow_provider.runtime.savepoints.restores import savepoint_key

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from airflow_provider.runtime.savepoints.catalog import Savepoint
    from airflow_provider.runtime.savepoints.history import QueryHistory
    from airflow_provider.runtime.savepoints.record import QuerySavepoint

CLAIM_MODES: Final = ("no_claim", "claim")


@dataclasses.dataclass(frozen=True)
class RestoreSettings:
    """To what queries are to be set, and how.

    Attributes:
        savepoint: None for the job's very beginning.
        names: for each query the savepoint's that it continues from, or "" for a reset.
        claim_mode: ``no_claim``, or ``claim`` to let the job own the savepoint.
        skip_in_flight: never run the batch in flight of an unaligned savepoint: its rows are lost.
        partitions: spread the state over this number; None keeps the savepoint's number.
        keep_outputs: leave the queries' output in place, though they are reset.
        rewinds: the runs that no longer count.
        by: what rewinds them; empty for the restore's number.
        supersedes: replace an open restore of another savepoint, which may be gone.
    """

    savepoint: Savepoint | None
    names: Mapping[str, str]
    claim_mode: str = "no_claim"
    skip_in_flight: bool = False
    partitions: int | None = None
    keep_outputs: bool = False
    rewinds: Sequence[str] = ()
    by: str = ""
    supersedes: bool = False


def plan_restore(
    settings: RestoreSettings,
    queries: Mapping[str, QueryHistory],
    *,
    where: str,
    committed: Mapping[str, int],
    skipped: Mapping[str, dict[str, Any]],
    before: RestorePlan | None,
    reverts: bool,
) -> RestorePlan:
    """Return to what each query is set.

    Args:
        settings: what is asked for.
        queries: those of the settings, as they are now.
        where: the job's directory.
        committed: the last batch of each query that is reset while its output stays.
        skipped: per query the batch that is not run again.
        before: the open restore whose place it takes, if any.
        reverts: whether the output after it is reverted.

    Raises:
        ConfigError: a query cannot be reset while its output stays.
    """
    savepoint = settings.savepoint
    saved = savepoint.record.queries if savepoint is not None else {}
    url, taken = savepoint_key(savepoint)
    return RestorePlan(
        savepoint=url,
        taken=taken,
        queries={
            name: _plan_reset(where, name, queries[name], committed[name])
            if settings.keep_outputs
            else _plan_query(queries[name], name, theirs, saved.get(theirs), before)
            for name, theirs in settings.names.items()
        },
        claim_mode=settings.claim_mode,
        skipped=dict(skipped),
        partitions=settings.partitions,
        keep_outputs=settings.keep_outputs,
        reverts=reverts,
    )


def _plan_query(
    now: QueryHistory,
    name: str,
    theirs: str,
    query: QuerySavepoint | None,
    before: RestorePlan | None,
) -> dict[str, Any]:
    replaces = now.query_id
    if replaces is None and before is not None:
        replaces = before.queries.get(name, {}).get("replaces")
    return {
        "query_id": str(uuid.uuid4()) if query is not None else None,
        "from": theirs,
        "batch": query.epoch if query is not None else -1,
        "replaces": replaces,
    }


def _plan_reset(where: str, name: str, query: QueryHistory, last: int) -> dict[str, Any]:
    ours = (each for each in query.written if each.query_id == query.query_id)
    if any(epoch <= last for each in ours for epoch in each.waiting):
        raise ConfigError(
            f"{where}: query {name!r} cannot be reset yet: what it has committed is not "
            "published; run 'spark-stream cleanup JOB_DIR' with the job as it was first"
        )
    return {"query_id": None, "from": "", "batch": -1, "replaces": query.query_id, "stays": last}


def plan_again(plan: RestorePlan, ready: Collection[str]) -> RestorePlan:
    """Return a plan under new ids for the queries that are not *ready*, as another may continue."""
    queries = {
        name: query
        if name in ready
        else {**query, "query_id": query["query_id"] and str(uuid.uuid4())}
        for name, query in plan.queries.items()
    }
    return dataclasses.replace(plan, queries=queries)
