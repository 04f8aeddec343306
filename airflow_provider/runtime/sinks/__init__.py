"""Sinks with a two-phase commit: staged, pre-committed, then published after Spark's commit."""

from airflow_provider.runtime.sinks.delta import DeltaSink, delta
from airflow_provider.runtime.sinks.discarding import DiscardSink
from airflow_provider.runtime.sinks.epochs import EpochCommitter
from airflow_provider.runtime.sinks.files import FilesSink, files
from airflow_provider.runtime.sinks.iceberg import IcebergSink, iceberg
from airflow_provider.runtime.sinks.native import NativeEpochs, NativeSink, native
from airflow_provider.runtime.sinks.protocol import (
    Committable,
    EpochId,
    Fence,
    IsGarbage,
    Remembering,
    Sink,
    Staged,
    left_out,
)
from airflow_provider.runtime.sinks.records import EpochRecord, EpochRecords
from airflow_provider.runtime.sinks.sql import SqlSink, sql
from airflow_provider.runtime.sinks.takeback import (
    TakeBack,
    check_native,
    has_written,
    runs_after,
    take_back_after,
)

__all__ = [
    "Committable",
    "DeltaSink",
    "DiscardSink",
    "EpochCommitter",
    "EpochId",
    "EpochRecord",
    "EpochRecords",
    "Fence",
    "FilesSink",
    "IcebergSink",
    "IsGarbage",
    "NativeEpochs",
    "NativeSink",
    "Remembering",
    "Sink",
    "SqlSink",
    "Staged",
    "TakeBack",
    "check_native",
    "delta",
    "files",
    "has_written",
    "iceberg",
    "left_out",
    "native",
    "runs_after",
    "sql",
    "take_back_after",
]
