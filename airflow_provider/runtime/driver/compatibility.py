"""Compatibility of a job's current declaration with the stored states of its queries."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections import Counter
from typing import TYPE_CHECKING

from airflow_provider.runtime.checkpoint.last_files import files_of_last_batch
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.checkpoint.topology import (
    Verdict,
    changes_between,
    mismatches,
    of_verdict,
    side_by_side,
)
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.errors.fixes import keep_position, set_option
from airflow_provider.runtime.jobdir.end_of_input import drain_intent
from airflow_provider.runtime.jobdir.query_records import kept_fingerprint, kept_topology
from airflow_provider.runtime.sources.locations import ReadLocation

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from airflow_provider.runtime.checkpoint.topology import Change, Fingerprint, Topology
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.queries.query import QueryDefinition
    from airflow_provider.runtime.savepoints.catalog import Savepoint
    from airflow_provider.runtime.savepoints.record import QuerySavepoint

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class StoredQuery:
    """The stored facts of a query that was started before."""

    topology: Topology
    ended: bool
    fingerprint: Fingerprint | None = None
    has_results: bool = True
    open_batch: int | None = None  # planned, and not committed
    last_files: Callable[[], Mapping[str, Sequence[str]]] = dict  # of its last batch, by source

    def misfits(self, now: Topology) -> list[str]:
        """Return why the topology of a query that is declared does not fit, as phrases."""
        return mismatches(self.topology, now, fixed=self._fixed())

    def _fixed(self) -> str | None:
        if self.ended:
            return "it has read its last row"
        if self.open_batch is not None:
            return (
                f"batch {self.open_batch} is planned and not committed, and runs with its sources"
            )
        return None


@dataclasses.dataclass(frozen=True)
class Declared:
    """What a job declares about its queries."""

    names: Sequence[str]
    topologies: Mapping[str, Topology]
    upstream: Mapping[str, Sequence[str]]
    unfit: Mapping[str, str] = dataclasses.field(default_factory=dict)


def find_incompatible(
    kept: Mapping[str, StoredQuery], declared: Declared, before: Collection[str]
) -> dict[str, str]:
    """Return for each query that cannot continue the reason, which names both sides."""
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
    wrong = kept.misfits(now)
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
    for name in ended:
        for writer in () if name in incompatible else declared.upstream.get(name, ()):
            how = (
                "is new"
                if writer not in before
                else "does not continue"
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
FIXES = (
    "Declare it as it was, give the query another name, which reads all its input again, make "
    "its state again from history (spark-stream state bootstrap)"
)


class ChangedQueries:
    """Compares a job's queries with the fingerprints of their states, and logs each change once."""

    def __init__(self, *, allow_mixed_results: bool) -> None:
        self._allow = allow_mixed_results
        self._logged: set[tuple[Change, ...]] = set()
        self._mixed: dict[str, list[Change]] = {}

    def compare(
        self, query: str, stored: StoredQuery, now: Fingerprint | None, where: str
    ) -> str | None:
        kept = stored.fingerprint
        changes = changes_between(kept, now) if kept is not None and now is not None else []
        impossible = of_verdict(changes, Verdict.IMPOSSIBLE)
        if not stored.has_results:
            changes = impossible
        self._log_changes(query, changes, where)
        self._mixed[query] = [] if impossible else of_verdict(changes, Verdict.MIXES_RESULTS)
        if impossible:
            return f"query {query!r} does not fit its state: {_named(impossible)}"
        return None

    def _log_changes(self, query: str, changes: Sequence[Change], where: str) -> None:
        if not changes or tuple(changes) in self._logged:
            return
        self._logged.add(tuple(changes))
        is_bad = any(each.verdict is not Verdict.LATER_RESULTS for each in changes)
        lines = "\n".join(f"    {line}" for line in side_by_side(changes))
        log.log(
            logging.WARNING if is_bad else logging.INFO,
            "query=%s has changed since %s was made:\n%s",
            query,
            where,
            lines,
        )

    def check(self, where: str, besides: Collection[str]) -> None:
        """Refuse to mix the results of two jobs, unless that is allowed."""
        mixed = {n: found for n, found in self._mixed.items() if found and n not in besides}
        self._mixed = {}
        if mixed and not self._allow:
            queries = "; ".join(f"query {name!r}: {_named(each)}" for name, each in mixed.items())
            raise ConfigError(
                f"{where}: results of two jobs would be mixed, because the state was made by "
                f"another one: {queries}. {FIXES}, or continue with it, so "
                f"that the output has both ({set_option('allow_mixed_results')})"
            )


def _named(changes: Sequence[Change]) -> str:
    named = "; ".join(map(str, changes[:_MOST_NAMED]))
    more = len(changes) - _MOST_NAMED
    return f"{named}; and {more} more" if more > 0 else named


def check_seam(url: str, saved: QuerySavepoint | None, query: QueryDefinition) -> None:
    """Refuse to read again what a bootstrap has read."""
    history = saved.history if saved is not None else ()
    read = {each["name"]: ReadLocation.from_dict(each) for each in history}
    for source in query.sources if read else ():
        before, now = read.get(source.name), source.reads
        if before is not None and before.overlaps(now):
            raise ConfigError(
                f"query {query.name!r}: source {source.name!r} ({now.where}) would read again what "
                f"the bootstrap of {url} has read ({before.where}), so its rows would "
                "count twice. Let it read later data, from another location; or bootstrap again "
                f"with {keep_position(source.name)}, so that it continues where history ended"
            )


def match_queries(
    savepoint: Savepoint, declared: Sequence[str], *, allow_non_restored: bool = False
) -> dict[str, str]:
    """Return for each query of a job the savepoint's query that it resumes from; "" for none."""
    saved = list(savepoint.record.queries)
    if savepoint.record.job is None and len(saved) == len(declared) == 1:
        return {declared[0]: saved[0]}
    if set(saved) != set(declared) and not allow_non_restored:
        raise ConfigError(
            f"the savepoint {savepoint.url} has the queries {', '.join(saved)}, and the job has "
            f"{', '.join(declared)}; give them the same names, or allow state that is not restored "
            f"({set_option('allow_non_restored_state')})"
        )
    return {name: name if name in saved else "" for name in declared}


def stored_query(directory: JobDirectory) -> dict[str, StoredQuery]:
    """Return the stored facts of the queries that have planned a batch, or ended."""
    kept = {}
    for name in directory.query_names():
        ended = drain_intent(directory, name) is not None
        if not ended and not CheckpointLogs(directory.checkpoint(name)).batches("offsets"):
            continue
        topology = kept_topology(directory, name)
        if topology is not None:
            position = CheckpointLogs(directory.checkpoint(name)).position()
            kept[name] = StoredQuery(
                topology,
                ended,
                kept_fingerprint(directory, name),
                has_results=position.last_commit >= 0,
                open_batch=position.open_batch,
                last_files=functools.partial(
                    files_of_last_batch, directory.checkpoint(name), topology.sources
                ),
            )
    return kept
