"""Failover regions: the queries that are started again when one has failed, as in Flink.

A query that reads another's table reads only what that one has committed, if the table's sink
publishes by epochs: then the two fail apart, since what was read stays as it is. A table without
epochs shows rows of batches that may run again: who writes it and who reads it are one **region**,
and are restarted together.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence


class Failover(str, enum.Enum):
    """How much is started again."""

    REGION = "region"  # the failed query, and those that see its uncommitted output
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


def queries_to_restart(
    queries: Sequence[str],
    edges: Collection[Edge],
    failed: str,
    *,
    failover: Failover = Failover.REGION,
    finished: Collection[str] = (),
) -> tuple[str, ...]:
    """Return the queries that are started again, in the job's order; pure.

    Args:
        queries: all of the job, in its order.
        edges: which reads what which writes.
        failed: the query that has failed.
        failover: how much is started again.
        finished: queries that have ended for good; they are left alone.

    Raises:
        ValueError: *failed*, or an end of an edge, is none of *queries*.
    """
    _check(queries, [failed, *(end for edge in edges for end in edge[:2])])
    restart = queries if failover is Failover.FULL else _regions_of(queries, edges)[failed]
    return tuple(query for query in queries if query in restart and query not in finished)


def _regions_of(queries: Sequence[str], edges: Collection[Edge]) -> dict[str, frozenset[str]]:
    """Return for each query all that are connected with it by tables without commits."""
    regions = {query: frozenset({query}) for query in queries}
    for edge in edges:
        if not edge.committed:
            merged = regions[edge.upstream] | regions[edge.downstream]
            regions |= dict.fromkeys(merged, merged)
    return regions


def _check(queries: Sequence[str], named: Iterable[str]) -> None:
    unknown = [name for name in named if name not in queries]
    if unknown:
        msg = f"{', '.join(map(repr, unknown))}: no query of {', '.join(map(repr, queries))}"
        raise ValueError(msg)
