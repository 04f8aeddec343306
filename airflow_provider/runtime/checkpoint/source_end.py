"""The end of a source that is read up to it and no further; pure.

For files it is the files themselves, for any other source an offset, as Spark writes it. Two kinds
of offsets have an order that is known: a number, and numbers by topic and partition, as Kafka's
source and everybody who copies it writes them. Of any other it is only known whether it is the end,
so a batch of such a source ends there or is beyond it.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from airflow_provider.runtime.base.typed_json import NonNegative, PathPart, read_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

NO_OFFSET: Final = "-"
"""The line of a source of which nothing is read yet, in Spark's offset log."""

PartitionOffsets = dict[str, dict[str, int]]


@dataclasses.dataclass(frozen=True)
class SourceEnd:
    """Where one source of a query ends.

    Attributes:
        source: its name.
        place: its line in the entries of Spark's offset log.
        offset: the offset, as Spark writes it, ``-`` for nothing at all; None for files.
        log: the folder in ``sources/`` in which Spark keeps which files it has read; None where the
            end is an offset.
        files: modification time in milliseconds by name by folder, with a slash at its end: the
            files that are read, as Spark's log of them writes addresses.
        by_name: files are the same when their names are, whatever their folders.
    """

    source: str
    place: NonNegative
    offset: str | None = None
    log: PathPart | None = None
    files: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)
    by_name: bool = False

    def key_of(self, address: str) -> str:
        """Return what is the same for files that Spark takes for one."""
        return address.rpartition("/")[2] if self.by_name else address

    def addresses(self) -> dict[str, int]:
        """Return the modification times of the files by their addresses."""
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
    """Return how far a batch may read.

    It is *planned* itself where that is not beyond the end, or nothing new. Where it is beyond it,
    and nothing of what was planned lies before the end, it is the end. The result of a result is
    the same again.

    Args:
        planned: how far the batch is planned to read.
        committed: how far the batch before it has read; all three as Spark writes offsets.
        end: where the source ends.
    """
    plan, before, last = _value(planned), _value(committed), _value(end)
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
    last = _value(end)
    return last is None or _is_number(last) or is_by_partition(last)


def is_reached(committed: str, end: str) -> bool:
    """Whether a source has been read up to its end.

    Args:
        committed: how far it has been read; both as Spark writes offsets.
        end: where it ends.
    """
    before, last = _value(committed), _value(end)
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
    """Return the partitions of a planned batch for which *end* has no offset.

    Returns:
        None where the offsets of the source are not by topic and partition.
    """
    plan = _value(planned)
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
    """Return *plan* without what lies beyond *last*; partitions that are not in it are new."""
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


def _value(line: str) -> Any:
    """Return an offset as values of JSON; as the text that it is where it is no JSON."""
    if line == NO_OFFSET:
        return None
    try:
        return read_json(line)
    except ValueError:
        return line


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
