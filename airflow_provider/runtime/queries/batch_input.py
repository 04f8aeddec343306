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
    """Count the rows that the finished batch has read from named sources.

    Spark reports them only after the batch has committed, and asynchronously; the scans' own
    metrics are final when the batch's job has ended, so the count can be stored with the epoch.

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
    """Log the filters by which file readers skip rows uncounted, if there are any."""
    from py4j.protocol import Py4JError

    with contextlib.suppress(Py4JError):  # another version of Spark
        for source, filters in filters_before_count(plan, session).items():
            text = "query=%s source=%s: rows_read is without what %s leave out in its files"
            log.info(text, query, source, filters)


def filters_before_count(plan: Any, session: Any) -> dict[str, str]:
    """Return the filters by which file readers skip rows uncounted, by source.

    Parquet and ORC skip parts of a file by their statistics. The number of skipped rows is unknown;
    ``numOutputRows`` of a scan counts the rest.
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
    """Return the formats that may lose rows of these sources in a batch."""
    known = [(source.known_format, source.options) for source in sources]
    return [each for each, opts in known if isinstance(each, LossySource) and each.may_lose(opts)]


def warn_of_losses(lossy: Sequence[LossySource], where: str, execution: Any) -> int:
    """Log how many rows a batch loses, by part of the source; return their number.

    Args:
        lossy: the formats that may lose rows, by :func:`lossy_among`.
        where: the query and the batch.
        execution: the JVM's execution that has planned the batch.
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
    """Counts the files that one start of a query has not read, once a batch has been planned."""

    def __init__(self, execution: Any) -> None:
        self._execution = execution
        self._sources: list[_FileSource] | None = None

    def count(self) -> int | None:
        """Return the number of unread files; None without a limit, for too many, or if unknown."""
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
    """Return how many of the listed files Spark has not seen, in a constant number of calls.

    Spark keeps what it has seen by path, or by name where the source goes by names; it counts files
    older than its last purge as seen.
    """
    purged_ms = int(private_value(seen, "lastPurgeTimestamp"))
    known = set(private_value(seen, "map").keySet().toString().strip("[]").split(", "))
    return sum(
        modified_ms >= purged_ms and path not in known and path.rpartition("/")[2] not in known
        for path, modified_ms in listed_files(listed)
    )
