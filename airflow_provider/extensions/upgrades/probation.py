"""Probation of a new version: has it shown that it can take the place of the old one? Pure."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.observe.health import DriverSample, Health, Limits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider.runtime.observe.health import QuerySample

MOST_BATCHES: Final = 90
"""What was written can be reverted for a hundred batches; then records of epochs are folded."""


@dataclasses.dataclass(frozen=True)
class AcceptanceCriteria:
    """The criteria by which a new version is accepted.

    Attributes:
        probation_s: for how long it is watched.
        limits: what would show that it is not well.
        begins: per query the last batch of the savepoint; each has to commit one after it.
    """

    probation_s: float
    limits: Limits
    begins: Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class Probation:
    """The observations of the trial so far.

    Attributes:
        began_s: the first look, on the observer's monotonic clock.
    """

    terms: AcceptanceCriteria
    began_s: float
    health: Health = dataclasses.field(default_factory=Health)

    def after(
        self, queries: Mapping[str, QuerySample], *, report: str, now_s: float
    ) -> tuple[Probation, str | None]:
        """Return what is known after one more look, and the decision.

        Args:
            queries: how far each has come.
            report: what tells the driver's last report from the one before.
            now_s: the observer's monotonic time.

        Returns:
            As decision None while it is watched, an empty text for accepted, and for rejected the
            reason.
        """
        look = DriverSample(0, "this machine", report, queries)
        health, problem = self.health.after(look, self.terms.limits, now_s)
        known = dataclasses.replace(self, health=health)
        if problem is not None:
            query = f"query {problem.query!r}: " if problem.query is not None else ""
            return known, f"{query}{problem.reason}"
        batches = max((q.committed - self._begin(n) for n, q in queries.items()), default=0)
        if now_s - self.began_s < self.terms.probation_s and batches < MOST_BATCHES:
            return known, None
        silent = [
            name
            for name in self.terms.begins
            if name not in queries or queries[name].committed <= self._begin(name)
        ]
        if silent:
            return known, (
                f"query {silent[0]!r} has committed no batch in {self.terms.probation_s:g} seconds"
            )
        return known, ""

    def _begin(self, query: str) -> int:
        return self.terms.begins.get(query, -1)
