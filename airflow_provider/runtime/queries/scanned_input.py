"""Compares what a batch scans with what Spark's logs list for it, before its rows are staged.

The rows that an account adds up are those that Spark has scanned. So a file that Spark reads twice,
or passes over, is noticed here or nowhere.
"""

from __future__ import annotations

import collections
import functools
import logging
import re
import urllib.parse
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow_provider.runtime.api.sources import SOURCE_OPTION
from airflow_provider.runtime.checkpoint.source_end import NO_OFFSET, offset_value
from airflow_provider.runtime.errors import MisreadInputError, MissingInputError, some_of
from airflow_provider.runtime.jobdir.end_of_input import is_marker
from airflow_provider.runtime.queries.plan import FILE_SCAN, STREAM_SCAN, items, leaves, option_of
from airflow_provider.runtime.sources.file_stream import FILE_SOURCE, private_value
from airflow_provider.runtime.sources.path_patterns import is_pattern
from airflow_provider.runtime.spark.versions import reads_stream, stream_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from airflow_provider.runtime.checkpoint.logged_batch import BatchLogs
    from airflow_provider.runtime.queries.query import QueryDefinition

log = logging.getLogger(__name__)

# Hadoop's FileStatus as text: to ask each of them would take three calls of the JVM a file.
_STATUS: Final = re.compile(
    r"\{path=(.*?); isDirectory=false; length=\d+; replication=\d+; blocksize=\d+; "
    r"modification_time=(-?\d+); access_time=",
    flags=re.S,
)
_LOCAL: Final = re.compile("file:/+")
_PARTITION: Final = re.compile(r"/[^/=]+=[^/]*/")


class RepeatedFilesError(Exception):
    """Raised in a batch whose files Spark would read more than once, because of their names."""


class Differences(NamedTuple):
    """Files of a batch, by their addresses, of which the scan and the log do not agree."""

    repeated: tuple[str, ...]
    missing: tuple[str, ...]
    foreign: tuple[str, ...]


def compare(scanned: Sequence[str], listed: Mapping[str, int]) -> Differences:
    """Compare the files of a scan with the modification times of those that the log lists."""
    counts = collections.Counter(scanned)
    return Differences(
        tuple(path for path, times in counts.items() if times > 1),
        tuple(path for path in listed if path not in counts),
        tuple(path for path in counts if path not in listed),
    )


class _Location(NamedTuple):
    """A line of the offset log, and the JVM's stream that it is of."""

    number: int
    name: str
    stream: Any
    folder: str | None  # of a file source, in ``sources/``

    def in_partitions(self, paths: Sequence[str]) -> list[str]:
        """Return the files that Spark would find in folders of partitions.

        It looks for them below the path of the source, if that is no pattern.
        """
        base = str(self.stream.toString()).partition("[")[2].removesuffix("]")
        if is_pattern(base):
            return []
        return [path for path in paths if _PARTITION.search(path.removeprefix(base))]


class ScanGuard:
    """Compares the batches of a query, over all its starts.

    Attributes:
        each_file_once: whether the next start has to change its file sources, so that the names of
            files do not matter.
    """

    def __init__(self) -> None:
        self.each_file_once = False
        self._start: _Scans | None = None

    def starts(self) -> None:
        self._start = None

    def check(self, query: QueryDefinition, execution: Any, batch: int, logs: BatchLogs) -> None:
        """Compare a batch that was planned, and whose logs were read.

        Raises:
            RepeatedFilesError: files would be read more than once; each is read once after a start
                with changed sources.
            MissingInputError: files are not there any more. Spark would pass over them
                (SPARK-17599).
            MisreadInputError: any other difference.
        """
        from py4j.protocol import Py4JError

        if self._start is None:
            self._start = _Scans(query, execution, is_changed=self.each_file_once)
        try:
            self._start.check(batch, logs)
        except RepeatedFilesError:
            self.each_file_once = True
            text = "query=%s batch=%s has names that Spark takes for patterns: it starts again"
            log.info(text, query.name, batch)
            raise
        except (Py4JError, ValueError) as error:  # another version of Spark
            text = "query=%s batch=%s: what it scans is not compared with its offsets: %s"
            log.warning(text, query.name, batch, error)


