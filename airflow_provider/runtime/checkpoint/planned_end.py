"""A planned batch that reads beyond the ends of its sources, changed so that it does not.

Spark runs a planned, uncommitted batch exactly as its entry in the offset log, and for files the
position's entry in ``sources/<n>/``, says. Both are replaced here while the query does not run.
That is safe for a batch that was not staged: every start that may stage it has looked before
whether it is within the ends, which are put once and never change, so what is beyond them was
staged by nobody. (One that was planned before the ends were put is not replaced.) Each file is
replaced by what follows from the batch as it was planned and from the ends alone, source by source;
a driver that was taken for dead and does so later writes the same again. For the same reason
nothing is removed: a batch of which nothing is within the ends stays planned, without input.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.checkpoint.logs import OffsetEntry
from airflow_provider.runtime.checkpoint.source_end import NO_OFFSET, is_reached, limited
from airflow_provider.runtime.checkpoint.source_log import LoggedFile, SourceLog, position_of
from airflow_provider.runtime.errors import CheckpointError, MissingStateError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
    from airflow_provider.runtime.checkpoint.source_end import SourceEnd


class PlannedEnds:
    """Compares the batches of a query with the ends of its sources.

    Args:
        checkpoint: the query's.
        logs: its logs.
        ends: the ends.
    """

    def __init__(
        self, checkpoint: Storage, logs: CheckpointLogs, ends: Sequence[SourceEnd]
    ) -> None:
        self._checkpoint = checkpoint
        self._logs = logs
        self._offsets = [end for end in ends if end.log is None]
        self._files = [_FilesEnd(checkpoint, end) for end in ends if end.log is not None]

    def is_within(self, batch: int) -> bool:
        """Whether a planned batch reads nothing beyond the ends."""
        planned, before = self._entries(batch)
        return self._limited(planned, before) == planned and all(
            not files.beyond(_numbers(files.end, planned, before)) for files in self._files
        )

    def limit(self, batch: int) -> bool:
        """Let a planned batch that was not staged, of a query that does not run, end there.

        Returns:
            Whether it still has input.

        Crash safety: calling it again completes it; between, the query must not be started.
        Idempotent: by the batch.
        """
        planned, before = self._entries(batch)
        has_files = [files.limit(_numbers(files.end, planned, before)) for files in self._files]
        entry = self._limited(planned, before)
        if entry != planned:
            self._logs.replace_offsets(batch, entry)
        failpoints.hit("plan.replaced")
        by_log = {files.end.place for files in self._files}
        lines = zip(entry.sources, before.sources, strict=True)
        return any(has_files) or any(
            line != old for place, (line, old) in enumerate(lines) if place not in by_log
        )

    def unread(self, batch: int) -> dict[str, list[str]]:
        """Return what is not read up to its end, by source.

        Args:
            batch: the last one that was committed, or is about to be; -1 for none.

        Returns:
            Of files their addresses, of other sources how far they were read, and their end.
        """
        lines = self._logs.offsets(batch).sources if batch >= 0 else None
        found: dict[str, list[str]] = {}
        for end in self._offsets:
            line = lines[end.place] if lines is not None else NO_OFFSET
            last = end.offset or NO_OFFSET
            if not is_reached(line, last):
                found[end.source] = [f"read up to {line}, of {last}"]
        for files in self._files:
            number = position_of(lines[files.end.place]) if lines is not None else -1
            if left := files.unread(number):
                found[files.end.source] = [file.path for file in left]
        return found

    def _entries(self, batch: int) -> tuple[OffsetEntry, OffsetEntry]:
        """Return the entry of a batch and the one before it, which of batch 0 has no offsets."""
        planned = self._logs.offsets(batch)
        if batch > 0:
            return planned, self._before(batch)
        nothing = tuple(NO_OFFSET for _ in planned.sources)
        return planned, OffsetEntry(planned.version, {}, nothing)

    def _before(self, batch: int) -> OffsetEntry:
        try:
            return self._logs.offsets(batch - 1)
        except CheckpointError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise MissingStateError(self._logs.url, batch, (f"offsets/{batch - 1}",)) from error
            raise

    def _limited(self, planned: OffsetEntry, before: OffsetEntry) -> OffsetEntry:
        return planned.with_positions(
            {
                end.place: limited(
                    planned.sources[end.place], before.sources[end.place], end.offset or NO_OFFSET
                )
                for end in self._offsets
            }
        )


def _numbers(end: SourceEnd, planned: OffsetEntry, before: OffsetEntry) -> range:
    """Return the positions that a batch has of a file source."""
    first = position_of(before.sources[end.place]) + 1
    return range(first, position_of(planned.sources[end.place]) + 1)


class _FilesEnd:
    """The end of one file source.

    Args:
        checkpoint: the query's.
        end: the end.
    """

    def __init__(self, checkpoint: Storage, end: SourceEnd) -> None:
        self.end = end
        self._log = SourceLog(checkpoint, end.log or "")

    @functools.cached_property
    def _recorded(self) -> dict[str, LoggedFile]:
        files = (LoggedFile(path, at_ms) for path, at_ms in self.end.addresses().items())
        return {self.end.key_of(file.path): file for file in files}

    def beyond(self, numbers: range) -> bool:
        """Whether positions have a file that the end does not have."""
        return any(self._within(number)[1] for number in numbers)

    def limit(self, numbers: range) -> bool:
        """Let positions have only files of the end, all that is left where that would be none.

        Returns:
            Whether they have any.
        """
        within = {number: self._within(number) for number in numbers}
        kept = {number: files for number, (files, _) in within.items()}
        others = [number for number, (_, beyond) in within.items() if beyond]
        if others and not any(kept.values()):
            kept[numbers[-1]] = self.unread(numbers[0] - 1)
            others = sorted({*others, numbers[-1]})
        if others:
            self._log.replace({number: kept[number] for number in others})
        return any(kept.values())

    def unread(self, number: int) -> list[LoggedFile]:
        """Return the files that no position up to *number* has, the oldest first."""
        read = {self.end.key_of(file.path) for file in self._log.read_through(number)}
        left = (file for key, file in self._recorded.items() if key not in read)
        return sorted(left, key=lambda file: (file.modified_ms, file.path))

    def _within(self, number: int) -> tuple[list[LoggedFile], bool]:
        """Return the files of a position that the end has, and whether there are others."""
        files = self._log.files(number)
        known = [file for file in files if self.end.key_of(file.path) in self._recorded]
        return known, len(known) < len(files)
