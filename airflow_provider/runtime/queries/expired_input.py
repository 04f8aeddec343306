"""Messages that a batch of Kafka leaves out because they have expired, counted from its plan."""

from __future__ import annotations

import logging
import pickle
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.queries.plan import planned_tasks
from airflow_provider.runtime.sources.kafka.offsets import Range

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger(__name__)

_OURS: Final = Range.__module__.encode()


def warn_of_losses(where: str, plan: Any) -> int:
    """Say in the log how many messages a batch leaves out, by partition.

    There are some with ``failOnDataLoss=false`` only: else the batch would not have been planned.

    Args:
        where: the query and the batch.
        plan: the executed plan, as the JVM has it.

    Returns:
        How many.
    """
    from py4j.protocol import Py4JError

    try:
        ranges = list(_ranges(plan))
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
