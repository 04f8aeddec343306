"""Sinks with a two-phase commit: staged, pre-committed, then published after Spark's commit."""

from airflow_provider.runtime.sinks.epochs import EpochCommitter, EpochRecord
from airflow_provider.runtime.sinks.files import FilesSink, files
from airflow_provider.runtime.sinks.protocol import EpochId, Fence, Sink, Staged

__all__ = [
    "EpochCommitter",
    "EpochId",
    "EpochRecord",
    "Fence",
    "FilesSink",
    "Sink",
    "Staged",
    "files",
]
