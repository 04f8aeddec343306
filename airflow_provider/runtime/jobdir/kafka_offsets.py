"""Kafka as Spark names it: the formats of its sources, and the JSON of its offsets. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT: Final = "spark-stream-kafka"
"""The source in Python, of the extension ``kafka``."""
CONNECTOR: Final = "kafka"
"""Spark's own connector, a jar that Spark does not come with."""
KAFKA_FORMATS: Final = frozenset({CONNECTOR, FORMAT})


class Partition(NamedTuple):
    """A partition of a topic."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"partition {self.number} of topic {self.topic!r}"


Offsets = dict[Partition, int]


def to_json(offsets: Mapping[Partition, int]) -> dict[str, dict[str, int]]:
    """Return offsets as Spark's connector writes them, always in the same order.

    ``{"clicks": {"0": 12, "1": 7}}``
    """
    found: dict[str, dict[str, int]] = {}
    for partition in sorted(offsets):
        found.setdefault(partition.topic, {})[str(partition.number)] = offsets[partition]
    return found


def from_json(value: Any) -> Offsets:
    """Read what :func:`to_json`, Spark's connector or a user has written.

    Raises:
        ValueError: it is not of that form.
    """
    if not isinstance(value, dict):
        msg = 'expected {"topic": {"partition": offset}}'
        raise ValueError(msg)  # noqa: TRY004 - the value is wrong, whatever its type
    found: Offsets = {}
    for topic, partitions in value.items():
        if not isinstance(partitions, dict):
            msg = f'topic {topic!r}: expected {{"partition": offset}}'
            raise ValueError(msg)  # noqa: TRY004 - the same
        for number, offset in partitions.items():
            is_number = str(number).isdecimal()
            if not is_number or isinstance(offset, bool) or not isinstance(offset, int):
                msg = f"topic {topic!r}: expected whole numbers, found {number!r}: {offset!r}"
                raise ValueError(msg)
            found[Partition(topic, int(number))] = offset
    return found
