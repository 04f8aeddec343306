"""Plans of batches: where a query starts, how far it may read, and the ranges of each batch."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from airflow_provider.runtime.errors import ConfigError, LostInputError
from airflow_provider.runtime.sources.kafka.offsets import (
    EARLIEST,
    LATEST,
    Loss,
    find_ranges,
    listed,
    not_after,
    split,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_provider.runtime.sources.kafka.client import Found
    from airflow_provider.runtime.sources.kafka.offsets import Offsets, Partition, Range
    from airflow_provider.runtime.sources.kafka.options import Bound, KafkaOptions

log = logging.getLogger(__name__)


class Broker(Protocol):
    """What a plan asks of Kafka."""

    def find(self) -> Found:
        """Return the partitions of the subscription."""

    def offsets(self, wanted: Mapping[Partition, int]) -> Offsets:
        """Return an offset for each: ``EARLIEST``, ``LATEST`` or that of a time."""


class Planner:
    """Plans the batches of one source.

    Args:
        options: of the source.
        broker: Kafka.
    """

    def __init__(self, options: KafkaOptions, broker: Broker) -> None:
        self._options = options
        self._broker = broker

    def first(self) -> Offsets:
        """Return where a new query starts, by its options.

        Raises:
            ConfigError: the options do not fit to the partitions, or no topic is there.
        """
        partitions = self._known()
        start = self._options.start
        if start.offsets is not None:
            _check_all_named("startingOffsets", start.offsets, partitions)
            self._check_reached(start.offsets)
        if start.timestamps_ms is not None:
            _check_all_named("startingOffsetsByTimestamp", start.timestamps_ms, partitions)
        return self._resolved(start, partitions, is_strict=self._options.is_strict_in_time)

    def end(self) -> Offsets | None:
        """Return where a query ends, by its options; None where they say nothing.

        A partition that they do not name was not there when the end was chosen: nothing is read.
        """
        end = self._options.end
        if not end.is_given:
            return None
        partitions = self._known()
        if end.named is not None:
            unnamed = partitions.difference(end.named)
            if unnamed:
                log.warning("no end is given for %s: nothing of it is read", listed(unnamed))
            partitions = partitions.intersection(end.named)
        return self._resolved(end, partitions, is_strict=False)

    def latest(self) -> Offsets:
        """Return the offset of the next message of each partition that is there now."""
        return self._broker.offsets(dict.fromkeys(self._broker.find().partitions, LATEST))

    def onward(
        self, start: Mapping[Partition, int], there: Mapping[Partition, int], end: Offsets | None
    ) -> Offsets:
        """Return how far a query may read that has read up to *start*.

        Args:
            start: its offsets; a partition that is not in it is a new one.
            there: what :meth:`latest` has returned.
            end: where the query ends; None where it goes on.

        Raises:
            LostInputError: a partition is gone or was made again, and that is to be an error.
        """
        gone = set(start).difference(there)
        if gone:
            self._lost(f"{listed(gone)}: not there any more; the topic was deleted")
        again = {p: to for p, to in there.items() if to < start.get(p, 0)}
        for partition, to in sorted(again.items()):
            self._lost(Loss(partition, start[partition], to, None).describe())
        allowed = not_after({p: to for p, to in there.items() if p not in again}, end)
        kept = {p: offset for p, offset in start.items() if p in there and p not in again}
        found = {p: max(allowed.get(p, 0), kept.get(p, 0)) for p in {*allowed, *kept}}
        return {**found, **again}

    def ranges(self, start: Mapping[Partition, int], end: Mapping[Partition, int]) -> list[Range]:
        """Return what the tasks of a batch read.

        Raises:
            LostInputError: Kafka does not have all of it any more, and that is to be an error.
        """
        read = {p: to for p, to in end.items() if to != start.get(p, 0)}
        if not read:
            return []
        earliest = self._broker.offsets(dict.fromkeys(read, EARLIEST))
        ranges, losses = find_ranges(start, read, earliest)
        for loss in losses:
            self._lost(loss.describe())
        return split(ranges, self._options.min_partitions)

    def check_end(self, end: Mapping[Partition, int], latest: Mapping[Partition, int]) -> None:
        """Refuse an end that Kafka has not reached.

        Raises:
            LostInputError: a run to this end could not read all of it.
        """
        short = {p: to for p, to in end.items() if latest.get(p, 0) < to}
        for partition, to in sorted(short.items()):
            msg = (
                f"{partition} is to be read up to offset {to}, and ends at "
                f"{latest.get(partition, 0)}: it has lost messages, or the end is wrong"
            )
            raise LostInputError(msg)

    def _check_reached(self, start: Offsets) -> None:
        there = self._broker.offsets(dict.fromkeys(start, LATEST))
        for partition, offset in sorted(start.items()):
            if offset > there[partition]:
                msg = (
                    f"option startingOffsets: {partition} ends at {there[partition]}, before "
                    f"{offset}"
                )
                raise ConfigError(msg)

    def _known(self) -> frozenset[Partition]:
        found = self._broker.find()
        if found.missing:
            raise ConfigError(describe_missing(self._options, found.missing))
        return found.partitions

    def _resolved(
        self, bound: Bound, partitions: Iterable[Partition], *, is_strict: bool
    ) -> Offsets:
        """Return an offset for each partition."""
        if bound.offsets is not None:
            given = {p: bound.offsets[p] for p in partitions}
            words = {p: at for p, at in given.items() if at in {EARLIEST, LATEST}}
            return given | self._broker.offsets(words)
        if bound.timestamps_ms is None and bound.timestamp_ms is None:
            return self._broker.offsets(dict.fromkeys(partitions, bound.everywhere))
        times = bound.timestamps_ms or dict.fromkeys(partitions, bound.timestamp_ms or 0)
        found = self._broker.offsets({p: times[p] for p in partitions})
        after = [p for p, offset in found.items() if offset < 0]
        if after and is_strict:
            msg = (
                f"{listed(after)}: no message is of the starting time or later; "
                "startingOffsetsByTimestampStrategy=latest starts with the next one"
            )
            raise ConfigError(msg)
        return found | self._broker.offsets(dict.fromkeys(after, LATEST))

    def _lost(self, what: str) -> None:
        if self._options.fails_on_loss:
            msg = f"{what}; failOnDataLoss=false goes on with what is left"
            raise LostInputError(msg)
        log.warning("%s; the query goes on without (failOnDataLoss=false)", what)


def describe_missing(options: KafkaOptions, topics: Iterable[str]) -> str:
    """Say in one line which topics are not there, and what to do."""
    names = ", ".join(repr(topic) for topic in topics)
    return (
        f"no topic {names} at {options.servers}, or no right to see it; create it, or correct "
        "the option subscribe or assign"
    )


def _check_all_named(
    option: str, named: Mapping[Partition, int], partitions: frozenset[Partition]
) -> None:
    """Refuse offsets for other partitions than there are: Spark's connector does so, too."""
    unnamed, unknown = partitions.difference(named), set(named).difference(partitions)
    if unnamed:
        msg = f"option {option}: no value for {listed(unnamed)}; name every partition"
        raise ConfigError(msg)
    if unknown:
        msg = f"option {option}: {listed(unknown)}: no such partition in what is read"
        raise ConfigError(msg)
