"""The end of an attempt, when what has failed may be the JVM."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_provider.runtime.jobdir.lease import Lease
    from airflow_provider.runtime.queries.batch import BatchQuery
    from airflow_provider.runtime.queries.context import JobContext
    from airflow_provider.runtime.queries.streaming import RunningQuery

log = logging.getLogger(__name__)


def close_quietly(
    queries: Iterable[RunningQuery | BatchQuery], context: JobContext, lease: Lease
) -> None:
    """Stop the queries and call the job's ``close()`` callbacks, whatever they raise.

    A query that could not be stopped may still commit a batch, so the release of the lease will not
    say that this driver has certainly ended.
    """
    for query in queries:
        try:
            query.stop()
        except Exception as reason:  # noqa: BLE001 - the JVM may be gone
            log.warning("query=%s could not be stopped: %s", query.name, reason)
            lease.doubt()
    for error in context.close():
        log.warning("run=%s an on_close callback failed", context.run_id, exc_info=error)
