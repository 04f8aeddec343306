"""Plans of batches: where a query starts, how far it may read, and the ranges of each batch."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Final, Protocol

from airflow_provider.extensions.kafka.client import FOUND_S, opened
from airflow_provider.extensions.kafka.offsets import (
    EARLIEST,
    LATEST,
    Loss,
    find_ranges,
    listed,
    not_after,
    split,
)
from airflow_provider.extensions.kafka.options import parse_options, what_is_read
from airflow_provider.runtime.api.errors import ConfigError, LostInputError
from airflow_provider.runtime.api.kit.clock import SystemClock

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable, Mapping

    from airflow_provider.extensions.kafka.client import Found
    from airflow_provider.extensions.kafka.offsets import Offsets, Partition, Range
    from airflow_provider.extensions.kafka.options import Bound, KafkaOptions
    from airflow_provider.runtime.api.kit.clock import Clock


log = logging.getLogger(__name__)

_NOT_THERE: Final = (
    "missing from two answers of the brokers; the topic was deleted, or is no longer permitted"
)


class Broker(Protocol):
    """The questions of a planner to the brokers."""

    def find(self) -> Found:
        """Return the partitions of the subscription."""

    def offsets(self, wanted: Mapping[Partition, int]) -> Offsets:
        """Return the offset of each existing one: ``EARLIEST``, ``LATEST`` or that of a time."""


class Planner:
    """Plans the batches of one source.

    One answer in which a partition is missing proves nothing: a broker that has just started
    answers from old metadata, and a permission may be taken away and given back. So the brokers are
    asked twice before a partition counts as gone, and its offset stays in the query's offsets.
    """

    def __init__(
        self, options: KafkaOptions, broker: Broker, *, clock: Clock | None = None
    ) -> None:
        self._options = options
        self._broker = broker
        self._clock = clock or SystemClock()
        self._gone: set[Partition] = set()

    def first(self) -> Offsets:
        partitions = self.known()
        start = self._options.start
        if start.offsets is not None:
            _check_all_named("startingOffsets", start.offsets, partitions)
            self._check_reached(start.offsets)
        if start.timestamps_ms is not None:
            _check_all_named("startingOffsetsByTimestamp", start.timestamps_ms, partitions)
        return self._resolved(start, partitions, is_strict=self._options.is_strict_in_time)

    def end(self) -> Offsets | None:
        """Return where a query ends, by its options; None where they say nothing."""
        end = self._options.end
        if not end.is_given:
            return None
        partitions = self.known()
        if end.named is not None:
            unnamed = partitions.difference(end.named)
            if unnamed:
                log.warning("no end is given for %s: nothing of it is read", listed(unnamed))
            partitions = partitions.intersection(end.named)
        return self._resolved(end, partitions, is_strict=False)

    def latest(self) -> Offsets:
        """Return the offset of the next message of each existing partition."""
        return self._broker.offsets(dict.fromkeys(self._broker.find().partitions, LATEST))

    def complete(self, start: Mapping[Partition, int], there: Mapping[Partition, int]) -> Offsets:
        """Return *there*, with the partitions of *start* that a second question finds."""
        missing = set(start).difference(there)
        if back := self._gone.difference(missing):
            log.warning("%s: there again; the query continues where it was", listed(back))
        self._gone &= missing
        new = missing.difference(self._gone)
        if not new:
            return dict(there)
        self._clock.sleep(FOUND_S)
        found = self._broker.find().partitions.intersection(new)
        there = {**there, **self._broker.offsets(dict.fromkeys(found, LATEST))}
        if gone := new.difference(there):
            self._lost(f"{listed(gone)}: {_NOT_THERE}")
            self._gone |= gone
        return there

    def onward(
        self, start: Mapping[Partition, int], there: Mapping[Partition, int], end: Offsets | None
    ) -> Offsets:
        """Return how far a query may read that has read up to *start*.

        Raises:
            LostInputError: a partition was deleted or made again, and the options forbid it.
        """
        there = self.complete(start, there)
        again = {p: to for p, to in there.items() if to < start.get(p, 0)}
        for partition, to in sorted(again.items()):
            self._lost(Loss(partition, start[partition], to, None).describe())
        allowed = not_after({p: to for p, to in there.items() if p not in again}, end)
        kept = {p: offset for p, offset in start.items() if p not in again}
        found = {p: max(allowed.get(p, 0), kept.get(p, 0)) for p in {*allowed, *kept}}
        return {**found, **again}

    def ranges(self, start: Mapping[Partition, int], end: Mapping[Partition, int]) -> list[Range]:
        read = {p: to for p, to in end.items() if to != start.get(p, 0)}
        if not read:
            return []
        earliest = self._asked_twice(dict.fromkeys(read, EARLIEST))
        if gone := set(read).difference(earliest):
            self._lost(f"{listed(gone)}: {_NOT_THERE}")
            earliest |= {p: read[p] for p in gone}  # all of its range is lost, and counted
        ranges, losses = find_ranges(start, read, earliest)
        for loss in losses:
            self._lost(loss.describe())
        return split(ranges, self._options.min_partitions)

    def check_end(self, end: Mapping[Partition, int], latest: Mapping[Partition, int]) -> None:
        short = {p: to for p, to in end.items() if latest.get(p, 0) < to}
        for partition, to in sorted(short.items()):
            raise LostInputError(
                f"{partition} is to be read up to offset {to}, and ends at "
                f"{latest.get(partition, 0)}: it has lost messages, or the end is wrong"
            )

    def _check_reached(self, start: Offsets) -> None:
        there = self._all_of(dict.fromkeys(start, LATEST))
        for partition, offset in sorted(start.items()):
            if offset > there[partition]:
                raise ConfigError(
                    f"option startingOffsets: {partition} ends at {there[partition]}, before "
                    f"{offset}"
                )

    def known(self) -> frozenset[Partition]:
        if self._absent(self._broker.find()) is not None:
            self._clock.sleep(FOUND_S)
        found = self._broker.find()
        if (absent := self._absent(found)) is not None:
            raise ConfigError(absent)
        return found.partitions

    def _absent(self, found: Found) -> str | None:
        options = self._options
        if found.missing:
            names = ", ".join(repr(topic) for topic in found.missing)
            return (
                f"no topic {names} at {options.servers}, or no permission to see it; create it, or "
                "correct the option subscribe or assign"
            )
        absent = found.partitions.symmetric_difference(options.assigned)
        if options.assigned and absent:
            return f"option assign: {listed(absent)}: no such partition at {options.servers}"
        return None

    def _asked_twice(self, wanted: Mapping[Partition, int]) -> Offsets:
        found = self._broker.offsets(wanted)
        if missing := {p: at for p, at in wanted.items() if p not in found}:
            self._clock.sleep(FOUND_S)
            found |= self._broker.offsets(missing)
        return found

    def _all_of(self, wanted: Mapping[Partition, int]) -> Offsets:
        found = self._asked_twice(wanted)
        if missing := set(wanted).difference(found):
            raise LostInputError(f"{listed(missing)}: {_NOT_THERE}")
        return found

    def _resolved(
        self, bound: Bound, partitions: Iterable[Partition], *, is_strict: bool
    ) -> Offsets:
        if bound.offsets is not None:
            given = {p: bound.offsets[p] for p in partitions}
            words = {p: at for p, at in given.items() if at in {EARLIEST, LATEST}}
            return given | self._all_of(words)
        if bound.timestamps_ms is None and bound.timestamp_ms is None:
            return self._all_of(dict.fromkeys(partitions, bound.everywhere))
        times = bound.timestamps_ms or dict.fromkeys(partitions, bound.timestamp_ms or 0)
        found = self._all_of({p: times[p] for p in partitions})
        after = [p for p, offset in found.items() if offset < 0]
        if after and is_strict:
            raise ConfigError(
                f"{listed(after)}: no message is of the starting time or later; "
                "startingOffsetsByTimestampStrategy=latest starts with the next one"
            )
        return found | self._all_of(dict.fromkeys(after, LATEST))

    def _lost(self, what: str) -> None:
        if self._options.fails_on_loss:
            raise LostInputError(f"{what}; failOnDataLoss=false continues with what is left")
        log.warning("%s; the query continues without (failOnDataLoss=false)", what)


def _check_all_named(
    option: str, named: Mapping[Partition, int], partitions: frozenset[Partition]
) -> None:
    """Refuse offsets for other partitions than there are: Spark's connector does so, too."""
    unnamed, unknown = partitions.difference(named), set(named).difference(partitions)
    if unnamed:
        raise ConfigError(f"option {option}: no value for {listed(unnamed)}; name every partition")
    if unknown:
        raise ConfigError(f"option {option}: {listed(unknown)}: no such partition in what is read")


