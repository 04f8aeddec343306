"""Rows that a batch leaves out because they have expired, counted from its plan."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.api.sources import LossySource
from airflow_provider.runtime.queries.plan import planned_tasks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider.runtime.queries.source import SourceDefinition

log = logging.getLogger(__name__)


def lossy_among(sources: Sequence[SourceDefinition]) -> list[LossySource]:
    """Return the formats of which a batch of these sources may leave rows out."""
    known = [(source.known_format, source.options) for source in sources]
    return [each for each, opts in known if isinstance(each, LossySource) and each.may_lose(opts)]


def warn_of_losses(lossy: Sequence[LossySource], where: str, execution: Any) -> int:
    """Log how many rows a batch leaves out, by part of the source.

    Args:
        lossy: the formats that may lose rows, by :func:`lossy_among`.
        where: the query and the batch.
        execution: what has planned the batch, as the JVM has it.

    Returns:
        How many.
    """
    from py4j.protocol import Py4JError

    try:
        tasks = list(planned_tasks(execution.executedPlan()))
    except Py4JError as error:  # another version of Spark; the source itself has logged it
        log.debug("%s: it is not known what has expired: %s", where, error)
        return 0
    losses = [loss for task in tasks for kind in set(lossy) if (loss := kind.loss_of(task))]
    for loss in losses:
        log.warning(
            "%s: %d rows have expired before they were read: %s", where, loss.rows, loss.where
        )
    return sum(loss.rows for loss in losses)
