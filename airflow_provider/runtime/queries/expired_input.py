"""Messages that a batch of Kafka leaves out because they have expired, counted from its plan."""

from __future__ import annotations

import logging
import pickle
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.kafka.offsets import Range
from airflow_provider.extensions.kafka.options import goes_on_after_loss
from airflow_provider.runtime.queries.kafka_source import is_ours
from airflow_provider.runtime.queries.plan import planned_tasks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_provider.runtime.queries.source import SourceDefinition

log = logging.getLogger(__name__)

_OURS: Final = Range.__module__.encode()


def may_lose(sources: Sequence[SourceDefinition]) -> bool:
    """Tell whether a batch of these sources may leave messages out and go on.

    Without ``failOnDataLoss=false`` it is not planned.
    """
    return any(goes_on_after_loss(s.options) for s in sources if is_ours(s.format))


def warn_of_losses(where: str, execution: Any) -> int:
    """Say in the log how many messages a batch leaves out, by partition.

    Args:
        where: the query and the batch.
        execution: what has planned the batch, as the JVM has it.

    Returns:
        How many.
    """
    from py4j.protocol import Py4JError

    try:
        ranges = list(_ranges(execution.executedPlan()))
    except Py4JError as error:  # another version of Spark; the source itself has logged it
        log.debug("%s: it is not known what has expired: %s", where, error)
        return 0
    for part in ranges:
        if part.lost:
            log.warning(
                "%s: %d messages of %s have expired before they were read, offsets %d to %d",
                where,
                part.lost,
                part.partition,
                part.start - part.lost,
                part.start - 1,
            )
    return sum(part.lost for part in ranges)


def _ranges(plan: Any) -> Iterator[Range]:
    for task in planned_tasks(plan):
        if _OURS not in task:
            continue  # of another source, whose classes this process may not have
        # Our own worker has written it, in a process that Spark has started on this machine.
        part = getattr(pickle.loads(task), "value", None)  # noqa: S301
        if isinstance(part, Range):
            yield part
