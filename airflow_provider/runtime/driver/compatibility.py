"""Compatibility of a job, as it is declared now, with the states that its queries have kept."""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from typing import TYPE_CHECKING

from airflow_provider.runtime.checkpoint.topology import (
    Verdict,
    changes_between,
    mismatches,
    of_verdict,
    side_by_side,
)
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.errors.ways_out import set_option

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from airflow_provider.runtime.checkpoint.topology import Change, Fingerprint, Topology

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class StoredQuery:
    """The stored facts of a query that was started before.

    Attributes:
        topology: its sources and operators.
        ended: whether it has read its last row: no source of it is read again.
        fingerprint: what made its state; None if unknown.
        has_results: whether a batch of it has committed.
    """

    topology: Topology
    ended: bool
    fingerprint: Fingerprint | None = None
    has_results: bool = True


@dataclasses.dataclass(frozen=True)
class Declared:
    """The facts that a job declares about its queries.

    Attributes:
        names: its queries, in its order.
        topologies: their sources and operators; needed for stored queries.
        upstream: for each query that reads other queries' output: those queries.
        unfit: why a query with the same kinds of operators cannot continue with its state.
    """

    names: Sequence[str]
    topologies: Mapping[str, Topology]
    upstream: Mapping[str, Sequence[str]]
    unfit: Mapping[str, str] = dataclasses.field(default_factory=dict)


def find_incompatible(
    kept: Mapping[str, StoredQuery], declared: Declared, before: Collection[str]
) -> dict[str, str]:
    """Return the queries that cannot continue, and why not.

    Args:
        kept: the stored facts, by query.
        declared: the job as it is now.
        before: the queries that the job had in any of its runs.

    Returns:
        By query the reason, which names both sides: the query is gone, has changed, or has ended
        and would get more input.
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
    """Yield ended queries that read from a query that is new or starts over, with the reason."""
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


_MOST_NAMED = 3
WAYS_OUT = (
    "Declare it as it was, give the query another name, make its state again from history "
    "(spark-stream state bootstrap)"
)


class ChangedQueries:
    """Compares a job's queries with the fingerprints of their states, and logs each change once.

    Args:
        where: the job directory or the savepoint that has the states, for people.
        allow_mixed_results: continue even if results would be mixed.
    """

    def __init__(self, where: str, *, allow_mixed_results: bool) -> None:
        self._where = where
        self._allow = allow_mixed_results
        self._logged: set[tuple[Change, ...]] = set()
        self._mixed: dict[str, list[Change]] = {}

    def compare(
        self, query: str, kept: Fingerprint | None, now: Fingerprint | None, *, has_results: bool
    ) -> str | None:
        """Log what has changed of a query.

        Args:
            query: its name.
            kept: what made its state; None if unknown.
            now: what the job declares.
            has_results: whether a batch of it has committed; else nothing can be mixed.

        Returns:
            Why it cannot continue with its state, even if the user asks for it; None if it can.
        """
        changes = changes_between(kept, now) if kept is not None and now is not None else []
        if not has_results:
            changes = of_verdict(changes, Verdict.IMPOSSIBLE)
        self._log_changes(query, changes)
        impossible = of_verdict(changes, Verdict.IMPOSSIBLE)
        self._mixed[query] = [] if impossible else of_verdict(changes, Verdict.MIXES_RESULTS)
        if impossible:
            return f"query {query!r} does not fit its state: {_named(impossible)}"
        return None

    def _log_changes(self, query: str, changes: Sequence[Change]) -> None:
        if not changes or tuple(changes) in self._logged:
            return
        self._logged.add(tuple(changes))
        is_bad = any(each.verdict is not Verdict.LATER_RESULTS for each in changes)
        lines = "\n".join(f"    {line}" for line in side_by_side(changes))
        log.log(
            logging.WARNING if is_bad else logging.INFO,
            "query=%s has changed since %s was made:\n%s",
            query,
            self._where,
            lines,
        )

    def check(self, besides: Collection[str] = ()) -> None:
        """Refuse to mix the results of two jobs, unless that is allowed.

        Queries in *besides* start over, and so mix nothing.

        Raises:
            ConfigError: the message names the changes and the ways out.
        """
        mixed = {name: found for name, found in self._mixed.items() if found}
        mixed = {name: found for name, found in mixed.items() if name not in besides}
        if mixed and not self._allow:
            queries = "; ".join(f"query {name!r}: {_named(each)}" for name, each in mixed.items())
            msg = (
                f"{self._where}: results of two jobs would be mixed, because the state was made by "
                f"another one: {queries}. {WAYS_OUT}, or go on with it "
                f"({set_option('allow_mixed_results')})"
            )
            raise ConfigError(msg)


def _named(changes: Sequence[Change]) -> str:
    named = "; ".join(map(str, changes[:_MOST_NAMED]))
    more = len(changes) - _MOST_NAMED
    return f"{named}; and {more} more" if more > 0 else named
