"""Periods of event time that corrections have revised, each reported when it is complete again.

Pure. A period counts that was reported as complete before its correction was seen. It is due when
the correction is settled, and the output is complete up to the end of the period once more: not
when the rows are removed, and not while the run that replays them is at work. One event covers all
settled corrections of a period.

The part ``revisions`` of a watcher's state has the corrections that are not reported completely.
It is stored with each event, so:

===================================  ==============================================================
a triggerer dies                     the next one
===================================  ==============================================================
before an event is registered        finds the same corrections from the same position, and reports
                                     the same event
after it                             continues after that period
===================================  ==============================================================
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_provider.runtime.base.clock import millis_to_iso
from airflow_provider.runtime.observe.corrections import ALSO

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from airflow_provider.runtime.observe.completeness import Completeness
    from airflow_provider.runtime.observe.corrections import (
        Correction,
        CorrectionPosition,
        SeenCorrections,
    )

Open = dict[str, list[Any]]
Revisions = dict[str, Any]
"""A position among the corrections, and ``open``: of each that is left, the next period's end (null
before the first) and the last end that was reported before it."""


class RevisedPeriod(NamedTuple):
    """A period to report; *end_ms* is None where it is not known which periods are revised."""

    end_ms: int | None
    corrections: Sequence[Correction]
    revisions: Revisions


def no_revisions(position: CorrectionPosition) -> Revisions:
    """Return the part of a state with which all corrections up to a position are known."""
    return {**position.to_dict(), "open": {}}


@dataclasses.dataclass(frozen=True)
class RevisedPeriods:
    """Decides which periods are revised.

    Attributes:
        every_ms: the length of the periods.
        queries: the queries that count; none for all.
    """

    every_ms: int
    queries: tuple[str, ...] = ()

    def entered(
        self, before: Revisions, seen: SeenCorrections, reported_ms: int | None
    ) -> Revisions:
        """Return the state with new corrections; *reported_ms* is the last end that was reported.

        Without one no period was reported, so none is revised.
        """
        known = {each.id for each in seen.items}
        left = {id_: at for id_, at in before["open"].items() if id_ in known}
        if reported_ms is not None:
            for each in seen.items:
                if each.of(self.queries):
                    left.setdefault(each.id, [None, reported_ms])
        return {**seen.position.to_dict(), "open": left}

    def due(
        self, revisions: Revisions, seen: SeenCorrections, complete: Completeness
    ) -> Iterator[RevisedPeriod]:
        """Yield the revised periods that are complete again, oldest first."""
        settled = self._settled(revisions["open"], seen, complete)
        left = self._not_done(revisions["open"], settled)
        while ends := {
            id_: self._next(each, *left[id_]) for id_, each in settled.items() if id_ in left
        }:
            end_ms = min(ends.values(), key=lambda end: -1 if end is None else end)
            if end_ms is not None and not complete.is_up_to(end_ms):
                return
            ids = [id_ for id_, end in ends.items() if end == end_ms]
            after_ms = 0 if end_ms is None else end_ms + self.every_ms
            left = self._not_done(
                {**left, **{id_: [after_ms, left[id_][1]] for id_ in ids}}, settled
            )
            state = {**revisions, "open": left}
            yield RevisedPeriod(end_ms, [settled[id_] for id_ in ids], state)

    def _settled(
        self, left: Open, seen: SeenCorrections, complete: Completeness
    ) -> dict[str, Correction]:
        """Return the settled corrections.

        While rows are removed, corrected records that are read once more revise nothing by
        themselves: they are a part of what is written in the place of the rows.
        """
        ours = [each for each in seen.items if each.id in left]
        settled = {each.id: each for each in ours if self._is_settled(each, complete)}
        if len(settled) == len(ours):
            return settled
        return {id_: each for id_, each in settled.items() if each.reason != ALSO}

    def _not_done(self, left: Open, settled: Mapping[str, Correction]) -> Open:
        return {
            id_: at
            for id_, at in left.items()
            if id_ not in settled or self._next(settled[id_], *at) is not False
        }

    def _next(
        self, correction: Correction, next_ms: int | None, until_ms: int
    ) -> int | bool | None:
        """Return the end of the next period; None where none is known, False after the last."""
        times = correction.event_times(self.queries)
        if times is None:
            return None if next_ms is None else False
        first, last = (each // self.every_ms * self.every_ms + self.every_ms for each in times)
        end = first if next_ms is None else max(first, next_ms)
        return end if end <= min(last, until_ms) else False

    def _is_settled(self, correction: Correction, complete: Completeness) -> bool:
        if correction.reason == ALSO:  # what it has published is there
            return True
        if correction.is_replaying:
            return False
        if correction.after is not None or complete.is_finished:
            return True
        return all(
            _has_regained(complete.watermarks, name, part.complete_ms)
            for run in correction.runs
            for name, part in run.queries.items()
            if not self.queries or name in self.queries
        )


def _has_regained(
    watermarks: Mapping[str, int | None], query: str, complete_ms: int | None
) -> bool:
    """Whether the output of a query is complete up to where it was before it was removed."""
    if complete_ms is None or query not in watermarks:
        return True
    reached = watermarks[query]
    return reached is not None and reached >= complete_ms


def period_id(end_ms: int | None, correction: Correction) -> str:
    """Return the id of the event of a period."""
    end = millis_to_iso(end_ms) if end_ms is not None else "all"
    return f"revised:{correction.run_id}:{correction.id}:{end}"
