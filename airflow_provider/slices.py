"""Slices: the part of the data that a task run is for, a partition or an interval of time.

``{{ slice.name }}`` in the templated arguments of this package's operators, :func:`slice_of` in a
Python task. It is decided in one place and in this order:

=================  =================================================================================
of the DAG run     the slice
=================  =================================================================================
partition key      the key; with a timetable of partitions also the time from this one to the next
data interval      that time; an empty one, as a plain cron schedule gives, is none
configuration      ``partition_key``, or ``interval_start`` and ``interval_end``, or all three
=================  =================================================================================

There may be no logical date. Nothing here does I/O.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base.clock import from_iso
from airflow_provider.runtime.base.names import derive_run_id
from airflow_provider.runtime.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Interval = tuple[dt.datetime, dt.datetime]
PARTITION_KEY: Final = "partition_key"
INTERVAL_START: Final = "interval_start"
INTERVAL_END: Final = "interval_end"
_IN_A_NAME: Final = "%Y%m%dT%H%M%S"
_ZONES_APART: Final = dt.timedelta(days=1)
_LONGEST_PERIOD: Final = dt.timedelta(days=3660)  # timetables are asked until some day


class NoSliceError(ConfigError):
    """The slice that a task run is for is not known."""


@dataclasses.dataclass(frozen=True)
class Slice:
    """The part of the data that a task run is for.

    Attributes:
        key: the partition key; None where time alone tells.
        interval: its start and end; None for a key that is no time.
    """

    key: str | None = None
    interval: Interval | None = None

    @property
    def name(self) -> str:
        """Return what names a folder everywhere, and is another one for every other slice.

        The interval's times in UTC, such as ``20260101T000000Z-20260102T000000Z``; without one the
        key.
        """
        if self.interval is None:
            return derive_run_id(str(self.key))
        return "-".join(_spell(moment) for moment in self.interval)

    @property
    def start(self) -> dt.datetime:
        """Return when it begins.

        Raises:
            NoSliceError: it has no interval.
        """
        return self._timed()[0]

    @property
    def end(self) -> dt.datetime:
        """Return when it ends, which is the first moment that is not in it.

        Raises:
            NoSliceError: it has no interval.
        """
        return self._timed()[1]

    def __str__(self) -> str:
        """Return its name."""
        return self.name

    def _timed(self) -> Interval:
        if self.interval is None:
            raise NoSliceError(
                f"the partition key {self.key!r} is no time, so this slice has neither start nor "
                "end; use slice.key or slice.name"
            )
        return self.interval


@dataclasses.dataclass(frozen=True)
class RunFacts:
    """The facts of a DAG run that decide its slice.

    Attributes:
        run: the DAG run's id, for errors.
        partition: the time from its partition to the next one, where the timetable knows it.
        data_interval: as Airflow gives it, which may be empty.
        conf: its configuration.
    """

    run: str = ""
    partition_key: str | None = None
    partition: Interval | None = None
    data_interval: Interval | None = None
    conf: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def find_slice(context: Mapping[str, Any]) -> Slice | None:
    """Return the slice of a task run; None when nothing tells.

    Args:
        context: the task's context.

    Raises:
        NoSliceError: its configuration contradicts itself.
    """
    return choose_slice(facts_of(context))


def slice_of(context: Mapping[str, Any]) -> Slice:
    """Return the slice of a task run.

    Args:
        context: the task's context, such as ``get_current_context()`` gives.

    Raises:
        NoSliceError: nothing tells, or the configuration contradicts itself.
    """
    facts = facts_of(context)
    found = choose_slice(facts)
    if found is not None:
        return found
    empty = facts.data_interval
    seen = "no data interval" if empty is None else f"an empty data interval at {empty[0]}"
    raise NoSliceError(
        f"run {facts.run!r}: its slice is not known: it has no partition key, "
        f"{seen}, and no configuration. Give the DAG a timetable with intervals, such as "
        "CronDataIntervalTimetable, or with partitions, such as CronPartitionTimetable; or trigger "
        f'it with a logical date, or with {{"{INTERVAL_START}": …, "{INTERVAL_END}": …}} or '
        f'{{"{PARTITION_KEY}": …}} as its configuration'
    )


def choose_slice(facts: RunFacts) -> Slice | None:
    """Decide, in the order that the module's text gives.

    Raises:
        NoSliceError: the configuration contradicts itself.
    """
    if facts.partition_key is not None:
        return Slice(facts.partition_key, facts.partition)
    if facts.data_interval is not None and facts.data_interval[0] < facts.data_interval[1]:
        return Slice(interval=facts.data_interval)
    key = facts.conf.get(PARTITION_KEY)
    interval = _configured(facts)
    if key is None and interval is None:
        return None
    if key is not None and (not isinstance(key, str) or not key):
        raise NoSliceError(
            f"run {facts.run!r}: {PARTITION_KEY} {key!r} in its configuration: write a text"
        )
    return Slice(key, interval)


def facts_of(context: Mapping[str, Any]) -> RunFacts:
    """Return what a task's context says of its slice."""
    dag_run = context.get("dag_run")
    key = context.get("partition_key")
    found = (context.get("data_interval_start"), context.get("data_interval_end"))
    start, end = found
    return RunFacts(
        run=str(context.get("run_id") or getattr(dag_run, "run_id", "")),
        partition_key=key,
        partition=_partition(context) if key is not None else None,
        data_interval=(start, end)
        if isinstance(start, dt.datetime) and isinstance(end, dt.datetime)
        else None,
        conf=getattr(dag_run, "conf", None) or {},
    )


