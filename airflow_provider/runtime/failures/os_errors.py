"""Errors of the operating system, in one line with the path and the way out."""

from __future__ import annotations

import dataclasses
import errno
import os
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.failures.classify import classify
from airflow_provider.runtime.failures.messages import MAKE_ROOM

if TYPE_CHECKING:
    from airflow_provider.runtime.errors.failure import Failure

_RIGHTS: Final = "use an account that may, or another place"
_WAYS_OUT: Final = {
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EROFS: "mount it for writing, or use another place",
    errno.ENOTDIR: "a file is where a folder should be: correct the path, or move the file away",
    errno.EISDIR: "a folder is where a file should be: correct the path, or move it away",
    errno.EEXIST: "something else is where a folder should be: move it away",
    errno.ELOOP: "a link leads to itself: correct the path, or remove the link",
    errno.ENAMETOOLONG: "use a shorter path",
    errno.ENOSPC: MAKE_ROOM,
    errno.EDQUOT: MAKE_ROOM,
    errno.EIO: "check the disk; the same command resumes when it works again",
}


def of_the_system(error: OSError) -> Failure:
    """Return the failure that says what the system has refused, of which path, and the way out."""
    failure = classify(error)
    if error.errno is None:
        return failure
    named = error.filename  # a path, or the number of what is open
    where = f"{_printable(os.fsdecode(named))}: " if isinstance(named, str | bytes) else ""
    way = _WAYS_OUT.get(error.errno)
    reason = f"{where}{error.strerror}" + (f"; {way}" if way else "")
    return dataclasses.replace(failure, reason=reason, root_cause="", place="", remedy="", host="")


def _printable(path: str) -> str:
    return path if path.isprintable() else ascii(path)
