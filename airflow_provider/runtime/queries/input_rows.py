"""Input rows of a batch: how many its sources have given, and what leaves rows out before that."""

from __future__ import annotations

import contextlib
import logging
from typing import Any, Final

from airflow_provider.runtime.queries.plan import option_of, rows_of, source_scans
from airflow_provider.runtime.queries.source import SOURCE_OPTION

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
