"""The failpoints of this extension, as in :mod:`.runtime.base.failpoints`."""

from __future__ import annotations

from typing import Final

ALL: Final = (
    #: Compacted files that no version names: the next `maintain` removes them.
    "maintenance.written",
    #: A compacted version, of which nothing was reported: the next `maintain` finds the rest.
    "maintenance.committed",
    #: A list of files, all of which snapshots still have: the next `maintain` leaves them.
    "maintenance.listed",
    #: Expired snapshots, whose files are there: the next `maintain` deletes what is in the list.
    "maintenance.expired",
    #: Some expired files deleted: the next `maintain` deletes the others.
    "maintenance.deleted_one",
)
