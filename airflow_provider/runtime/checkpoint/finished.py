"""Finished parts of a query: its sources and its stateful operators; pure.

A source ends when no row of it will ever be read again. A stateful operator ends in two steps:
first all sources above it, then the drain, which flushes its state.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Annotated, TypedDict

from airflow_provider.runtime.base.typed_json import among

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from airflow_provider.runtime.checkpoint.topology import Topology


class Mark(str, enum.Enum):
    """How close something is to its end."""

    RUNNING = "running"
    PARTLY_FINISHED = "partly_finished"  # of operators: it gets less input, or none, and has state
    FINISHED = "finished"


AnyMark = Annotated[str, among(*(mark.value for mark in Mark))]


class SourceMark(TypedDict):
    """How close a source is to its end; its name is None when it is not known."""

    name: str | None
    mark: AnyMark


@dataclasses.dataclass(frozen=True)
class Marks:
    """The marks of one query.

    Attributes:
        sources: name and mark of each source, in the order of the topology.
        operators: the marks of the stateful operators that are known, by id.
        others: the mark of every other operator: of one that all sources may lie above.
    """

    sources: tuple[tuple[str | None, Mark], ...]
    operators: Mapping[int, Mark]
    others: Mark

    def of_operator(self, number: int) -> Mark:
        """Return the mark of a stateful operator, by its id."""
        return self.operators.get(number, self.others)

    def described_sources(self) -> list[SourceMark]:
        """Return the sources as documents show them."""
        return [{"name": name, "mark": mark.value} for name, mark in self.sources]


def marks_of(topology: Topology, ended: Collection[str | None], *, drained: bool) -> Marks:
    """Mark what a query consists of.

    Args:
        topology: the query's sources, and which of them lie above each stateful operator; where
            that is not known, all are taken to.
        ended: the names of the sources that have ended.
        drained: whether the query was drained, if it kept state.
    """
    return Marks(
        sources=tuple(
            (name, Mark.FINISHED if name in ended else Mark.RUNNING) for name in topology.sources
        ),
        operators={
            operator.id: mark_operator(
                topology.sources if operator.sources is None else operator.sources,
                ended,
                drained=drained,
            )
            for operator in topology.operators or ()
        },
        others=mark_operator(topology.sources, ended, drained=drained),
    )


def mark_operator(
    above: Collection[str | None], ended: Collection[str | None], *, drained: bool
) -> Mark:
    """Mark a stateful operator.

    Args:
        above: the sources whose rows reach it.
        ended: the sources of the query that have ended.
        drained: whether its state was flushed for good.
    """
    left = [name for name in above if name not in ended]
    if not left and drained:
        return Mark.FINISHED
    return Mark.PARTLY_FINISHED if len(left) < len(above) else Mark.RUNNING
