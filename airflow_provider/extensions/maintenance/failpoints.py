"""The failpoints of this extension, as in :mod:`.runtime.base.failpoints`."""

from __future__ import annotations

from typing import Final

ALL: Final = (
    #: Compacted files that no version names: the next `maintain` removes them.
    "maintenance.written",
    #: A compacted version, not reported yet: the next `maintain` finds the rest.
    "maintenance.committed",
    #: A list of files, all of which snapshots still use: the next `maintain` leaves them.
    "maintenance.listed",
    #: Expired snapshots, whose files still exist: the next `maintain` deletes what is in the list.
    "maintenance.expired",
    #: Some expired files are deleted: the next `maintain` deletes the others.
    "maintenance.deleted_one",
)
