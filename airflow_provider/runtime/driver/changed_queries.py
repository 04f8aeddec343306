"""Changed queries: says what has changed since a state was made; refuses what mixes results."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow_provider.runtime.checkpoint.fingerprint import (
    Verdict,
    changes_between,
    of_verdict,
    side_by_side,
)
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.errors.ways_out import set_option

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from airflow_provider.runtime.checkpoint.fingerprint import Change, Fingerprint

log = logging.getLogger(__name__)

_MOST_NAMED = 3
WAYS_OUT = (
    "Declare it as it was, give the query another name, make its state again from history "
    "(spark-stream state bootstrap)"
)


class ChangedQueries:
    """Compares the queries of a job with what made their states, and says what it finds once.

    Args:
        where: the job directory or the savepoint that has the states, for people.
        allow_mixed_results: go on also with what would mix results.
    """

    def __init__(self, where: str, *, allow_mixed_results: bool) -> None:
        self._where = where
        self._allow = allow_mixed_results
        self._logged: set[tuple[Change, ...]] = set()
        self._mixed: dict[str, list[Change]] = {}

    def compare(
        self, query: str, kept: Fingerprint | None, now: Fingerprint | None, *, has_results: bool
    ) -> str | None:
        """Say what has changed of a query.

        Args:
            query: its name.
            kept: what made its state; None when not known.
            now: what the job declares.
            has_results: whether a batch of it has committed; else there is nothing to mix.

        Returns:
            Why it cannot go on with its state, also when that is asked for; None if it can.
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
        """Refuse what would mix the results of two jobs, unless that is allowed.

        Args:
            besides: queries that start over, and so mix nothing.

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
