"""One streaming query as the job wrote it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from airflow_provider.runtime.queries.plan import source_names
from airflow_provider.runtime.sources import UNKNOWN_FORMAT, SourceDefinition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from airflow_provider.runtime.sinks import NativeSink, Sink


@dataclasses.dataclass(frozen=True)
class QueryDefinition:
    """What ``ctx.write`` was called with.

    Attributes:
        sinks: the two-phase sinks that share its epochs; none when it has a native one.
        native: Spark's own sink, or None.
        sources: the query's sources in the order in which Spark logs their offsets.
        operators: names of its stateful operators in plan order; empty for ``0``, ``1``, …
        operations: Spark's names of what its plan does.
    """

    name: str
    df: DataFrame
    sinks: tuple[Sink, ...]
    output_mode: str
    operators: tuple[str, ...]
    sources: tuple[SourceDefinition, ...]
    native: NativeSink | None = None
    operations: tuple[str, ...] = ()

    @property
    def sink_names(self) -> tuple[str, ...]:
        """Return the names of all its sinks."""
        return tuple(sink.name for sink in self.sinks) or (
            (self.native.name,) if self.native else ()
        )

    @property
    def bounded(self) -> bool:
        """Tell whether all its sources end."""
        return all(source.bounded for source in self.sources)


def sources_of(df: DataFrame, known: Sequence[SourceDefinition]) -> tuple[SourceDefinition, ...]:
    """Return the sources that *df* reads, in plan order.

    A stream that the job opened by itself, not by ``ctx.read``, is taken for an unbounded source.
    """
    by_name = {source.name: source for source in known}
    found = []
    for position, name in enumerate(source_names(df)):
        source = by_name.get(name) if name is not None else None
        found.append(source or _foreign(position))
    return tuple(found)


def _foreign(position: int) -> SourceDefinition:
    return SourceDefinition(
        name=f"source-{position}",
        format=UNKNOWN_FORMAT,
        path=None,
        schema=None,
        options={},
        bounded=False,
        watermark=None,
    )
