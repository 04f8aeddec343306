"""Shapes of the values inside documents, checked when a document is read.

The fields stay plain values of JSON, also those that only a later version knows.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

from airflow_provider.runtime.base.typed_json import (
    Batch,
    Check,
    Name,
    NonNegative,
    Seconds,
    shaped,
)
from airflow_provider.runtime.checkpoint.drain_step import AnyFinishState  # noqa: TC001 - what they are read by


class _Failure(TypedDict, total=False):
    failure_class: str  # one that is not known, of a later version, is RECOVERABLE
    reason: str
    condition: str
    query: str | None
    host: str
    executor: str | None
    batch: Batch | None
    root_cause: str
    rule: str
    restartable: bool
    location: str
    source: str | None
    input_file: str
    remedy: str
    details: str


FailureValues = Annotated[dict[str, Any], shaped(_Failure)]


class _Dataset(TypedDict):
    namespace: str
    name: str


class _QueryDatasets(TypedDict):
    sources: dict[str, list[_Dataset]]
    sinks: dict[str, list[_Dataset]]


DatasetsValues = Annotated[dict[str, Any], shaped(_QueryDatasets)]


class _RestartState(TypedDict, total=False):
    restarts: NonNegative
    attempts: NonNegative
    restart_at_s: Seconds | None
    failures_s: list[Seconds]


class _Restarts(TypedDict):
    count: NonNegative
    worked_s: Seconds
    state: _RestartState
    failure: FailureValues


RestartsValues = Annotated[dict[str, Any], shaped(_Restarts)]


class _Marked(TypedDict, total=False):
    finish_state: AnyFinishState


class _Part(_Marked):
    name: str | None


class _OperatorPart(_Part, total=False):
    late_rows: NonNegative | None


class _FinalOperator(_OperatorPart, total=False):
    ignored_timers: NonNegative | None


class _RuleCount(TypedDict):
    rows: NonNegative
    broken: NonNegative
    on: str


class _RecordLines(TypedDict):
    encoding: str
    line_sep: str
    header: str | None


class _RowCounts(TypedDict, total=False):
    rows_read: NonNegative | None
    sources: dict[str, NonNegative | None]
    checked: dict[str, NonNegative | None]
    rejected: dict[str, _RuleCount]
    lines: dict[str, _RecordLines]
    rules: dict[str, _RuleCount]
    taken: NonNegative
    quarantined: NonNegative | None
    late: dict[str, NonNegative | None]
    late_quarantined: NonNegative
    lost: NonNegative | None
    written: dict[str, NonNegative | None]
    row_by_row: bool
    uncounted: list[str]


class _SinkMore(TypedDict, total=False):
    quarantines: bool  # whether it is the one for quarantined rows


class _FinalSink(_SinkMore):
    name: str
    epoch: NonNegative | None
    rows: NonNegative | None


class _FinalQuery(TypedDict):
    query_id: Name | None
    batch_id: NonNegative | None
    sinks: list[_FinalSink]


class _FinalQueryMore(_FinalQuery, total=False):
    watermark: str | None
    finished: bool
    sources: list[_Part]
    operators: list[_FinalOperator]
    row_counts: _RowCounts


def _can_be_found(query: dict[str, Any]) -> bool:
    return query["query_id"] is not None or all(s["epoch"] is None for s in query["sinks"])


FinalQueryValues = Annotated[
    dict[str, Any],
    shaped(_FinalQueryMore),
    Check("a query_id, since epochs were published", _can_be_found),
]


class _PacedSource(TypedDict):
    limit: int | float
    unit: str


class _BatchSizing(TypedDict):
    target_s: Seconds
    last_batch_s: Seconds | None
    decision: str
    reason: str
    sources: dict[str, _PacedSource]


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


class _Tasks(TypedDict):
    stages: NonNegative
    stages_done: NonNegative
    tasks: NonNegative
    tasks_done: NonNegative


class _ProgressSink(_SinkMore):
    name: str
    rows: NonNegative | None  # that the run has published so far


class _ProgressQuery(TypedDict, total=False):
    phase: ShownPhase
    rows_read: int | None
    batch: int | None
    watermark: str | None
    state_rows: int | None
    backlog: dict[str, int] | None
    tasks: _Tasks | None  # of a batch job; a stream has a backlog
    batch_sizing: _BatchSizing | None
    idle: list[str]
    sources: list[_Part]
    operators: list[_OperatorPart]
    sinks: list[_ProgressSink]
    row_counts: _RowCounts


ProgressQueryValues = Annotated[dict[str, Any], shaped(_ProgressQuery)]


class _SinkPart(TypedDict):
    name: str
    rows: NonNegative | None
    run_rows: NonNegative | None
    data: dict[str, Any]


SinkPartValues = Annotated[dict[str, Any], shaped(_SinkPart)]


class _Tap(TypedDict):
    rows: NonNegative
    taken: NonNegative
    broken: dict[str, NonNegative]


TapValues = Annotated[dict[str, Any], shaped(_Tap)]

_RestoredFrom = TypedDict("_RestoredFrom", {"from": str})


class _RestoredQuery(_RestoredFrom):
    query_id: Name | None
    batch: Batch
    replaces: Name | None


class _RestoredQueryMore(_RestoredQuery, total=False):
    stays: Batch


RestoredQueryValues = Annotated[dict[str, Any], shaped(_RestoredQueryMore)]


class _SkippedBatch(TypedDict):
    batch: NonNegative
    after: list[Any]
    up_to: list[Any]


SkippedBatchValues = Annotated[dict[str, Any], shaped(_SkippedBatch)]


class _Operator(TypedDict):
    id: NonNegative
    kind: str


class _OperatorMore(_Operator, total=False):
    sources: list[str | None] | None
    name: str | None
    keys: list[list[str]] | None


OperatorValues = Annotated[dict[str, Any], shaped(_OperatorMore)]
