"""The end of a source, up to which a run reads it, and Spark's log of the files it has read."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeGuard

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.base.names import numbers_in
from airflow_provider.runtime.base.typed_json import (
    Mismatch,
    NonNegative,
    PathPart,
    decode,
    read_json,
)
from airflow_provider.runtime.errors import CorruptDocumentError, UnknownFormatError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from airflow_provider.runtime.api.storages import Storage


NO_OFFSET: Final = "-"
"""The line of a source without an offset in Spark's offset log; it begins from its beginning."""

PartitionOffsets = dict[str, dict[str, int]]


@dataclasses.dataclass(frozen=True)
class SourceEnd:
    """The end of one source of a query.

    Attributes:
        location: its line in the entries of Spark's offset log, if that has no names; else its
            place in the plan, which says nothing.
        offset: the offset, as Spark writes it, ``-`` for nothing at all; None for files.
        log: the folder in ``sources/`` with Spark's log of read files; None where the end is an
            offset.
        files: modification time in milliseconds by name by folder, with a slash at its end: the
            files to read, with addresses as Spark's log writes them.
        by_name: whether files with the same name are the same, whatever their folders.
    """

    source: str
    location: NonNegative
    offset: str | None = None
    log: PathPart | None = None
    files: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)
    by_name: bool = False

    def key_of(self, address: str) -> str:
        return address.rpartition("/")[2] if self.by_name else address

    def addresses(self) -> dict[str, int]:
        return {
            f"{folder}{name}": modified_ms
            for folder, names in self.files.items()
            for name, modified_ms in names.items()
        }


def by_folder(files: Iterable[tuple[str, int]]) -> dict[str, dict[str, int]]:
    """Return files, as addresses with modification times, in the form of :class:`SourceEnd`."""
    found: dict[str, dict[str, int]] = {}
    for address, modified_ms in files:
        folder, slash, name = address.rpartition("/")
        found.setdefault(f"{folder}{slash}", {})[name] = modified_ms
    return found


def limited(planned: str, committed: str, end: str) -> str:
    """Return how far a batch may read: *planned*, but not beyond *end*; all in Spark's words.

    An end before *committed*, how far the batch before has read, counts as *committed*. The result
    of a result is the same again.
    """
    plan, before, last = offset_value(planned), offset_value(committed), offset_value(end)
    if plan in (last, before):
        return planned
    if _is_number(plan) and _is_number(last):
        reach = max(last, before) if _is_number(before) else last
        return planned if plan <= reach else _text(reach)
    if is_by_partition(plan) and is_by_partition(last):
        found = _limited_partitions(plan, before if is_by_partition(before) else {}, last)
        return planned if found == plan else _text(found)
    return end if last is not None else committed


def has_order(end: str) -> bool:
    """Whether it is known which offsets lie before this end."""
    last = offset_value(end)
    return last is None or _is_number(last) or is_by_partition(last)


def is_reached(committed: str, end: str) -> bool:
    """Whether a source has been read up to its end; both as Spark writes offsets."""
    before, last = offset_value(committed), offset_value(end)
    if before == last or last is None:
        return True
    if _is_number(before) and _is_number(last):
        return before >= last
    if is_by_partition(before) and is_by_partition(last):
        return all(
            before.get(topic, {}).get(partition, -1) >= offset
            for topic, partitions in last.items()
            for partition, offset in partitions.items()
        )
    return False


def missing_partitions(planned: str, end: Mapping[str, Mapping[str, int]]) -> list[str] | None:
    """Return the partitions of a planned batch that *end* lacks; None for other offsets."""
    plan = offset_value(planned)
    if not is_by_partition(plan):
        return None
    return [
        f"{topic}/{partition}"
        for topic, partitions in plan.items()
        for partition in partitions
        if partition not in end.get(topic, {})
    ]


def is_by_partition(value: Any) -> TypeGuard[PartitionOffsets]:
    """Whether an offset is numbers by topic and partition."""
    return isinstance(value, dict) and all(
        isinstance(partitions, dict)
        and all(key.isdecimal() and _is_number(each) for key, each in partitions.items())
        for partitions in value.values()
    )


def _limited_partitions(
    plan: PartitionOffsets, before: PartitionOffsets, last: PartitionOffsets
) -> PartitionOffsets:
    ends: PartitionOffsets = {}
    for topic, partitions in plan.items():
        for partition in partitions:
            known = [each.get(topic, {}).get(partition) for each in (before, last)]
            found = [offset for offset in known if offset is not None]
            if found:
                ends.setdefault(topic, {})[partition] = max(found)
    within = {
        topic: {partition: min(plan[topic][partition], end) for partition, end in each.items()}
        for topic, each in ends.items()
    }
    return ends if within == before and within != plan else within


def _is_number(value: Any) -> TypeGuard[int]:
    return type(value) is int


def offset_value(line: str) -> Any:
    """Return an offset: JSON where it is JSON, text otherwise, None for none."""
    if line == NO_OFFSET:
        return None
    try:
        return read_json(line)
    except ValueError:
        return line


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


# --- the log of a file source -------------------------------------------------------------------

_VERSION: Final = "v1"
_COMPACT: Final = ".compact"
_FILE_OFFSET: Final = re.compile(r'(?:[^{]*:)?\{"logOffset":(\d+)\}')