class SliceInTemplates:
    """The slice as templates see it: looked for when it is first used, so others need none.

    Args:
        find: gives it.
    """

    def __init__(self, find: Callable[[], Slice]) -> None:
        self._find = find

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the slice."""
        return getattr(self._find(), name)

    def __str__(self) -> str:
        """Return the slice's name."""
        return str(self._find())


def _configured(facts: RunFacts) -> Interval | None:
    given = [facts.conf.get(name) for name in (INTERVAL_START, INTERVAL_END)]
    if given == [None, None]:
        return None
    try:
        start, end = (_moment(value) for value in given)
    except (TypeError, ValueError) as error:
        raise NoSliceError(
            f"run {facts.run!r}: {INTERVAL_START} {given[0]!r} and {INTERVAL_END} {given[1]!r} in "
            "its configuration: write two times such as 2026-01-01T00:00:00Z"
        ) from error
    if start >= end:
        raise NoSliceError(
            f"run {facts.run!r}: its configuration has an interval from {start} to {end}: empty"
        )
    return start, end


def _moment(value: Any) -> dt.datetime:
    if not isinstance(value, str):
        raise TypeError(value)
    found = from_iso(value)
    return found if found.tzinfo is not None else found.replace(tzinfo=dt.timezone.utc)


def _spell(moment: dt.datetime) -> str:
    utc = moment.astimezone(dt.timezone.utc)
    fraction = f".{utc.microsecond:06d}" if utc.microsecond else ""
    return f"{utc:{_IN_A_NAME}}{fraction}Z"


def _partition(context: Mapping[str, Any]) -> Interval | None:
    """Return the time from the run's partition to the next one; None when it is unknown."""
    date = context.get("partition_date")
    timetable = getattr(context.get("dag"), "timetable", None)
    if not isinstance(date, dt.datetime) or timetable is None:
        return None
    # The worker has the declaration of a timetable; what it does is in Airflow's core.
    from airflow.serialization.encoders import coerce_to_core_timetable

    known = coerce_to_core_timetable(timetable)
    if not known.partitioned or not hasattr(known, "iter_partition_dagrun_infos"):
        return None  # the latter where Airflow's version has partitions, and no list of them
    # Bounds are read as times of the timetable's own clock, which is within a day of ours.
    bounds = {"earliest": date - _ZONES_APART, "latest": date + _LONGEST_PERIOD}
    try:
        dates = (info.partition_date for info in known.iter_partition_dagrun_infos(**bounds))
        end = next((each for each in dates if each is not None and each > date), None)
    except NotImplementedError:
        return None
    return (date, end) if end is not None else None
