"""Changes of a stopped query's offset log: drain batch, reset positions, ends of sources."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.checkpoint.drain_step import (
    DrainStep,
    next_drain_step,
    next_watermark,
)
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs, OffsetEntry
from airflow_provider.runtime.checkpoint.source_end import (
    NO_OFFSET,
    LoggedFile,
    SourceLog,
    is_reached,
    limited,
    position_of,
)
from airflow_provider.runtime.checkpoint.source_names import key_of_source
from airflow_provider.runtime.errors import (
    CheckpointError,
    JobDrainedError,
    MissingStateError,
    OpenBatchError,
    UnknownFormatError,
    UnknownJobError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from airflow_provider.runtime.api.sources import OrderedSource
    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.checkpoint.source_end import SourceEnd


def can_reset(names: Sequence[str | None], locations: Collection[int]) -> bool:
    """Whether the folders of the progress of the sources at these locations are known."""
    known = [name for name in names if name is not None]
    return len(set(known)) == len(known) or set(locations) in (set(), set(range(len(names))))


def reset_positions(
    checkpoint: Storage, locations: Collection[int], names: Sequence[str | None] = ()
) -> None:
    """Let the sources at some locations of a stopped query begin from their beginning.

    Spark looks at the last two entries, because some sources want to see the last batch planned
    again. What a source has stored itself lies in ``sources/<location>`` and goes with its offset.

    Raises:
        OpenBatchError: a batch is planned and not committed: its rows would be lost.
        UnknownFormatError: the log does not know its sources by their locations.

    Crash safety: calling it again completes it; between, the query must not be started. Idempotent:
    by the locations.
    """
    set_positions(checkpoint, dict.fromkeys(locations, NO_OFFSET), names)
    logs = CheckpointLogs(checkpoint)
    last = logs.position().last_commit
    if last >= 0 and len(set(locations)) == len(logs.offsets(last).sources):
        checkpoint.delete("sources")
    is_named = last >= 0 and logs.offsets(last).names is not None
    for location in locations:
        folder = key_of_source(str(names[location])) if is_named else str(location)
        checkpoint.delete(f"sources/{folder}")


def set_positions(
    checkpoint: Storage, lines: Mapping[int, str], names: Sequence[str | None] = ()
) -> None:
    """Set the offsets of some sources of a stopped query; see :func:`reset_positions`.

    *names* are those of the sources at the locations, as its topology has them; a log of positions
    does without.
    """
    logs = CheckpointLogs(checkpoint)
    position = logs.position()
    if position.open_batch is not None:
        raise OpenBatchError(
            f"{logs.url}: batch {position.open_batch} is planned and not committed, so where its "
            "sources continue cannot be changed; let it end first"
        )
    last = position.last_commit
    for batch in (last - 1, last):
        if batch not in logs.batches("offsets"):
            continue
        entry = logs.offsets(batch)
        if entry.has_spark_ids:
            raise UnknownFormatError(
                f"{logs.url}/offsets/{batch}: an offset log of version {entry.version!r} with ids "
                "of Spark's"
            )
        for location, line in lines.items():
            name = names[location] if entry.names is not None else None
            entry = entry.with_offset(location, name, line)
        checkpoint.delete(f"offsets/.{batch}.crc")  # of what was there before
        checkpoint.put(f"offsets/{batch}", entry.to_bytes())


def plan_drain_batch(logs: CheckpointLogs, *, further: bool = False) -> int:
    """Append the drain batch to the offset log of a query that is not running; return the batch.

    An entry with the offsets of the last committed batch and :data:`.MAX_WATERMARK_MS` reads
    nothing, evicts all state and fires all event-time timers. Spark's own state repartitioning
    appends such entries too. The idea of a last checkpoint after MAX_WATERMARK is Flink's
    (FLIP-147). Start the query once with ``trigger(once=True)`` to run it; with ``availableNow``
    rows that arrived meanwhile would be read after it and dropped as late. With *further* a drained
    query gets another batch with a later watermark, for rows that wait for it.

    Raises:
        UnknownJobError: there is no checkpoint, or no batch has committed.
        OpenBatchError: a batch is planned and not committed.
        JobDrainedError: the query is drained already; with *further*, up to the end of time.

    Crash safety: the entry is put whole or not at all. Idempotent: by the batch.
    """
    position = logs.position()
    if position.last_commit < 0 and position.open_batch is None:
        raise UnknownJobError(
            f"{logs.url}: no checkpoint with a committed batch there; run the query first"
        )
    step = next_drain_step(position, stateful=True)
    if step is DrainStep.RUN_PLANNED:
        return position.last_offsets
    if step is DrainStep.RUN_OPEN:
        raise OpenBatchError(
            f"{logs.url}: batch {position.open_batch} is planned and not committed; run the query "
            "once with trigger(once=True), then plan the drain"
        )
    entry = logs.offsets(position.last_commit)
    watermark_ms = next_watermark(entry.watermark_ms)
    if watermark_ms is None or (step is DrainStep.DONE and not further):
        raise JobDrainedError(f"{logs.url}: drained already, by batch {position.last_commit}")
    batch = position.last_commit + 1
    if not logs.put_offsets(batch, entry.with_watermark(watermark_ms)):
        raise OpenBatchError(
            f"{logs.url}: batch {batch} was planned just now by another process; is it running?"
        )
    return batch


class PlannedEnds:
    """Compares the batches of a query with the ends of its sources, and limits planned ones.

    A planned batch that reads beyond the ends is changed by replacing its entry in the offset log,
    and for files the position's entry in ``sources/<n>/``, while the query does not run. That is
    safe for a batch that was not staged: every start that may stage it has checked it against the
    ends, which are put once and never change. (One that was planned before the ends were put is not
    replaced.) Each file is replaced by what follows from the batch as it was planned and from the
    ends alone, source by source; a driver presumed dead that does so later writes the same again.
    For the same reason nothing is removed: a batch without rows within the ends stays planned,
    without input.
    """

    def __init__(
        self,
        checkpoint: Storage,
        logs: CheckpointLogs,
        ends: Sequence[SourceEnd],
        orders: Mapping[str, OrderedSource] | None = None,
    ) -> None:
        self._orders = orders or {}
        self._checkpoint = checkpoint
        self._logs = logs
        self._offsets = [end for end in ends if end.log is None]
        self._files = [_FilesEnd(checkpoint, end) for end in ends if end.log is not None]

    def is_within(self, batch: int) -> bool:
        planned, before = self._entries(batch)
        return self._limited(planned, before) == planned and all(
            not files.beyond(_numbers(files.end, planned, before)) for files in self._files
        )

    def limit(self, batch: int) -> bool:
        """Limit a planned batch that was not staged to the ends; return whether it still has input.

        Crash safety: calling it again completes it; between, the query must not be started.
        Idempotent: by the batch.
        """
        planned, before = self._entries(batch)
        has_files = [files.limit(_numbers(files.end, planned, before)) for files in self._files]
        entry = self._limited(planned, before)
        if entry != planned:
            self._logs.replace_offsets(batch, entry)
        failpoints.hit("plan.replaced")
        return any(has_files) or any(self._moved(entry, before))

    def _moved(self, entry: OffsetEntry, before: OffsetEntry) -> Iterator[bool]:
        """Yield of each source whose end is an offset, or unknown, whether the batch reads it."""
        by_log = {files.end.location for files in self._files}
        names_by_log = {files.end.source for files in self._files}
        for location, line in enumerate(entry.sources):
            name = entry.names[location] if entry.names is not None else None
            is_by_log = location in by_log if name is None else name in names_by_log
            if not is_by_log:
                yield line != before.offset_of(location, name)

    def unread(self, batch: int) -> dict[str, list[str]]:
        """Return by source what is not read up to its end after *batch*, -1 for none."""
        entry = self._logs.offsets(batch) if batch >= 0 else None

        def read_to(end: SourceEnd) -> str:
            return entry.offset_of(end.location, end.source) if entry is not None else NO_OFFSET

        found: dict[str, list[str]] = {}
        for end in self._offsets:
            line, last = read_to(end), end.offset or NO_OFFSET
            order = self._orders.get(end.source)
            if not (is_reached if order is None else order.is_reached)(line, last):
                found[end.source] = [f"read up to {line}, of {last}"]
        for files in self._files:
            if left := files.unread(position_of(read_to(files.end))):
                found[files.end.source] = [file.path for file in left]
        return found

    def _entries(self, batch: int) -> tuple[OffsetEntry, OffsetEntry]:
        planned = self._logs.offsets(batch)
        if batch > 0:
            return planned, self._before(batch)
        nothing = tuple(NO_OFFSET for _ in planned.sources)
        return planned, OffsetEntry(planned.version, {}, nothing, planned.names)

    def _before(self, batch: int) -> OffsetEntry:
        try:
            return self._logs.offsets(batch - 1)
        except CheckpointError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise MissingStateError(self._logs.url, batch, (f"offsets/{batch - 1}",)) from error
            raise

    def _limited(self, planned: OffsetEntry, before: OffsetEntry) -> OffsetEntry:
        entry = planned
        for end in self._offsets:
            where = end.location, end.source
            line = self._limit_of(end)(
                planned.offset_of(*where), before.offset_of(*where), end.offset or NO_OFFSET
            )
            entry = entry.with_offset(*where, line)
        return entry

    def _limit_of(self, end: SourceEnd) -> Callable[[str, str, str], str]:
        order = self._orders.get(end.source)
        return limited if order is None else order.limited


def _numbers(end: SourceEnd, planned: OffsetEntry, before: OffsetEntry) -> range:
    where = end.location, end.source
    return range(
        position_of(before.offset_of(*where)) + 1, position_of(planned.offset_of(*where)) + 1
    )


class _FilesEnd:
    def __init__(self, checkpoint: Storage, end: SourceEnd) -> None:
        self.end = end
        self._log = SourceLog(checkpoint, end.log or "")

    @functools.cached_property
    def _recorded(self) -> dict[str, LoggedFile]:
        files = (LoggedFile(path, at_ms) for path, at_ms in self.end.addresses().items())
        return {self.end.key_of(file.path): file for file in files}

    def beyond(self, numbers: range) -> bool:
        return any(self._within(number)[1] for number in numbers)

    def limit(self, numbers: range) -> bool:
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
        read = {self.end.key_of(file.path) for file in self._log.read_through(number)}
        left = (file for key, file in self._recorded.items() if key not in read)
        return sorted(left, key=lambda file: (file.modified_ms, file.path))

    def _within(self, number: int) -> tuple[list[LoggedFile], bool]:
        files = self._log.files(number)
        known = [file for file in files if self.end.key_of(file.path) in self._recorded]
        return known, len(known) < len(files)