def check_options(given: Mapping[str, str], *, is_batch: bool = False) -> None:
    """Refuse options that no broker has to be asked about, and ask the brokers for what is read.

    Raises:
        ConfigError: an option is wrong, the client is missing, a topic is not there, or the
            brokers refuse us.
        OutageError: no broker answers, in a bounded time.
    """
    options = parse_options(given, is_batch=is_batch)
    with opened(options) as connection:
        if not Planner(options, connection).known():
            raise ConfigError(f"option subscribePattern: no topic at {options.servers} matches")


def check_topics(given: Mapping[str, str]) -> None:
    """Ask the brokers for the topics alone; a pattern may match none yet."""
    options = parse_options(given)
    with opened(options) as connection:
        Planner(options, connection).known()


def offsets_at(given: Mapping[str, str], moment: dt.datetime) -> Offsets:
    """Return where each partition's first message of a time or later lies, or its end without one.

    Args:
        given: the options of a source, ours or Spark's; only what is read of them counts.
        moment: with its zone. Times are those that the topic has: the producer's or the broker's.

    Raises:
        ConfigError, OutageError: see :func:`check_options`.
    """
    at_ms = math.ceil(moment.timestamp() * 1000)
    options = parse_options({**what_is_read(given), "endingTimestamp": str(max(at_ms, 0))})
    with opened(options) as connection:
        return Planner(options, connection).end() or {}


def latest_offsets(given: Mapping[str, str]) -> Offsets:
    """Return where the partitions of a source end now; ``endingOffsets`` takes them as JSON."""
    options = parse_options(given)
    with opened(options) as connection:
        return Planner(options, connection).latest()
