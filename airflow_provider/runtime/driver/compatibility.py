"""Compatibility of a job, as it is declared now, with what its queries have kept; pure."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING

from airflow_provider.runtime.checkpoint.topology import mismatches

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from airflow_provider.runtime.checkpoint.fingerprint import Fingerprint
    from airflow_provider.runtime.checkpoint.topology import Topology


@dataclasses.dataclass(frozen=True)
class StoredQuery:
    """The stored facts of a query that was started before.

    Attributes:
        topology: what it consisted of.
        ended: whether it has read its last row: no source of it is read again.
        fingerprint: what made its state; None when not known.
        has_results: whether a batch of it has committed.
    """

    topology: Topology
    ended: bool
    fingerprint: Fingerprint | None = None
    has_results: bool = True


@dataclasses.dataclass(frozen=True)
class Declared:
    """The facts that a job declares about a query.

    Attributes:
        names: its queries, in its order.
        topologies: what they consist of; needed of those that are kept.
        upstream: for each query that reads what others write: these.
        unfit: why a query of the same kinds of operators cannot go on with its state.
    """

    names: Sequence[str]
    topologies: Mapping[str, Topology]
    upstream: Mapping[str, Sequence[str]]
    unfit: Mapping[str, str] = dataclasses.field(default_factory=dict)


def find_incompatible(
    kept: Mapping[str, StoredQuery], declared: Declared, before: Collection[str]
) -> dict[str, str]:
    """Say which queries cannot go on, and why not.

    Args:
        kept: what there is, by query.
        declared: the job as it is now.
        before: the queries that the job had in any of its runs.

    Returns:
        By query the reason, which names both sides: of one that is gone, that has changed, or that
        has ended and would get more input.
    """
    incompatible = {
        name: (
            f"query {name!r} is gone: expected the queries {', '.join(kept)}, found "
            f"{', '.join(declared.names)}"
        )
        for name in kept
        if name not in declared.names
    }
    for name in declared.names:
        if name in kept:
            why = _explain_change(name, kept[name], declared.topologies[name])
            if why := why or declared.unfit.get(name):
                incompatible[name] = why
    ended = [name for name in declared.names if name in kept and kept[name].ended]
    while more := dict(_find_fed(ended, declared, {*kept, *before}, incompatible)):
        incompatible |= more
    return incompatible


def _explain_change(name: str, kept: StoredQuery, now: Topology) -> str | None:
    wrong = mismatches(kept.topology, now)
    if not wrong:
        return None
    added = Counter(now.sources) - Counter(kept.topology.sources)
    if kept.ended and added and None not in kept.topology.sources:
        sources = ", ".join(f"source {source!r}" for source in added)
        return (
            f"query {name!r} has finished{_operators_of(kept.topology)}, and {sources} is now "
            f"in front of it: {'; '.join(wrong)}"
        )
    return f"query {name!r} has changed: {'; '.join(wrong)}"


def _find_fed(
    ended: Sequence[str],
    declared: Declared,
    before: Collection[str],
    incompatible: Mapping[str, str],
) -> Iterator[tuple[str, str]]:
    """Yield what has ended and reads from a query that is new, or starts over; with the reason."""
    for name in ended:
        for writer in () if name in incompatible else declared.upstream.get(name, ()):
            how = (
                "is new"
                if writer not in before
                else "does not go on"
                if writer in incompatible
                else ""
            )
            if how:
                yield (
                    name,
                    f"query {name!r} has finished, and query {writer!r}, which {how}, is now "
                    "in front of it and writes what it reads",
                )


def _operators_of(topology: Topology) -> str:
    operators = topology.operators or ()
    if not operators:
        return ""
    listed = ", ".join(f"{operator.id} {operator.kind}" for operator in operators)
    return f", with its stateful operator{'s' if len(operators) > 1 else ''} {listed}"
