"""Ends of the sources of a query that has just been started, asked of Spark through Py4J.

Under ``availableNow`` Spark finds the end of each source once, when the query starts, so that
nothing is listed twice here. A file source keeps the files in a private field, and Kafka's answers
with the end when it is asked without a limit. A source that cannot keep an end is asked once by
Spark, and read up to the answer in its first batch. Where none of this is so, as in another version
of Spark, a source has no end that could be recorded.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.checkpoint.source_end import (
    NO_OFFSET,
    SourceEnd,
    SourceLog,
    by_folder,
    missing_partitions,
    position_of,
)
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.datasets import FORMAT
from airflow_provider.runtime.queries.plan import items, listed_files, private_value
from airflow_provider.runtime.queries.read_options import tells_its_end

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.queries.source import SourceDefinition

log = logging.getLogger(__name__)

_FILES: Final = "FileStreamSource"
_ABLE: Final = "org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow"
_PYTHON: Final = "PythonMicroBatchStream"  # what the names of its classes begin with
MOST_FILES: Final = 1_000_000  # their names are some 100 MB, which one document can have


@dataclasses.dataclass(frozen=True)
class Planned:
    """The first batch of a query since its start.

    Attributes:
        execution: the JVM's ``MicroBatchExecution``.
        jvm: the JVM.
        lines: each source's offsets at its end, as in the offset log.
        before: those of the batch before it.
        checkpoint: the query's.
    """

    execution: Any
    jvm: Any
    lines: Sequence[str]
    before: Sequence[str]
    checkpoint: Storage


def find_ends(
    planned: Planned, sources: Sequence[SourceDefinition], wanted: frozenset[str]
) -> tuple[SourceEnd, ...]:
    """Return the known ends of those of a query's sources that have one.

    Args:
        planned: the first batch.
        sources: all sources, in the order of Spark's offsets.
        wanted: the names of those that end.

    Raises:
        ConfigError: the job wants an end that a source cannot have.
    """
    from py4j.protocol import Py4JError

    found = []
    try:
        streams = list(items(planned.execution.sources()))
        pairs = list(zip(streams, sources, strict=True))
    except (Py4JError, ValueError) as error:
        _refuse_unknown(sources, wanted, error)
        return ()
    for place, (stream, source) in enumerate(pairs):
        if source.name not in wanted:
            continue
        try:
            end = _end_of(planned, stream, source, place)
        except ConfigError:
            raise
        except (Py4JError, ValueError) as error:
            _refuse_unknown([source], wanted, error)
            continue
        if end is not None:
            found.append(end)
    return tuple(found)


def _refuse_unknown(
    sources: Sequence[SourceDefinition], wanted: frozenset[str], error: Exception
) -> None:
    for source in sources:
        if source.name in wanted and source.ends is not None:
            msg = f"source {source.name!r} ({source.format}): its end is not known here: {error}"
            raise ConfigError(msg) from error
    names = ", ".join(source.name for source in sources if source.name in wanted)
    log.warning("source=%s its end is not known, so a retry may read more: %s", names, error)


def _end_of(
    planned: Planned, stream: Any, source: SourceDefinition, place: int
) -> SourceEnd | None:
    kind = str(stream.getClass().getSimpleName())
    if kind == _FILES:
        return _end_of_files(planned, stream, source, place)
    able = planned.jvm.java.lang.Class.forName(_ABLE).isInstance(stream)
    if source.format.lower() == FORMAT and not able:
        msg = "before Spark 4.2 a source in Python cannot keep an end; give option endingOffsets"
        raise ValueError(msg)
    line = planned.lines[place]
    ends = source.ends if isinstance(source.ends, Mapping) else source.timed_end()
    if ends is not None:
        _check_partitions(source, ends, line)
        return SourceEnd(source.name, place, offset=json.dumps(ends, separators=(",", ":")))
    if not tells_its_end(source.format, source.ends):
        log.info("source=%s ends when it has no more rows, in each attempt", source.name)
        return None
    asks = able and (source.format.lower() == "kafka" or kind.startswith(_PYTHON))
    if asks and line != NO_OFFSET:
        limits = planned.jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit
        reached = stream.latestOffset(stream.deserializeOffset(line), limits.allAvailable())
        line = str(reached.json()) if reached is not None else line
    return SourceEnd(source.name, place, offset=line)


def _check_partitions(
    source: SourceDefinition, ends: Mapping[str, Mapping[str, int]], line: str
) -> None:
    missing = missing_partitions(line, ends) if line != NO_OFFSET else []
    where = f"source {source.name!r} ({source.format})"
    if missing is None:
        msg = f"{where}: its offsets are not by topic and partition ({line}); leave ends out"
        raise ConfigError(msg)
    if missing:
        msg = (
            f"{where}: ends says nothing of {', '.join(missing[:3])}; give it an offset, 0 for none"
        )
        raise ConfigError(msg)


def _end_of_files(
    planned: Planned, stream: Any, source: SourceDefinition, place: int
) -> SourceEnd | None:
    listed = private_value(stream, "allFilesForTriggerAvailableNow")
    if listed is None:
        msg = "Spark has not listed its files"
        raise ValueError(msg)
    if int(listed.size()) > MOST_FILES:
        msg = f"it has more than {MOST_FILES:,} files"
        raise ValueError(msg)
    end = SourceEnd(
        source.name,
        place,
        log=str(private_value(stream, "metadataLog").metadataPath().getName()),
        by_name=bool(private_value(stream, "fileNameOnly")),
    )
    purged_ms = int(private_value(private_value(stream, "seenFiles"), "lastPurgeTimestamp"))
    first, last = position_of(planned.before[place]), position_of(planned.lines[place])
    files = SourceLog(planned.checkpoint, str(end.log))
    read = {end.key_of(file.path) for file in files.read_through(first)}
    found = {
        path: modified_ms
        for path, modified_ms in listed_files(listed)
        if modified_ms >= purged_ms and end.key_of(path) not in read
    }
    for number in range(first + 1, last + 1):
        found |= {file.path: file.modified_ms for file in files.files(number)}
    if isinstance(source.ends, dt.datetime):
        before_ms = source.ends.timestamp() * 1000
        found = {path: at_ms for path, at_ms in found.items() if at_ms < before_ms}
    return dataclasses.replace(end, files=by_folder(found.items()))
