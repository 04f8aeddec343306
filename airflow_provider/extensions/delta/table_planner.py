"""Plans of batches: where a query starts in a Delta table, how far it reads, and its files."""

from __future__ import annotations

import datetime as dt
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from airflow_provider.extensions.delta.partition_values import PartitionFilter
from airflow_provider.extensions.delta.positions import Position, at_snapshot, at_version
from airflow_provider.extensions.delta.table_changes import ChangeFeed, table_columns
from airflow_provider.extensions.delta.table_files import tasks_of
from airflow_provider.extensions.delta.table_options import APPENDED, NOW, SNAPSHOT
from airflow_provider.extensions.delta.table_schema import (
    check_columns,
    check_metadata,
    check_protocol,
    check_stored,
)
from airflow_provider.runtime.api.errors import ConfigError, LostInputError, SparkStreamError
from airflow_provider.runtime.api.kit.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql.types import StructType

    from airflow_provider.extensions.delta.commits import Commit, TableFile
    from airflow_provider.extensions.delta.table_files import FileTask
    from airflow_provider.extensions.delta.table_log import TableLog
    from airflow_provider.runtime.api.kit.clock import Clock

log = logging.getLogger(__name__)

_COUNTED_VERSIONS: Final = 100  # a longer backlog is not read from the store only to be counted


class Limit(NamedTuple):
    """The most that a batch reads, though at least one file; None is no limit.

    A file without statistics has an unknown number of rows, and is the last one of its batch when
    rows are limited.
    """

    files: int | None = None
    rows: int | None = None
    size: int | None = None  # in bytes


class _Tally:
    def __init__(self, limit: Limit, count_rows: Callable[[TableFile], int | None]) -> None:
        self._limit = limit
        self._count_rows = count_rows
        self._files = self._rows = self._size = 0
        self._is_full = False

    def admits(self, files: Sequence[TableFile]) -> bool:
        """Count files that are read together, unless they would exceed the limit.

        The first ones of a batch never do.
        """
        found = list(self._rows_of(files))
        rows = self._rows + sum(each or 0 for each in found)
        size = self._size + sum(file.size for file in files)
        counts = (self._files + len(files), rows, size)
        pairs = zip(counts, self._limit, strict=True)
        exceeds = any(most is not None and n > most for n, most in pairs)
        if self._files and (self._is_full or exceeds):
            return False
        self._files, self._rows, self._size = counts
        self._is_full = None in found
        return True

    def _rows_of(self, files: Sequence[TableFile]) -> Iterator[int | None]:
        """Yield the rows of each file until they exceed the limit: to count them may be a read."""
        most, rows = self._limit.rows, self._rows
        for file in files:
            if most is None or rows > most:
                return
            found = self._count_rows(file)
            rows += found or 0
            yield found


