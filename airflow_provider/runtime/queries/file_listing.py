"""Files that a source has listed: their order, and those among them that are not read."""

from __future__ import annotations

import collections
import logging
import re
import urllib.parse
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base.clock import millis_to_iso
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.end_of_input import is_marker
from airflow_provider.runtime.queries.plan import items
from airflow_provider.runtime.sources.file_stream import (
    FILE_SOURCE,
    LISTED,
    listed_files,
    private_value,
)
from airflow_provider.runtime.sources.files import NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from airflow_provider.runtime.queries.query import QueryDefinition
    from airflow_provider.runtime.sources.declared import SourceDefinition

log = logging.getLogger(__name__)

_MOST_OF_THEM: Final = 0.5
_MOST_FILES: Final = 100_000  # the names of so many are 15 MB
_SHOWN: Final = 3
_SEEN: Final = re.compile(r"(?:^|, )([^ ]+)=(-?\d+)")


def check_lists_once(queries: Iterable[QueryDefinition], *, alone: Iterable[str]) -> None:
    """Refuse an order by name with until='stopped', where Spark lists files before each batch."""
    for query in queries:
        if query.name in alone or query.ending:
            continue
        for source in query.sources:
            if source.is_by_name:
                raise ConfigError(
                    f"source {source.name!r}: read_order={NAME!r} needs a run that reads what is "
                    "there and ends; leave until='stopped' out, or the order"
                )


def describe_order(sources: Sequence[SourceDefinition]) -> str:
    """Return the read order of each bounded file source in words; empty without such a source."""
    return ", ".join(
        f"files of source {source.name} by "
        + ("name" if source.is_by_name else "modification time")
        for source in {each.name: each for each in sources}.values()
        if source.bounded and source.files is not None and not is_marker(source.name)
    )


def warn_of_one_time(definition: QueryDefinition, execution: Any) -> None:
    """Warn of files with one modification time, whose order is undefined, below a watermark."""
    if "EventTimeWatermark" not in definition.operations:
        return
    for stream, source in _file_sources(definition, execution):
        listed = private_value(stream, LISTED)
        is_new = int(private_value(stream, "seenFiles").size()) < int(listed.size())
        if not source.is_by_name and is_new:
            _warn_of_source(definition.name, source, listed)


def _warn_of_source(query: str, source: SourceDefinition, listed: Any) -> None:
    times = collections.Counter(ms // 1000 for _, ms in listed_files(listed))
    second, most = times.most_common(1)[0]
    if most == 1 or most < _MOST_OF_THEM * times.total():
        return
    log.warning(
        "query=%s source=%s: %s of %s files were modified in one second (%s), so that their order "
        "is not that of their rows, and rows may come late; read them by name "
        "(read_order='name'), or run with late='wait'",
        query,
        source.name,
        most,
        times.total(),
        millis_to_iso(second * 1000),
    )


def describe_unread(definition: QueryDefinition, execution: Any) -> dict[str, str]:
    """Return in words which listed files, or versions of them, a start has not read, by source.

    Spark knows a file by its path, and reads it once. It passes over a file that is older by the
    option ``maxFileAge`` than the newest that it has read.
    """
    found = {}
    for stream, source in _file_sources(definition, execution):
        listed, seen = private_value(stream, LISTED), private_value(stream, "seenFiles")
        read = dict(seen_files(str(private_value(seen, "map").toString())))
        since_ms = int(private_value(seen, "lastPurgeTimestamp"))
        changed, old = [], []
        for path, modified_ms in listed_files(listed):
            known = read.get(path)
            if known is None and modified_ms < since_ms:
                old.append(path)
            elif known is not None and known != modified_ms:
                changed.append(path)
        said = [
            f"{_some(files)} {what}"
            for files, what in (
                (changed, "changed after the job had listed them, and are not read again"),
                (old, "are older than the option maxFileAge allows, and are not read"),
            )
            if files
        ]
        if said:
            found[source.name] = f"source {source.name}: {'; '.join(said)}"
    return found


def seen_files(text: str) -> Iterator[tuple[str, int]]:
    """Yield path and modification time in milliseconds of each entry of Spark's printed map."""
    for path, modified_ms in _SEEN.findall(text.removeprefix("{").removesuffix("}")):
        yield path, int(modified_ms)


def _some(files: list[str]) -> str:
    names = [urllib.parse.unquote(path.rpartition("/")[2]) for path in sorted(files)[:_SHOWN]]
    more = ", …" if len(files) > _SHOWN else ""
    return f"{len(files):,} files ({', '.join(map(repr, names))}{more})"


def _file_sources(
    definition: QueryDefinition, execution: Any
) -> Iterator[tuple[Any, SourceDefinition]]:
    """Yield the file sources that have listed their files once, but not too many."""
    from py4j.protocol import Py4JError

    try:
        for stream, source in zip(items(execution.sources()), definition.sources, strict=True):
            if stream.getClass().getSimpleName() != FILE_SOURCE or is_marker(source.name):
                continue
            listed = private_value(stream, LISTED)
            if listed is not None and int(listed.size()) <= _MOST_FILES:
                yield stream, source
    except (Py4JError, ValueError) as error:  # another version of Spark
        log.debug("query=%s its files are not known: %s", definition.name, error)
