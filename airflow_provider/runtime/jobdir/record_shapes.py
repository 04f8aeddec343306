"""Shapes of the values inside documents, checked when a document is read.

The fields stay plain values of JSON, also those that only a later version knows.
"""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

from airflow_provider.runtime.base.typed_json import (
    Batch,
    Name,
    NonNegative,
    Seconds,
    shaped,
)


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
