"""Which queries of a job are started again when one has failed; Flink's pipelined regions.

A query that reads another's table reads only what that one has committed, if the table's sink
publishes by epochs: then the two fail apart, since what was read stays as it is. A table without
epochs shows rows of batches that may run again: who writes it and who reads it are one **region**,
and are restarted together.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence


class Failover(str, enum.Enum):
    """How much is started again."""

    REGION = "region"  # the failed query, and what cannot be told from it
    FULL = "full"  # every query that has not ended


FAILOVERS: Final = tuple(each.value for each in Failover)


class Edge(NamedTuple):
    """One query reads what another one writes.

    Attributes:
        committed: whether it sees only what the other has committed.
    """

    upstream: str
    downstream: str
    committed: bool


@dataclasses.dataclass(frozen=True)
class FailoverScope:
    """What a failure asks for.

    Attributes:
        restart: the queries to start again, in the job's order.
        anew: those of them that must begin from an earlier savepoint, because a table that they
            write or read was lost; to resume is enough for the others.
        impossible: queries that would have to run again, and have ended for good: the driver
            cannot heal this.
    """

    restart: tuple[str, ...]
    anew: tuple[str, ...] = ()
    impossible: tuple[str, ...] = ()


def failover_scope(
    queries: Sequence[str],
    edges: Collection[Edge],
    failed: str,
    *,
    failover: Failover = Failover.REGION,
    finished: Collection[str] = (),
    lost: Collection[str] = (),
) -> FailoverScope:
    """Decide what is started again; pure.

    Args:
        queries: all of the job, in its order.
        edges: which reads what which writes.
        failed: the query that has failed.
        failover: how much is asked for.
        finished: queries that have ended for good; they are left alone.
        lost: queries whose output is gone. They have to produce it anew, and whoever has read it
            with them.

    Raises:
        ValueError: *failed*, or an end of an edge, is none of *queries*.
    """
    _check(queries, [failed, *lost, *(end for edge in edges for end in edge[:2])])
    regions = _regions_of(queries, edges)
    anew = _produced_anew(regions, edges, failed, frozenset(lost))
    restart = frozenset(queries) if failover is Failover.FULL else regions[failed] | anew
    ended = frozenset(finished)
    return FailoverScope(
        restart=_ordered(queries, restart - ended),
        anew=_ordered(queries, anew - ended),
        impossible=_ordered(queries, anew & ended),
    )


def _regions_of(queries: Sequence[str], edges: Collection[Edge]) -> dict[str, frozenset[str]]:
    """Return for each query all that are connected with it by tables without commits."""
    regions = {query: frozenset({query}) for query in queries}
    for edge in edges:
        if not edge.committed:
            merged = regions[edge.upstream] | regions[edge.downstream]
            regions |= dict.fromkeys(merged, merged)
    return regions


def _produced_anew(
    regions: dict[str, frozenset[str]],
    edges: Collection[Edge],
    failed: str,
    lost: frozenset[str],
) -> frozenset[str]:
    """Return who must begin anew: writers of lost tables that are needed, and their readers."""
    anew = regions[failed] if regions[failed] & lost else frozenset[str]()
    affected = regions[failed]
    while True:
        needed = {e.upstream for e in edges if e.downstream in affected and e.upstream in lost}
        spoilt = {e.downstream for e in edges if e.upstream in anew}
        more = anew.union(*(regions[query] for query in needed | spoilt))
        if more == anew:
            return anew
        anew, affected = more, affected | more


def _ordered(queries: Sequence[str], chosen: Collection[str]) -> tuple[str, ...]:
    return tuple(query for query in queries if query in chosen)


def _check(queries: Sequence[str], named: Iterable[str]) -> None:
    unknown = [name for name in named if name not in queries]
    if unknown:
        msg = f"{', '.join(map(repr, unknown))}: no query of {', '.join(map(repr, queries))}"
        raise ValueError(msg)
