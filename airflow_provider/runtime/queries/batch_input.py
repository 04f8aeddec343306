"""Input of a batch: rows that were read, rows that the reader left out or lost, files yet to read.

Kafka's source reports what it has not read. Spark's file source does not, though it knows: under
``availableNow`` it lists all files at the start, else it keeps those that had no room in a batch.
Both are private fields, so the count of unread files is for people, and None where it is not known.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.api.sources import LossySource
from airflow_provider.runtime.queries.plan import (
    items,
    listed_files,
    option_of,
    planned_tasks,
    private_field,
    private_value,
    rows_of,
    source_scans,
)
from airflow_provider.runtime.queries.source import SOURCE_OPTION

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_provider.runtime.queries.source import SourceDefinition

log = logging.getLogger(__name__)

_FILE_SCAN: Final = "FileSourceScanExec"
_PUSHES: Final = {  # which readers leave rows out, and the setting that lets them
    "AvroFileFormat": "spark.sql.avro.filterPushdown.enabled",
    "CSVFileFormat": "spark.sql.csv.filterPushdown.enabled",
    "JsonFileFormat": "spark.sql.json.filterPushdown.enabled",
    "OrcFileFormat": "spark.sql.orc.filterPushdown",
    "ParquetFileFormat": "spark.sql.parquet.filterPushdown",
}


def count_input_rows(stream_execution: Any) -> int | None:
    """Count the rows that the batch just run has read from named sources.

    Spark reports them only after the batch has committed, and asynchronously; the scans' own
    metrics are final as soon as the batch's job has ended, so that the count can be stored together
    with the epoch.

    Args:
        stream_execution: the JVM's ``StreamExecution``.

    Returns:
        The rows; None where the plan cannot be read (another version of Spark).
    """
    from py4j.protocol import Py4JError

    try:
        plan = stream_execution.lastExecution().executedPlan()
        return sum(rows_of(leaf) for leaf in source_scans(plan))
    except Py4JError as error:
        log.warning("input rows of this batch are not known: %s", error)
        return None


def say_what_is_not_counted(query: str, plan: Any, session: Any) -> None:
    """Log the filters by which the readers of files leave rows out uncounted, if there are some.

    Args:
        query: the name of the query.
        plan: an executed plan of the JVM's, of a stream's batch or of a batch job.
        session: the JVM's session of the query.
    """
    from py4j.protocol import Py4JError

    with contextlib.suppress(Py4JError):  # another version of Spark
        for source, filters in filters_before_count(plan, session).items():
            text = "query=%s source=%s: rows_read is without what %s leave out in its files"
            log.info(text, query, source, filters)


def filters_before_count(plan: Any, session: Any) -> dict[str, str]:
    """Return the filters by which the readers of files leave rows out uncounted, by source.

    Parquet and ORC pass over parts of a file by their statistics. What that leaves out nobody
    knows; ``numOutputRows`` of a scan counts the rest.

    Args:
        plan: an executed plan of the JVM's, of a stream's batch or of a batch job.
        session: the JVM's session of the query.
    """
    found: dict[str, str] = {}
    for leaf in source_scans(plan):
        if leaf.getClass().getSimpleName() != _FILE_SCAN:
            continue
        setting = _PUSHES.get(str(leaf.relation().fileFormat().getClass().getSimpleName()))
        if setting is None or session.sessionState().conf().getConfString(setting) != "true":
            continue
        pushed = leaf.metadata().get("PushedFilters")
        name = option_of(leaf.relation().options(), SOURCE_OPTION)
        if name is not None and pushed.isDefined() and pushed.get() != "[]":
            found[name] = str(pushed.get())
    return found


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


_SOURCE: Final = "FileStreamSource"
_MOST: Final = 100_000  # the names of so many files are 15 MB


class UnreadFiles:
    """Counts the files that one start of a query has not read, once a batch has been planned.

    Args:
        execution: the JVM's ``MicroBatchExecution``.
    """

    def __init__(self, execution: Any) -> None:
        self._execution = execution
        self._sources: list[_FileSource] | None = None

    def count(self) -> int | None:
        """Return how many are unread.

        Returns:
            None where nothing limits a batch, too many are listed, or nothing is known.
        """
        from py4j.protocol import Py4JError

        try:
            if self._sources is None:
                self._sources = list(_file_sources(self._execution))
            counts = [n for source in self._sources if (n := source.count()) is not None]
        except (Py4JError, ValueError) as error:  # too many, or another version of Spark
            log.debug("it is not known how many files are unread: %s", error)
            self._sources = []
            return None
        return sum(counts) if counts else None


class _FileSource:
    """One file source of Spark's.

    Args:
        stream: the JVM's ``FileStreamSource``.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._fields: dict[str, Any] = {}
        self._has_kept = False
        self._reaches: int | None = None  # so many files are seen when all are read

    def count(self) -> int | None:
        listed = self._value("allFilesForTriggerAvailableNow")
        if listed is not None:
            if int(listed.size()) > _MOST:
                msg = f"more than {_MOST:,} files are listed"
                raise ValueError(msg)
            seen = self._value("seenFiles")
            if self._reaches is None:
                self._reaches = int(seen.size()) + _unseen(listed, seen)
            return max(self._reaches - int(seen.size()), 0)
        kept = self._value("unreadFiles")
        self._has_kept = self._has_kept or kept is not None
        if not self._has_kept:  # each batch reads all there is
            return None
        return int(kept.size()) if kept is not None else 0

    def _value(self, name: str) -> Any:
        if name not in self._fields:  # each look is some calls of the JVM, in each batch
            self._fields[name] = private_field(self._stream, name)
        return self._fields[name].get(self._stream)


def _file_sources(execution: Any) -> Iterator[_FileSource]:
    for stream in items(execution.sources().distinct()):
        if stream.getClass().getSimpleName() == _SOURCE:
            yield _FileSource(stream)


def _unseen(listed: Any, seen: Any) -> int:
    """Return how many of the files listed Spark has not seen, in a few calls however many they are.

    What Spark has seen it keeps by the path, or by the name alone where the source goes by names;
    what is older than its last purge it takes for seen.
    """
    purged_ms = int(private_value(seen, "lastPurgeTimestamp"))
    known = set(private_value(seen, "map").keySet().toString().strip("[]").split(", "))
    return sum(
        modified_ms >= purged_ms and path not in known and path.rpartition("/")[2] not in known
        for path, modified_ms in listed_files(listed)
    )
