"""Content of Spark's logs for a batch that ran, so that a late write over them is noticed.

Spark writes ``offsets/<N>`` and ``sources/<i>/<n>`` of a batch before it runs the batch, and
``commits/<N>`` after it. None of them is put if absent on a disk or in an object store, so a late
write of a dead process (a request repeated by its client, or on its way) can replace them
afterwards. Rows would be read twice, or never. The record of the epoch keeps what the batch ran
with.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import re
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.base.typed_json import read_json
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs, OffsetEntry, sha256
from airflow_provider.runtime.checkpoint.source_end import NO_OFFSET
from airflow_provider.runtime.errors import CheckpointError
from airflow_provider.runtime.errors.fixes import FROM_SCRATCH

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_provider.runtime.api.storages import Storage

log = logging.getLogger(__name__)

_COMPACT: Final = ".compact"
_FILE_OFFSET: Final = re.compile(r'\{"logOffset":(\d{1,18})\}')
# Of a source in one batch; Spark moves it by one, and by one more for each start that died before
# it had planned a batch. Without a bound a damaged entry would have files looked for without end.
_MOST_POSITIONS: Final = 100


@dataclasses.dataclass(frozen=True)
class LoggedBatch:
    """The logs of one batch.

    Attributes:
        offsets: the text of ``offsets/<N>``; bytes that are no text are escaped.
        digests: by path, the SHA-256 of ``offsets/<N>`` and of each file of ``sources/`` of the
            batch.
    """

    offsets: str
    digests: Mapping[str, str]


class BatchLogs:
    """Reads the logs of a query's batches, one after the other."""

    def __init__(self, checkpoint: Storage) -> None:
        self._checkpoint = checkpoint
        self._logs = CheckpointLogs(checkpoint)
        self._entries: dict[int, OffsetEntry | None] = {}  # of the offset log, by batch
        self._kept: dict[int, dict[str, bytes]] = {}  # by batch, the content of its source files

    def read(self, batch: int) -> LoggedBatch:
        self._put_back()
        path = f"offsets/{batch}"
        data = self._logs.offsets_bytes(batch)
        entry = OffsetEntry.parse(data, where=f"{self._logs.url}/{path}")
        self._entries = {batch - 1: self._entry_of(batch - 1), batch: entry}
        self._kept = {batch - 1: self._files_of(batch - 1), batch: self._files_of(batch)}
        digests = {each: sha256(text) for each, text in ({path: data} | self._kept[batch]).items()}
        return LoggedBatch(data.decode(errors="surrogateescape"), digests)

    def ranges(self, batch: int, location: int, source: str) -> list[tuple[str, str]]:
        """Return the offsets at which the batch that was read last begins and ends.

        Args:
            batch: the batch.
            location: a source's position in the plan.
            source: its name, by which a log with names has it.

        Returns:
            One pair; those of all sources if the log has them by ids that the plan does not tell;
            none if the log does not tell where the batch begins.
        """
        entry, before = self._entry_of(batch), self._lines_of(batch - 1)
        if entry is None or before is None:
            return []
        pairs = {
            name: (before.get(name, NO_OFFSET), line) for name, line in entry.by_source().items()
        }
        if entry.has_spark_ids:
            return list(pairs.values())
        key = source if entry.names is not None else str(location)
        return [pairs[key]] if key in pairs else []

    def files(self, batch: int, begin: str, end: str, folder: str) -> dict[str, int] | None:
        """Return the files that the batch which was read last has of a file source.

        Args:
            batch: the batch.
            begin: the offset at which the batch begins.
            end: the offset at which it ends.
            folder: the source's folder in ``sources/``.

        Returns:
            The modification time in milliseconds by address, as Spark writes them; a file that is
            listed twice has a time of -1. None if a position is not there as a file of its own:
            Spark removes those that it has compacted.
        """
        kept, found = self._files_of(batch), dict[str, int]()
        for number in range(_position(begin) + 1, _position(end) + 1):
            names = (f"sources/{folder}/{number}", f"sources/{folder}/{number}{_COMPACT}")
            data = next((kept[name] for name in names if name in kept), None)
            if data is None:
                return None
            for path, modified_ms in entries_at(number, data):
                found[path] = -1 if path in found else modified_ms
        return found

    def _put_back(self) -> None:
        for path, was in itertools.chain(*(files.items() for files in self._kept.values())):
            now = _read(self._checkpoint, path)
            if now in {None, was}:  # Spark itself removes what it has compacted
                continue
            log.warning("%s/%s: was replaced; put back as it was", self._checkpoint.url, path)
            folder, _, name = path.rpartition("/")
            self._checkpoint.delete(f"{folder}/.{name}.crc")  # it is of what has replaced the file
            self._checkpoint.put(path, was)

    def _files_of(self, batch: int) -> dict[str, bytes]:
        if batch in self._kept:
            return self._kept[batch]
        lines, before = self._lines_of(batch), self._lines_of(batch - 1)
        return dict(self._source_files(lines, before)) if lines and before is not None else {}

    def _lines_of(self, batch: int) -> dict[str, str] | None:
        if batch < 0:
            return {}
        entry = self._entry_of(batch)
        return entry.by_source() if entry is not None else None

    def _entry_of(self, batch: int) -> OffsetEntry | None:
        if batch in self._entries:
            return self._entries[batch]
        if batch < 0:
            return None
        try:
            return self._logs.offsets(batch)
        except CheckpointError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise

    def _source_files(
        self, lines: Mapping[str, str], before: Mapping[str, str]
    ) -> Iterator[tuple[str, bytes]]:
        """The offset log does not name the folder of a line, so each folder is searched."""
        numbers = _new_positions(lines, before)
        if not numbers:
            return
        for folder in self._checkpoint.list("sources"):
            for number in numbers:
                for name in (f"sources/{folder}/{number}", f"sources/{folder}/{number}{_COMPACT}"):
                    if (data := _read(self._checkpoint, name)) is not None:
                        yield name, data
                        break


