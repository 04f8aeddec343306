"""The failpoints of this extension, as in :mod:`.runtime.base.failpoints`."""

from __future__ import annotations

from typing import Final

ALL: Final = (
    #: Compacted files that no version names: the next `maintain` removes them.
    "maintenance.written",
    #: A compacted version, of which nothing was reported: the next `maintain` finds the rest.
    "maintenance.committed",
    #: Some expired files deleted: the next `maintain` deletes the others.
    "maintenance.deleted_one",
)
