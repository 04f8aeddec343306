"""Offsets of Kafka's partitions: limits of a batch, ranges, losses. Pure."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

FORMAT: Final = "spark-stream-kafka"
"""The source in Python, of the extension ``kafka``."""


class Partition(NamedTuple):
    """A partition of a topic."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"partition {self.number} of topic {self.topic!r}"


Offsets = dict[Partition, int]


def to_json(offsets: Mapping[Partition, int]) -> dict[str, dict[str, int]]:
    """Return offsets as ``{"clicks": {"0": 12, "1": 7}}``, always in the same order."""
    found: dict[str, dict[str, int]] = {}
    for partition in sorted(offsets):
        found.setdefault(partition.topic, {})[str(partition.number)] = offsets[partition]
    return found


def from_json(value: Any) -> Offsets:
    """Read what :func:`to_json`, Spark's connector or a user has written."""
    if not isinstance(value, dict):
        raise ValueError('expected {"topic": {"partition": offset}}')  # noqa: TRY004 - the value is wrong, whatever its type
    found: Offsets = {}
    for topic, partitions in value.items():
        if not isinstance(partitions, dict):
            raise ValueError(f'topic {topic!r}: expected {{"partition": offset}}')  # noqa: TRY004 - the same
        for number, offset in partitions.items():
            is_number = str(number).isdecimal()
            if not is_number or isinstance(offset, bool) or not isinstance(offset, int):
                raise ValueError(
                    f"topic {topic!r}: expected whole numbers, found {number!r}: {offset!r}"
                )
            found[Partition(topic, int(number))] = offset
    return found


EARLIEST: Final = -2
"""In the JSON of an option: the first offset that the broker has."""
LATEST: Final = -1
"""In the JSON of an option: the offset that the next message gets."""


class Range(NamedTuple):
    """The messages of a partition that one task reads."""

    partition: Partition
    start: int
    end: int
    lost: int = 0


class Loss(NamedTuple):
    """Messages that a query should read and the broker does not have."""

    partition: Partition
    first: int
    found: int
    gone: int | None

    def describe(self) -> str:
        if self.gone is None:
            return (
                f"{self.partition} ends at offset {self.found}, and the query has read it up to "
                f"{self.first}: the topic was deleted and made again, or has lost its end"
            )
        return (
            f"{self.partition}: offsets {self.first} to {self.first + self.gone - 1} have "
            f"expired before they were read; the first that is left is {self.found}"
        )


def limited(start: Mapping[Partition, int], end: Mapping[Partition, int], most: int) -> Offsets:
    """Return how far a batch of at most *most* offsets goes, fair to all partitions.

    Each gets the share that its unread offsets have in all; what rounding leaves goes to those that
    lost most by it, so that the batch is full and no partition with few unread ones starves.
    """
    unread = {p: max(to - start.get(p, 0), 0) for p, to in end.items()}
    total = sum(unread.values())
    if total <= most:
        return dict(end)
    shares = {p: most * count / total for p, count in unread.items()}
    taken = {p: math.floor(share) for p, share in shares.items()}
    rest = most - sum(taken.values())
    by_need = sorted(shares, key=lambda p: (taken[p] - shares[p], p))
    for partition in [p for p in by_need if taken[p] < unread[p]][:rest]:
        taken[partition] += 1
    return {p: start.get(p, 0) + taken[p] if unread[p] else to for p, to in sorted(end.items())}


def find_ranges(
    start: Mapping[Partition, int], end: Mapping[Partition, int], first: Mapping[Partition, int]
) -> tuple[list[Range], list[Loss]]:
    """Return what a batch reads, and what of it the broker does not have.

    A partition that was made again is read from its beginning.
    """
    ranges: list[Range] = []
    losses: list[Loss] = []
    for partition in sorted(end):
        begin, to = start.get(partition, 0), end[partition]
        if to < begin:
            losses.append(Loss(partition, begin, to, None))
            begin = 0
        there = min(max(begin, first.get(partition, begin)), to)
        if there > begin:
            losses.append(Loss(partition, begin, there, there - begin))
        if to > begin:
            ranges.append(Range(partition, there, to, there - begin))
    return ranges, losses


def split(ranges: Sequence[Range], least: int) -> list[Range]:
    """Return the ranges, cut into about *least* parts where there are fewer."""
    total = sum(part.end - part.start for part in ranges)
    if len(ranges) >= least or total == 0:
        return list(ranges)
    found: list[Range] = []
    for part in ranges:
        length = part.end - part.start
        pieces = min(max(1, round(length / total * least)), max(length, 1))
        cuts = [part.start + length * piece // pieces for piece in range(pieces + 1)]
        for number, (begin, to) in enumerate(itertools.pairwise(cuts)):
            found.append(Range(part.partition, begin, to, 0 if number else part.lost))
    return found


def not_after(end: Mapping[Partition, int], limit: Mapping[Partition, int] | None) -> Offsets:
    """Return *end*, where it is after *limit* the latter; of the partitions that *limit* names."""
    if limit is None:
        return dict(end)
    return {p: min(to, limit[p]) for p, to in end.items() if p in limit}


def listed(partitions: Iterable[Partition]) -> str:
    """Name some partitions for people, in a line that does not grow without end."""
    ordered = sorted(partitions)
    named = ", ".join(f"{p.topic}-{p.number}" for p in ordered[:5])
    return named + (f" and {len(ordered) - 5} more" if len(ordered) > 5 else "")  # noqa: PLR2004