def entries_at(number: int, data: bytes) -> Iterator[tuple[str, int]]:
    """Yield path and modification time in milliseconds of the files that a position has.

    A compacted file of the log has all positions before it, too, of which most lines are not read.
    """
    end = f'"batchId":{number}}}'
    lines = [line for line in data.decode(errors="replace").split("\n") if line.endswith(end)]
    for entry in read_json(f"[{','.join(lines)}]"):
        yield entry["path"], entry["timestamp"]


def changed_offsets(checkpoint: Storage, batch: int, logged: LoggedBatch) -> bytes | None:
    """Return the bytes of ``offsets/<batch>`` with which the batch ran, if the file has changed.

    Raises:
        CheckpointError: another file of the batch's logs has changed, so the rows that were read
            are unknown; the message names it.
    """
    path = f"offsets/{batch}"
    kept = logged.offsets.encode(errors="surrogateescape")
    for each, was in logged.digests.items():
        if each != path or sha256(kept) != was:
            check_unchanged(checkpoint, each, was)
    now = _read(checkpoint, path)
    return kept if now not in {None, kept} else None


def check_unchanged(checkpoint: Storage, path: str, was: str) -> None:
    """Raise CheckpointError if a file of Spark's logs was replaced since a batch ran with it."""
    data = _read(checkpoint, path)
    if data is None or sha256(data) == was:
        return
    raise CheckpointError(
        f"{checkpoint.url}/{path}: was replaced after its batch had run, by a late write of an "
        "earlier driver or by hand, so a restart could read rows twice or lose them; restore a "
        f"savepoint ('spark-stream savepoint restore'), or {FROM_SCRATCH}"
    )


def _new_positions(lines: Mapping[str, str], before: Mapping[str, str]) -> list[int]:
    """Each source is compared with itself: another one may be thousands of positions ahead."""
    found: set[int] = set()
    for name, line in lines.items():
        was, now = _position(before.get(name, "")), _position(line)
        found.update(range(max(was + 1, now - _MOST_POSITIONS + 1), now + 1))
    return sorted(found)


def _position(line: str) -> int:
    found = _FILE_OFFSET.fullmatch(line)
    return -1 if found is None else int(found[1])


def _read(checkpoint: Storage, path: str) -> bytes | None:
    try:
        return checkpoint.read(path)
    except FileNotFoundError:
        return None
