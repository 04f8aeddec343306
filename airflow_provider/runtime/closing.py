"""The end of an attempt, when what has failed may be the storage or the JVM."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from airflow_provider.runtime.api import JobContext
    from airflow_provider.runtime.queries import BatchQuery, RunningQuery

log = logging.getLogger(__name__)


def close_quietly(queries: Iterable[RunningQuery | BatchQuery], context: JobContext) -> None:
    """Stop the queries and call the job's ``close()`` callbacks, whatever they raise."""
    for query in queries:
        try:
            query.stop()
        except Exception as reason:  # noqa: BLE001 - the JVM may be gone
            log.warning("query=%s could not be stopped: %s", query.name, reason)
    for error in context.close():
        log.warning("run=%s an on_close callback failed", context.run_id, exc_info=error)


def put_down(*acts: Callable[[], None]) -> str | None:
    """Record how a query or an attempt has ended, as far as that is possible.

    The outcome stands without the records, so what keeps them from being written may not take its
    place, nor its exit code.

    Returns:
        Why something could not be recorded; None when all was.
    """
    reasons = []
    for act in acts:
        try:
            act()
        except Exception as error:
            log.warning("what has ended could not be put down", exc_info=True)
            reasons.append(str(error))
    return "; ".join(reasons) or None
