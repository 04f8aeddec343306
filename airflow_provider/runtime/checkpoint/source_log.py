r"""Spark's log of the files that a file source has read, as bytes.

It lies in ``sources/<number>/`` of a checkpoint: each planned batch that has new files adds one,
``<n>``, and every tenth or so holds all before it as well, ``<n>.compact``::

    v1
    {"path":"file:///in/a.csv","timestamp":1767225600000,"batchId":0}

``batchId`` is *n*, the number by which the offset log names the source's position
(``{"logOffset":0}``); it is not the number of the query's batch. Spark puts it before it puts the
offsets of the batch, so the newest may be of none, and is then a part of the next one.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Final, TypedDict

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.base.typed_json import Mismatch, decode, read_json
from airflow_provider.runtime.checkpoint.source_end import NO_OFFSET
from airflow_provider.runtime.errors import CorruptDocumentError, UnknownFormatError
from airflow_provider.runtime.storage.numbered_files import numbers_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_provider.runtime.api.storages import Storage

_VERSION: Final = "v1"
_COMPACT: Final = ".compact"


class _Entry(TypedDict):
    path: str
    timestamp: int
    batchId: int


class _Position(TypedDict):
    logOffset: int


@dataclasses.dataclass(frozen=True)
class LoggedFile:
    """A file that was read, or is planned to be.

    Attributes:
        path: its address, as Spark writes it.
        modified_ms: its modification time, in milliseconds since 1970.
    """

    path: str
    modified_ms: int


def position_of(line: str) -> int:
    """Return the number that a line of the offset log names; -1 for none.

    Raises:
        UnknownFormatError: it is no position of a file source's.
    """
    if line == NO_OFFSET:
        return -1
    try:
        raw = read_json(line)
        return raw if type(raw) is int else int(decode(_Position, raw)["logOffset"])
    except (ValueError, Mismatch) as error:
        msg = f"{line[:60]!r} is no position of Spark's file source"
        raise UnknownFormatError(msg) from error


class SourceLog:
    """The log of one file source.

    Args:
        checkpoint: the query's; nobody else may be writing to it.
        folder: the folder's name in ``sources/``.
    """

    def __init__(self, checkpoint: Storage, folder: str) -> None:
        self._storage = checkpoint
        self._folder = f"sources/{folder}"
        self._url = f"{checkpoint.url}/{self._folder}"

    def files(self, number: int) -> list[LoggedFile]:
        """Return the files of one position.

        Raises:
            CorruptDocumentError: there is none, or it cannot be read.
        """
        return [file for batch, file in self._entries(number)[1] if batch == number]

    def read_through(self, number: int) -> list[LoggedFile]:
        """Return the files of all positions up to this one; none for -1."""
        if number < 0:
            return []
        names = self._storage.list(self._folder)
        newest = max(numbers_in(names, _COMPACT), default=-1)
        later = [n for n in numbers_in(names) if newest < n <= number]
        parts = [newest, *later] if newest >= 0 else later
        return [file for part in parts for n, file in self._entries(part)[1] if n <= number]

    def replace(self, changes: Mapping[int, Sequence[LoggedFile]]) -> None:
        """Let positions have other files, also in what was compacted after them.

        Each file of the log is put once, as it then is, so that doing the same later changes
        nothing.

        Crash safety: a position's own file follows the later ones that have it, so that
        :meth:`files` has the old ones until all is done; calling it again completes it.
        Idempotent: by the changes.
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
        """Return the name of a position's file, and what it has, by position."""
        name, data = self._read(number)
        lines = data.decode(errors="replace").rstrip("\n").split("\n")
        where = f"{self._url}/{name}"
        if lines[0] != _VERSION:
            msg = f"{where}: {lines[0][:20]!r} is no known version of Spark's log of read files"
            raise UnknownFormatError(msg)
        try:
            found = [decode(_Entry, read_json(line)) for line in lines[1:]]
        except (ValueError, Mismatch) as error:
            msg = f"{where}: the log of read files is damaged: {error}"
            raise CorruptDocumentError(msg) from error
        return name, [(e["batchId"], LoggedFile(e["path"], e["timestamp"])) for e in found]

    def _read(self, number: int) -> tuple[str, bytes]:
        for name in (str(number), f"{number}{_COMPACT}"):
            try:
                return name, self._storage.read(f"{self._folder}/{name}")
            except FileNotFoundError:
                continue
        msg = f"{self._url}/{number}: no such position in Spark's log of read files"
        raise CorruptDocumentError(msg)
