"""Log tail: copies new lines of a driver's log file to the task's log.

The offset is stored beside the driver's submission, so that the next watcher continues there. Only
a plain file in the folder of the run's logs is read: other writers of the job directory can change
the document that names it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import logging
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base.clock import LOG_TIME, Due, SystemClock
from airflow_provider.runtime.base.typed_json import NonNegative
from airflow_provider.runtime.errors import SparkStreamError
from airflow_provider.runtime.storage.documents import Contents, Document, Written
from airflow_provider.runtime.storage.local_folder import LocalFolder, NotAFileError, open_file
from airflow_provider.runtime.storage.open import local_path_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.base.clock import Clock


_CHUNK_BYTES: Final = (
    1 << 16
)  # its lines are logged in a few milliseconds: a triggerer may not stall
_KEEP_S: Final = 10.0  # lines of so long come twice when a triggerer dies


@dataclasses.dataclass(frozen=True, kw_only=True)
class FollowedRecord(Document):
    """``submissions/<driver id>.followed.json``: how much of a driver's log tasks' logs have.

    Attributes:
        offset: in bytes.
    """

    CONTENTS = Contents.FACTS
    LOCATIONS = ("runs/<run id>/submissions/<driver id>.followed.json",)
    WRITTEN = Written("replaced", "task that copies the log", "no line was copied")

    offset: NonNegative


def log_folders(job_dir: str, run_id: str, log_folder: Path) -> list[LocalFolder]:
    """Return the folder of the logs of a run's drivers."""
    local = local_path_of(job_dir)
    if local is None:
        return [LocalFolder(str(log_folder.resolve()), f"spark_stream/{run_id}")]
    return [LocalFolder(str(Path(local).resolve()), f"runs/{run_id}/logs")]


class LogFollower:
    """Reads the lines added to a file since the last call.

    Args:
        path: the file; None, or one on another machine, has no lines.
        folders: the file is read only if it lies in one of these; no symbolic link in them.
        kept: the storage of the offset; None to store it nowhere.
        offset: where to begin, in bytes, unless a later offset is stored.
    """

    def __init__(
        self,
        path: str | None,
        folders: Sequence[LocalFolder] = (),
        *,
        kept: Storage | None = None,
        driver_id: str | None = None,
        offset: int = 0,
        clock: Clock | None = None,
    ) -> None:
        above, _, self._file = (path or "").rpartition("/")
        self._folder = next((each for each in folders if each.path == above), None)
        self._kept = kept
        self._name = f"submissions/{driver_id}.followed.json"
        self._due = Due(clock or SystemClock(), _KEEP_S)
        self._due()
        self.offset = max(offset, self._read_kept())
        self._put = self.offset

    def new_lines(self) -> list[str]:
        """Return the next whole lines of one read; empty if there are none.

        A second call means that the lines of the first one have been logged.
        """
        if self.offset != self._put and self._due():
            self.keep()
        try:
            data = self._read()
        except OSError:
            return []
        end = data.rfind(b"\n") + 1
        if not end and len(data) == _CHUNK_BYTES:
            end = len(data)
        self.offset += end
        return [line.decode(errors="replace") for line in data[:end].splitlines()]

    def keep(self) -> None:
        """Store the offset. If that fails, lines are logged twice later."""
        if self._kept is None or self.offset == self._put:
            return
        with contextlib.suppress(OSError):
            FollowedRecord(offset=self.offset).put(self._kept, self._name)
            self._put = self.offset

    def _read_kept(self) -> int:
        if self._kept is None or self._folder is None:
            return 0
        with contextlib.suppress(OSError, SparkStreamError):
            record = FollowedRecord.read(self._kept, self._name)
            return record.offset if record is not None else 0
        return 0

    def size_bytes(self) -> int:
        """Return the file's size.

        Raises:
            NotAFileError: it is not in one of the folders; its existence is not checked.
        """
        if self._folder is None:
            raise NotAFileError(errno.EINVAL, "is no log of the run", self._file)
        descriptor = open_file(self._folder, self._file)
        try:
            return os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)

    def _read(self) -> bytes:
        if self._folder is None:
            return b""
        descriptor = open_file(self._folder, self._file)
        try:
            if os.fstat(descriptor).st_size <= self.offset:  # mostly
                return b""
            return os.pread(descriptor, _CHUNK_BYTES, self.offset)
        finally:
            os.close(descriptor)


_HEAD: Final = re.compile(
    rf"(?:{LOG_TIME} )?(DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL)[: ]\s*(.*)"
)
_LEVELS: Final = {
    "DEBUG": logging.DEBUG,
    "WARN": logging.WARNING,
    "WARNING": logging.WARNING,
    "ERROR": logging.ERROR,
    "CRITICAL": logging.CRITICAL,
    "FATAL": logging.CRITICAL,
}


def log_driver_lines(log: Any, lines: Iterable[str]) -> None:
    """Log the lines of a driver at their own levels, without the driver's times."""
    for line in lines:
        level, text = driver_line(line)
        log.log(level, "driver: %s", text)


def driver_line(line: str) -> tuple[int, str]:
    """Return the level and the text of a driver's line; INFO for a line without a level."""
    found = _HEAD.fullmatch(line)
    if found is None:
        is_error = line.startswith("spark-stream: error: ")
        return logging.ERROR if is_error else logging.INFO, line
    return _LEVELS.get(found[1], logging.INFO), found[2]
