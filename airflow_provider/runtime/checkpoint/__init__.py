"""Spark's own checkpoint: its offset and commit logs, and the batch that drains it."""

from airflow_provider.runtime.checkpoint.checksums import has_hadoop_checksum, has_spark_checksum
from airflow_provider.runtime.checkpoint.drain import plan_drain_batch
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs, OffsetEntry
from airflow_provider.runtime.checkpoint.report import describe_checkpoint
from airflow_provider.runtime.checkpoint.steps import (
    MAX_WATERMARK_MS,
    DrainStep,
    LogPosition,
    next_drain_step,
)

__all__ = [
    "MAX_WATERMARK_MS",
    "CheckpointLogs",
    "DrainStep",
    "LogPosition",
    "OffsetEntry",
    "describe_checkpoint",
    "has_hadoop_checksum",
    "has_spark_checksum",
    "next_drain_step",
    "plan_drain_batch",
]
