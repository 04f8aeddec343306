"""Reports of a query: in the progress of its run, in the final checkpoint, and of a stream.

:mod:`.driver.query_reports` makes those of a query that a driver runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping  # noqa: TC003 - what they are read by
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from airflow_provider.runtime.base.typed_json import (
    OMITTED,
    Name,
    NonNegative,
    Seconds,
)
from airflow_provider.runtime.checkpoint.drain_step import AnyFinishState  # noqa: TC001 - what they are read by
from airflow_provider.runtime.jobdir.row_counts import (
    RowCounts,
    add_quarantined,
    counts_of,
    sum_of,
)

if TYPE_CHECKING:
    from airflow_provider.runtime.jobdir.row_counts import QuarantineTotals

ShownPhase = Literal[
    "starting",
    "reading",
    "draining",
    "committing",
    "finished",
    "suspended",
    "cancelled",
    "failed",
]
"""The phases of runs and queries that people see; the driver's own are finer."""


@dataclasses.dataclass(frozen=True)
class TaskCounts:
    """Spark's stages and tasks of a batch job, those that were submitted."""

    stages: NonNegative
    stages_done: NonNegative
    tasks: NonNegative
    tasks_done: NonNegative


@dataclasses.dataclass(frozen=True)
class SourceLimit:
    """The most that a source may read in the next batch; *ceiling* is the job's own limit."""

    limit: int | float
    unit: str
    ceiling: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchSizing:
    """The size of the next batch, and why it is so.

    Attributes:
        last_batch_s: the time of the last batch; None before the first one.
        fixed_s: the part of a batch's time that does not depend on its size.
        sources: the limits, by source.
        left: the sources without a limit, and why they have none.
    """

    target_s: Seconds
    last_batch_s: Seconds | None
    fixed_s: Seconds = 0.0
    decision: str
    reason: str
    sources: Mapping[str, SourceLimit]
    left: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceProgress:
    """How close a source is to its end."""

    name: str | None
    finish_state: AnyFinishState


@dataclasses.dataclass(frozen=True, kw_only=True)
class OperatorProgress:
    """How close a stateful operator is to its end, and the rows that it has dropped as late."""

    id: NonNegative
    name: str | None
    kind: str
    finish_state: AnyFinishState
    late_rows: NonNegative | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SinkProgress:
    """The rows that the run has published to a sink so far; None if it does not count them."""

    name: str
    rows: NonNegative | None
    quarantine: bool = dataclasses.field(default=False, metadata=OMITTED)


@dataclasses.dataclass(frozen=True, kw_only=True)
class QueryProgress:
    """A query in the progress of its run.

    Attributes:
        batch: the last reported batch; None before the first one, and of a batch job.
        watermark: of that batch.
        state_rows: rows in the state after that batch.
        backlog: unread input by measure; None if no source reports any.
        tasks: of a batch job; a stream has a backlog.
        batch_sizing: None if batches are not fitted to a time.
        idle: the sources that hold no watermark back.
    """

    phase: ShownPhase
    rows_read: int | None = None
    batch: int | None = None
    watermark: str | None = None
    state_rows: int | None = None
    backlog: Mapping[str, int] | None = None
    tasks: TaskCounts | None = None
    batch_sizing: BatchSizing | None = None
    idle: tuple[str, ...] = ()
    sources: tuple[SourceProgress, ...] = ()
    operators: tuple[OperatorProgress, ...] = ()
    sinks: tuple[SinkProgress, ...] = ()
    row_counts: RowCounts = dataclasses.field(default_factory=RowCounts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinalSource:
    """A source at the end of a run; the next run reads from *end_offset* on."""

    name: str | None
    bounded: bool = False
    finished: bool = False
    finish_state: AnyFinishState
    end_offset: Any = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinalOperator:
    """A stateful operator at the end of a run.

    Attributes:
        state_rows: rows in its state; None if unreadable.
        late_rows: rows that it has dropped as late; None if unknown.
        ignored_timers: those that callbacks registered in the drain; None if unknown.
    """

    id: NonNegative
    name: str | None
    kind: str
    state_rows: NonNegative | None = None
    finished: bool = False
    finish_state: AnyFinishState
    late_rows: NonNegative | None = None
    ignored_timers: NonNegative | None = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedSink:
    """A sink with the last epoch that was published to it; None if none is recorded.

    Attributes:
        version: of the table when the run had published, or the id of its snapshot; None for a sink
            without versions.
    """

    name: str
    epoch: NonNegative | None
    rows: NonNegative | None
    quarantine: bool = dataclasses.field(default=False, metadata=OMITTED)
    version: NonNegative | None = dataclasses.field(default=None, metadata=OMITTED)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinalQuery:
    """A query in the final checkpoint of its run.

    Attributes:
        query_id: None if it has never begun.
        batch_id: the last committed batch; None if there is none.
        watermark: of that batch.
        finished: whether it was drained.
    """

    query_id: Name | None
    batch_id: NonNegative | None
    watermark: str | None = None
    finished: bool = False
    sources: tuple[FinalSource, ...] = ()
    operators: tuple[FinalOperator, ...] = ()
    sinks: tuple[PublishedSink, ...]
    row_counts: RowCounts = dataclasses.field(default_factory=RowCounts)

    @property
    def last_batch(self) -> int:
        """The last committed batch, -1 for none."""
        return -1 if self.batch_id is None else self.batch_id

    @property
    def state_rows(self) -> int | None:
        """The rows in its state, as far as they are known."""
        known = [rows for each in self.operators if (rows := each.state_rows) is not None]
        return sum(known) if known else None

    def can_be_found(self) -> bool:
        """Whether its epochs, if any were published, can be found by its id."""
        return self.query_id is not None or all(sink.epoch is None for sink in self.sinks)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedSource:
    """A source with the offset up to which the last published batch has read."""

    name: str | None
    end_offset: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedQuery:
    """A query of a running stream, after its last published batch.

    Attributes:
        batch_id: that batch; None before the first one.
        backlog: unread input by measure; None if no source reports any.
    """

    query_id: str | None
    batch_id: NonNegative | None
    watermark: str | None
    sources: tuple[PublishedSource, ...]
    operators: tuple[OperatorProgress, ...]
    sinks: tuple[PublishedSink, ...]
    backlog: Mapping[str, int] | None
    row_counts: RowCounts


QueryReport: TypeAlias = QueryProgress | FinalQuery | PublishedQuery
"""What a document of a run says of one query."""
SinkReport: TypeAlias = SinkProgress | PublishedSink


def output_sinks(queries: Mapping[str, QueryReport]) -> list[SinkReport]:
    """Return the sinks of queries, except those for quarantined rows."""
    return [sink for query in queries.values() for sink in query.sinks if not sink.quarantine]


def quarantine_sink(query: QueryReport) -> str | None:
    """Return the name of the query's sink for quarantined rows; None without one."""
    return next((sink.name for sink in query.sinks if sink.quarantine), None)


def quarantine_totals(queries: Mapping[str, QueryReport]) -> QuarantineTotals:
    """Return the totals of the quarantined rows of a run's queries."""
    return add_quarantined(query.row_counts for query in queries.values())


def run_counts(queries: Mapping[str, QueryReport]) -> dict[str, int | None]:
    """Return the metrics of the row counts of a run, added over its queries."""
    counts = [counts_of(query.row_counts) for query in queries.values()]
    names = dict.fromkeys(name for each in counts for name in each)
    return {name: sum_of(each.get(name, 0) for each in counts) for name in names}