class _Scans:
    """The scans of one start.

    Args:
        execution: the JVM's ``StreamExecution``.
        is_changed: whether the sources were changed so that each file is read once.
    """

    def __init__(self, query: QueryDefinition, execution: Any, *, is_changed: bool) -> None:
        self._query, self._execution = query, execution
        self._is_changed = is_changed

    def check(self, batch: int, logs: BatchLogs) -> None:
        for leaf in leaves(self._execution.lastExecution().executedPlan()):
            kind = leaf.getClass().getSimpleName()
            if kind == FILE_SCAN and reads_stream(leaf):
                self._check_files(batch, leaf, logs)
            elif kind == STREAM_SCAN:
                self._check_range(batch, leaf, logs)

    @functools.cached_property
    def _locations(self) -> list[_Location]:
        streams = items(self._execution.sources())
        found = []
        for number, (stream, source) in enumerate(zip(streams, self._query.sources, strict=True)):
            is_of_files = stream.getClass().getSimpleName() == FILE_SOURCE
            folder = private_value(stream, "metadataLog").metadataPath() if is_of_files else None
            name = str(folder.getName()) if folder is not None else None
            found.append(_Location(number, source.name, stream, name))
        return found

    def _check_files(self, batch: int, leaf: Any, logs: BatchLogs) -> None:
        locations = self._locations_of(leaf)
        if not locations or is_marker(locations[0].name):  # which are removed when they are read
            return
        if locations[0].folder is None:  # a connector's, of which Spark logs no files
            return
        found_files = list(scanned(leaf.relation().location().allFiles()))
        paths = [path for path, _ in found_files]
        listed = [files for each in locations for files in self._listed(batch, each, logs)]
        if not listed:
            text = (
                "query=%s batch=%s: Spark's logs do not tell the files of source %s: not compared"
            )
            log.warning(text, self._query.name, batch, locations[0].name)
            return
        # Where several lines of the log may be the scan's, it is the one that is most like it.
        found = [compare(paths, each) for each in listed]
        best = min(range(len(found)), key=lambda index: sum(map(len, found[index])))
        source = locations[0].name
        self._refuse(batch, source, found[best], listed[best])
        if self._is_changed and (parts := locations[0].in_partitions(paths)):
            what = (
                f"source {source!r} has files in folders of partitions ({some_of(parts)}) beside "
                "files whose names Spark takes for patterns, so that it does not read the columns "
                "of the folders; rename those files"
            )
            raise MisreadInputError(self._query.name, batch, what)
        self._warn_of_changes(batch, source, found_files, listed[best])

    def _listed(self, batch: int, location: _Location, logs: BatchLogs) -> Iterator[dict[str, int]]:
        for begin, end in logs.ranges(batch, location.number, location.name):
            files = logs.files(batch, begin, end, str(location.folder))
            if files is not None:
                yield _by_path(files)

    def _refuse(
        self, batch: int, source: str, found: Differences, listed: Mapping[str, int]
    ) -> None:
        query = self._query.name
        twice = [path for path, modified_ms in listed.items() if modified_ms < 0]
        if found.missing:
            raise MissingInputError(query, batch, found.missing)
        if found.repeated and not self._is_changed and not twice:
            raise RepeatedFilesError
        if found.repeated or twice:
            what = f"Spark reads files of source {source!r} more than once"
            raise MisreadInputError(query, batch, f"{what}: {some_of(twice or found.repeated)}")
        if found.foreign:
            what = f"Spark reads files of source {source!r} that are not listed"
            raise MisreadInputError(query, batch, f"{what}: {some_of(found.foreign)}")

    def _warn_of_changes(
        self,
        batch: int,
        source: str,
        scanned: Sequence[tuple[str, int]],
        listed: Mapping[str, int],
    ) -> None:
        changed = [path for path, modified_ms in scanned if listed[path] != modified_ms]
        if changed:
            text = "query=%s batch=%s source=%s: files were changed after they were listed: %s"
            log.warning(text, self._query.name, batch, source, some_of(changed))

    def _check_range(self, batch: int, leaf: Any, logs: BatchLogs) -> None:
        for location in self._locations_of(leaf)[:1]:
            scanned = str(leaf.start().json()), str(leaf.end().json())
            listed = logs.ranges(batch, location.number, location.name)
            if listed and not any(_is_range(scanned, each) for each in listed):
                begins, ends = listed[0]
                what = (
                    f"source {location.name!r} is read from {scanned[0]} to {scanned[1]}, and its "
                    f"offsets are {begins} to {ends}"
                )
                raise MisreadInputError(self._query.name, batch, what)

    def _locations_of(self, leaf: Any) -> list[_Location]:
        if len(self._locations) == 1:  # each call of the JVM costs the batch time
            return self._locations
        stream = stream_of(leaf)
        if stream is not None:
            return [each for each in self._locations if each.stream.equals(stream)]
        name = option_of(leaf.relation().options(), SOURCE_OPTION)  # before Spark 4.0
        return [each for each in self._locations if each.name == name and each.folder is not None]


def _is_range(scanned: tuple[str, str], listed: tuple[str, str]) -> bool:
    """Whether offsets are the logged ones; without a first one the source says where it begins."""
    if offset_value(scanned[1]) != offset_value(listed[1]):
        return False
    return listed[0] == NO_OFFSET or bool(offset_value(scanned[0]) == offset_value(listed[0]))


def scanned(files: Any) -> Iterator[tuple[str, int]]:
    """Yield path and modification time in milliseconds of the JVM's statuses of files."""
    found = _STATUS.findall(str(files.mkString("\n")))
    if len(found) != int(files.size()):  # a filesystem that prints them otherwise
        found = [(str(e.getPath().toString()), e.getModificationTime()) for e in items(files)]
    for path, modified_ms in found:
        yield _comparable(path), int(modified_ms)


def _by_path(listed: Mapping[str, int]) -> dict[str, int]:
    return {_comparable(urllib.parse.unquote(path)): at_ms for path, at_ms in listed.items()}


def _comparable(path: str) -> str:
    """Return a path with one slash after the scheme of local files, as Hadoop prints it."""
    return _LOCAL.sub("file:/", path, count=1) if path.startswith("file:") else path
