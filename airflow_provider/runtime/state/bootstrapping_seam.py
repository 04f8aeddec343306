"""The seam between history and the live job: pure.

History is what was up to a moment, and the live job reads what came after: only the user knows
where the data is parted. Each source is one of three:

=========  ==============================  ========================================================
source     the live job reads              in the savepoint
=========  ==============================  ========================================================
reset      another place than history      no offset: it begins from its beginning
kept       the same place, further on      its offset: it goes on where history ended
internal   what another query writes       its offset: what was read of that is in the state
=========  ==============================  ========================================================

Streams of markers are reset: they say where a source stands in event time, and are put anew.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from airflow_provider.runtime.checkpoint.offsets import can_reset
from airflow_provider.runtime.checkpoint.topology import mismatches
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.read_range import ReadPlace
from airflow_provider.runtime.jobdir.watermark_markers import is_marker

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from airflow_provider.runtime.queries.query import QueryDefinition
    from airflow_provider.runtime.queries.source import SourceDefinition


@dataclasses.dataclass(frozen=True)
class Seam:
    """What becomes of the sources.

    Attributes:
        stays: the names of the sources whose offsets stay.
        history: per query, in the order of the job, what its other sources have read.
    """

    stays: frozenset[str]
    history: Mapping[str, tuple[ReadPlace, ...]]

    def places_to_reset(self, names: Iterable[str | None]) -> list[int]:
        """Return the places of the sources that begin anew.

        Args:
            names: a query's sources in the order of Spark's offset log.
        """
        return [place for place, name in enumerate(names) if name not in self.stays]


def plan_seam(queries: Sequence[QueryDefinition], kept: Collection[str], *, output: str) -> Seam:
    """Decide what becomes of each source.

    Args:
        queries: as the job declares them with the parameters of the history.
        kept: the sources that go on where history ended.
        output: ``discard`` or ``keep``.

    Raises:
        ConfigError: *kept* names what the job does not read, or a query would read what another
            one does not write.
    """
    sources = [s for q in queries for s in q.sources if not is_marker(s.name)]
    known = {source.name for source in sources}
    for name in kept:
        if name not in known:
            names = ", ".join(sorted(known))
            msg = f"keep position of {name!r}: the job has no such source; it has {names}"
            raise ConfigError(msg)
    internal = {source.name for source in sources if source.is_internal}
    if internal and output == "discard":
        chained = ", ".join(sorted(repr(name) for name in internal))
        msg = (
            f"source {chained} reads what another query of the job writes, and nothing is written "
            "when the output is discarded; bootstrap with --output keep"
        )
        raise ConfigError(msg)
    stays = frozenset({*kept, *internal})
    seam = Seam(stays, {query.name: _history_of(query, stays) for query in queries})
    for query in queries:
        order = [source.name for source in query.sources]
        if not can_reset(order, seam.places_to_reset(order)):
            msg = (
                f"query {query.name!r} reads a source at several places, so Spark's files do not "
                "tell which of its sources keep their positions; let all of them begin anew, or "
                "none, or give that source a second name where it is read again"
            )
            raise ConfigError(msg)
    return seam


def _history_of(query: QueryDefinition, stays: Collection[str]) -> tuple[ReadPlace, ...]:
    read = {s.name: s for s in query.sources if s.name not in stays and _can_be_told(s)}
    return tuple(ReadPlace.of(source) for source in read.values())


def _can_be_told(source: SourceDefinition) -> bool:
    """Tell whether it is known what the source reads: not so of one without ``ctx.read``."""
    return source.is_known and not is_marker(source.name)


def check_seam(
    history: Sequence[QueryDefinition], live: Sequence[QueryDefinition], seam: Seam
) -> None:
    """Refuse history and a live job that do not fit each other, before anything is read.

    Args:
        history: the queries as they are declared for the history.
        live: the queries as the live job will declare them.
        seam: what becomes of their sources.

    Raises:
        ConfigError: the queries differ, or rows would be counted twice.
    """
    now = {query.name: query for query in live}
    if set(now) != {query.name for query in history}:
        msg = (
            f"with the parameters of the history the job has the queries "
            f"{', '.join(query.name for query in history)}, and with those of the live job "
            f"{', '.join(now)}; it must declare the same"
        )
        raise ConfigError(msg)
    for query in history:
        _check_same_shape(query, now[query.name])
        there = {source.name: source for source in now[query.name].sources}
        for source in query.sources:
            if _can_be_told(source) and not source.is_internal:
                _check_source(source, there[source.name], kept=source.name in seam.stays)


def _check_same_shape(query: QueryDefinition, live: QueryDefinition) -> None:
    wrong = mismatches(query.topology, live.topology)
    if set(query.marked) != set(live.marked):
        wrong.append(
            "the same sources must be bounded, with the same idle_after, in both: the markers of "
            f"{_names(query.marked)} in history are those of {_names(live.marked)} in the live job"
        )
    if wrong:
        msg = f"query {query.name!r} of the live job does not fit history: {'; '.join(wrong)}"
        raise ConfigError(msg)


def _check_source(source: SourceDefinition, live: SourceDefinition, *, kept: bool) -> None:
    before, now = ReadPlace.of(source), ReadPlace.of(live)
    if kept and before != now:
        msg = (
            f"source {source.name!r} is to keep its position, and reads {before.where} in history "
            f"and {now.where} in the live job; a position has no meaning in another place"
        )
        raise ConfigError(msg)
    if not kept and before.overlaps(now):
        msg = (
            f"source {source.name!r} of the live job ({now.where}) would read again what history "
            f"reads ({before.where}), so its rows would count twice. Let one of them read another "
            f"place, or keep its position (--keep-position {source.name}), so that the live job "
            "goes on where history ended"
        )
        raise ConfigError(msg)


def _names(names: Collection[str]) -> str:
    return ", ".join(sorted(names)) or "no source"
