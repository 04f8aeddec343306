"""Ranges of event time in documents: the least and the greatest of some rows, both inclusive."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable


class EventTimes(NamedTuple):
    """The least and the greatest event time of some rows, in milliseconds since 1970.

    A row of a window has all of the window: its start, and the last moment before its end.
    """

    least_ms: int
    greatest_ms: int

    def up_to(self, boundary_ms: int) -> EventTimes | None:
        """Return the part before a moment; None if there is none."""
        return self.within(EventTimes(self.least_ms, boundary_ms - 1))

    def within(self, other: EventTimes) -> EventTimes | None:
        """Return the part inside another range; None if there is none."""
        least, greatest = max(self[0], other[0]), min(self[1], other[1])
        return EventTimes(least, greatest) if least <= greatest else None


def joined(ranges: Iterable[EventTimes | None]) -> EventTimes | None:
    """Return the least range that covers all known ones; None if none is known."""
    known = [each for each in ranges if each is not None]
    if not known:
        return None
    return EventTimes(min(each[0] for each in known), max(each[1] for each in known))