class _Entry(TypedDict):
    path: str
    timestamp: int
    batchId: int


class _Position(TypedDict):
    logOffset: int


@dataclasses.dataclass(frozen=True)
class LoggedFile:
    """A file that was read, or is planned to be; its path is its address, as Spark writes it."""

    path: str
    modified_ms: int


def position_of(line: str) -> int:
    """Return the number that a line of the offset log names for a file source; -1 for none."""
    if line == NO_OFFSET:
        return -1
    try:
        raw = read_json(line)
        return raw if type(raw) is int else int(decode(_Position, raw)["logOffset"])
    except (ValueError, Mismatch) as error:
        raise UnknownFormatError(f"{line[:60]!r} is no position of Spark's file source") from error


def file_position(line: str) -> int | None:
    """Return the number that a line of the offset log names; None for another kind of source."""
    found = _FILE_OFFSET.fullmatch(line)
    return int(found[1]) if found is not None else None


class SourceLog:
    """Spark's log of the files that one file source has read, in ``sources/<folder>/``.

    Each planned batch that has new files adds one, ``<n>``, and every tenth or so holds all before
    it as well, ``<n>.compact``; lines after the first are
    ``{"path":"file:///in/a.csv","timestamp":1767225600000,"batchId":0}``. ``batchId`` is *n*, the
    number by which the offset log names the source's position (``{"logOffset":0}``), not the
    query's batch. Spark puts it before it puts the offsets of the batch, so the newest may belong
    to no batch yet.
    """

    def __init__(self, checkpoint: Storage, folder: str) -> None:
        self._storage = checkpoint
        self._folder = f"sources/{folder}"
        self._url = f"{checkpoint.url}/{self._folder}"

    def files(self, number: int) -> list[LoggedFile]:
        return [file for batch, file in self._entries(number)[1] if batch == number]

    def read_through(self, number: int) -> list[LoggedFile]:
        if number < 0:
            return []
        return [file for n, file in self._through(number) if n <= number]

    def positions(self) -> dict[str, int]:
        """Return the position of each file that was read, or is planned to be, by its address."""
        return {file.path: n for n, file in self._through(None)}

    def _through(self, number: int | None) -> Iterator[tuple[int, LoggedFile]]:
        names = self._storage.list(self._folder)
        newest = max(numbers_in(names, _COMPACT), default=-1)
        later = [n for n in numbers_in(names) if newest < n and (number is None or n <= number)]
        for part in [newest, *later] if newest >= 0 else later:
            yield from self._entries(part)[1]

    def replace(self, changes: Mapping[int, Sequence[LoggedFile]]) -> None:
        """Replace the files of positions, also in later compacted entries.

        Each file of the log is put once, with its final content, so that a late repetition changes
        nothing.

        Crash safety: a position's own file follows the later ones that have it, so that
        :meth:`files` has the old ones until all is done; calling it again completes it. Idempotent:
        by the changes.
        """
        compacted = numbers_in(self._storage.list(self._folder), _COMPACT)
        later = {number for number in compacted if number > min(changes)}
        for number in sorted(later | set(changes), reverse=True):
            name, entries = self._entries(number)
            has_others = name.endswith(_COMPACT)
            new = {n: f for n, f in changes.items() if n == number or (has_others and n < number)}
            both = [(n, file) for n, file in entries if n not in new]
            both += [(n, file) for n, files in new.items() for file in files]
            self._put(name, sorted(both, key=lambda entry: entry[0]))
            failpoints.hit("plan.replaced_one")

    def _put(self, name: str, entries: Sequence[tuple[int, LoggedFile]]) -> None:
        lines = [
            json.dumps(
                {"path": file.path, "timestamp": file.modified_ms, "batchId": n},
                separators=(",", ":"),
                ensure_ascii=False,
            )
            for n, file in entries
        ]
        # Hadoop's local filesystem checks a file against the .crc beside it: that is of the old.
        self._storage.delete(f"{self._folder}/.{name}.crc")
        self._storage.put(f"{self._folder}/{name}", "\n".join([_VERSION, *lines]).encode())

    def _entries(self, number: int) -> tuple[str, list[tuple[int, LoggedFile]]]:
        name, data = self._read(number)
        lines = data.decode(errors="replace").rstrip("\n").split("\n")
        where = f"{self._url}/{name}"
        if lines[0] != _VERSION:
            raise UnknownFormatError(
                f"{where}: {lines[0][:20]!r} is no known version of Spark's log of read files"
            )
        try:
            found = [decode(_Entry, read_json(line)) for line in lines[1:]]
        except (ValueError, Mismatch) as error:
            raise CorruptDocumentError(
                f"{where}: the log of read files is damaged: {error}"
            ) from error
        return name, [(e["batchId"], LoggedFile(e["path"], e["timestamp"])) for e in found]

    def _read(self, number: int) -> tuple[str, bytes]:
        for name in (str(number), f"{number}{_COMPACT}"):
            try:
                return name, self._storage.read(f"{self._folder}/{name}")
            except FileNotFoundError:
                continue
        raise CorruptDocumentError(
            f"{self._url}/{number}: no such position in Spark's log of read files"
        )