class TablePlanner:
    """Plans the batches of one query; its log is refreshed by the caller."""

    def __init__(self, table: TableLog, wanted: StructType, *, clock: Clock | None = None) -> None:
        self.table = table
        self._wanted = wanted = table_columns(wanted, table.options)
        self._feed = ChangeFeed(table, wanted) if table.options.reads_feed else None
        self._clock = clock or SystemClock()
        try:
            self._where = PartitionFilter(table.options.where, table.partition_types)
        except ConfigError as error:
            raise ConfigError(f"{table.name}: {error}") from error
        self._version = table.version  # older ones may lack columns; newer ones may not
        self._known_columns = frozenset(field["name"] for field in table.schema["fields"])
        check_columns(table.schema, wanted, table.name, may_lack=False)
        stored = table.stored_columns
        self._stored = {name: stored[name] for name in wanted.fieldNames()}

    # --- where a query starts and ends ------------------------------------------------------------

    def end(self) -> Position:
        """Return the position after all that the table has now."""
        return at_version(self.table.table_id, self.table.version + 1)

    def first(self, end: Position) -> Position:
        """Return where a new query starts.

        Args:
            end: the position after all that exists for the query.

        Raises:
            ConfigError: the start does not exist yet, or a change data feed does not have it.
            LostInputError: entries of the log from the start on were cleaned up.
        """
        starts, table_id = self.table.options.starts, self.table.table_id
        if starts == SNAPSHOT:
            return at_snapshot(table_id, end.version - 1)
        if starts == NOW:
            return end
        try:
            if isinstance(starts, dt.datetime):
                return self._first_at(self._checked_moment(starts))
            return self._first_at(self._checked_version(int(starts)))
        except LostInputError as error:
            if self.table.options.on_gap != SNAPSHOT:
                raise
            log.warning("%s; the query begins with a snapshot (on_gap)", error)
            return at_snapshot(table_id, end.version - 1)

    def _first_at(self, version: int) -> Position:
        position = at_version(self.table.table_id, version)
        if self._feed is not None and version <= self.table.version:
            self._files_at(position)  # which is refused before the start is fixed
        return position

    def _checked_version(self, version: int) -> int:
        newest = self.table.version
        if version > newest + 1:
            raise ConfigError(
                f"{self.table.name}: starts: version {version} does not exist yet; the newest is "
                f"{newest}"
            )
        if version <= newest:
            self.table.commit(version)  # which is refused if it was cleaned up
        return version

    def _checked_moment(self, moment: dt.datetime) -> int:
        version = self.version_at(moment)
        if version > self.table.version and moment > self._clock.now():
            raise ConfigError(
                f"{self.table.name}: starts: {moment.isoformat()} is in the future; versions that "
                "are committed before it would be read, too"
            )
        return version

    def version_at(self, moment: dt.datetime) -> int:
        """Return the first version that was committed at *moment* or later, by its writer's clock.

        That is the version after the newest if none was.

        Raises:
            ConfigError: a commit does not say its time.
            LostInputError: an earlier version may have been committed then, and was cleaned up.
        """
        at_ms = moment.timestamp() * 1000
        first, newest = self.table.earliest(), self.table.version
        if first > newest:
            raise LostInputError(f"{self.table.name}: its log has no entry of version {newest}")
        low, high = first, newest + 1
        while low < high:
            middle = (low + high) // 2
            if self._time_of(middle) >= at_ms:
                high = middle
            else:
                low = middle + 1
        while low > first and self._time_of(low - 1) >= at_ms:  # clocks of writers differ
            low -= 1
        if low == first and first > 0:
            raise LostInputError(
                f"{self.table.name}: {moment.isoformat()} is before the first entry of its log, "
                f"that of version {first}: older ones were cleaned up. "
                f"{self.table.options.after_gap}"
            )
        return low

    def _time_of(self, version: int) -> int:
        found = self.table.commit(version).timestamp_ms
        if found is None:
            raise ConfigError(
                f"{self.table.name}: version {version} does not say when it was committed; give a "
                "version instead of a time"
            )
        return found

    # --- how far a batch reads --------------------------------------------------------------------

    def check_position(self, position: Position) -> None:
        """Refuse a position that is not one of this table.

        Raises:
            LostInputError: the table was recreated, or has lost its newest versions.
        """
        name, newest = self.table.name, self.table.version
        if position.table_id != self.table.table_id:
            raise LostInputError(
                f"{name}: the query has read {position.describe()} of another table in this folder,"
                f" with the id {position.table_id}; now its id is {self.table.table_id}: it was "
                "deleted and recreated. Begin with a new query"
            )
        if position.order > self.end().order:
            raise LostInputError(
                f"{name}: it ends at version {newest}, and the query has read it up to "
                f"{position.describe()}: the table has lost its newest versions. Restore them, or "
                "begin with a new query"
            )

    def advance(self, start: Position, end: Position, limit: Limit) -> Position:
        """Return how far the next batch reads.

        Args:
            start: where it begins.
            end: the position after all that exists for the query.
            limit: the most that it reads.

        Returns:
            A position after *start*. With ``on_gap``, if needed entries or files are missing, it is
            before the first file of a new snapshot.

        Raises:
            ConfigError: the next commit cannot be read; see `Commit.appended`.
            LostInputError: an entry of the log or a data file is missing.
        """
        self.table.forget_before(start)
        if self._feed is not None:
            self._feed.forget_before(start)
        try:
            to = self._advanced(start, end, limit)
            self.check_present(start, to)
        except LostInputError as error:
            again = at_snapshot(start.table_id, end.version - 1)
            if self.table.options.on_gap != SNAPSHOT or again.order <= start.order:
                raise
            log.warning("%s; the query restarts from version %d", error, again.version)
            return again
        return to

    def _advanced(self, start: Position, end: Position, limit: Limit) -> Position:
        position, tally = start, self._new_tally(limit)
        while position.order < end.order:
            try:
                files = self._files_at(position)[position.files :]
                selected = [self._where.selects(file.partition) for file in files]
            except SparkStreamError:
                if position != start:  # what comes before is read first
                    return position
                raise
            if self._feed is not None and not position.is_snapshot:
                # Never a part of a commit: what replaces a row comes with what deletes it.
                chosen = [
                    file for file, is_selected in zip(files, selected, strict=True) if is_selected
                ]
                if not tally.admits(chosen):
                    return position
            else:
                for file, is_selected in zip(files, selected, strict=True):
                    if is_selected and not tally.admits([file]):
                        return position
                    position = position._replace(files=position.files + 1)
            position = at_version(position.table_id, position.next_version)
        return position

    def _new_tally(self, limit: Limit) -> _Tally:
        return _Tally(limit, _rows_of if self._feed is None else self._feed.count_rows)

    def files_between(self, start: Position, end: Position) -> list[TableFile]:
        """Return the files that a batch reads, in their order.

        Raises:
            ConfigError, LostInputError: see `advance`.
        """
        return list(self._between(start, end))

    def _between(self, start: Position, end: Position) -> Iterator[TableFile]:
        position = start
        if end.is_snapshot and start.order[:2] != end.order[:2]:  # the query has restarted from it
            position = end._replace(files=0)
        while position.order < end.order:
            is_last = position.order[:2] == end.order[:2]
            files = self._files_at(position)
            if is_last and end.files > len(files):
                raise LostInputError(
                    f"{self.table.name}: a batch reads up to {end.describe()}, which has "
                    f"{len(files)} files"
                )
            chosen = files[position.files : end.files if is_last else None]
            yield from (file for file in chosen if self._where.selects(file.partition))
            if is_last:
                return
            position = at_version(position.table_id, position.next_version)

    def check_present(self, start: Position, end: Position) -> list[TableFile]:
        """Return the files that a batch reads, unless one is missing.

        Raises:
            LostInputError: it was removed, as ``VACUUM`` does.
        """
        files = self.files_between(start, end)
        if gone := self.table.missing(files):
            raise LostInputError(
                f"{self.table.name}: {len(gone)} data files from {start.describe()} on are "
                f"missing, {gone[0]} first: they were removed, by VACUUM or by hand; the table is "
                f"now at version {self.table.version}. {self.table.options.after_gap}"
                f"{'' if self._feed else ', unless the batch is planned already'}"
            )
        return files

    def outstanding(self, position: Position, end: Position) -> int | None:
        """Return how many files are unread; None if many entries would have to be read for it."""
        if end.version - position.version > _COUNTED_VERSIONS:
            return None
        try:
            return len(self.files_between(position, end))
        except SparkStreamError:  # the next batch is refused for it
            return None

    def files_of_new_query(self) -> list[TableFile]:
        """Return the files that a new query reads up to now, as all its batches together do.

        Raises:
            ConfigError, LostInputError: see `first` and `advance`.
        """
        end = self.end()
        position = self.first(end)
        files: list[TableFile] = []
        while position.order < end.order:
            to = self.advance(position, end, Limit())
            files += self.files_between(position, to)
            position = to
        return files

    def tasks(self, files: Sequence[TableFile]) -> list[FileTask]:
        """Return the tasks that read *files*."""
        return tasks_of(files, self._stored)

    # --- the files of a version -------------------------------------------------------------------

    def _files_at(self, position: Position) -> Sequence[TableFile]:
        if position.is_snapshot:
            return self._files_of_snapshot(position.version)
        commit = self.table.commit(position.version)
        self._check_commit(commit)
        if self._feed is not None:
            return self._feed.changes_of(commit)
        try:
            skips = self.table.options.changes == APPENDED
            return commit.appended(skip_changes=skips)
        except ConfigError as error:
            raise ConfigError(f"{self.table.name}: {error}") from error

    def _files_of_snapshot(self, version: int) -> Sequence[TableFile]:
        snapshot = self.table.snapshot(version)
        where = f"{self.table.name}: version {version}"
        may_lack = version <= self._version
        check_columns(snapshot.schema, self._wanted, where, may_lack=may_lack)
        check_stored(snapshot.stored, self._stored, where, may_lack=may_lack)
        return snapshot.files if self._feed is None else self._feed.inserts_of(snapshot)

    def _check_commit(self, commit: Commit) -> None:
        where = f"{self.table.name}: version {commit.version} ({commit.operation})"
        if commit.protocol is not None:
            version = int(commit.protocol.get("minReaderVersion", 1))
            check_protocol(version, commit.protocol.get("readerFeatures") or (), where)
        if commit.metadata is None:
            return
        if commit.metadata.get("id") != self.table.table_id:
            raise LostInputError(
                f"{where}: the table was replaced, and has another id; begin with a new query"
            )
        may_lack = commit.version <= self._version
        others = check_metadata(
            commit.metadata, self._wanted, self._stored, where, may_lack=may_lack
        )
        new = set(others) - self._known_columns
        if new and not may_lack and self.table.options.columns is None:
            self._known_columns |= new
            log.warning(
                "%s adds columns, which are read from the query's next start on: %s",
                where,
                ", ".join(sorted(new)),
            )


def _rows_of(file: TableFile) -> int | None:
    return file.rows
