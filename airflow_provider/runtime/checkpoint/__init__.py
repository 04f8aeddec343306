"""Spark's own checkpoint: its logs, the batch that drains it, the files that a copy of it needs."""

from airflow_provider.runtime.checkpoint.checksums import has_hadoop_checksum, has_spark_checksum
from airflow_provider.runtime.checkpoint.commitlog import CommitLog
from airflow_provider.runtime.checkpoint.drain import plan_drain_batch
from airflow_provider.runtime.checkpoint.inventory import (
    Inventory,
    NeededFile,
    StateOperator,
    StateProvider,
    provider_name,
    take_inventory,
)
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs, CommitEntry, OffsetEntry
from airflow_provider.runtime.checkpoint.marks import Mark, Marks, marks_of
from airflow_provider.runtime.checkpoint.operators import (
    OperatorMetadata,
    StateVariable,
    describe_operator,
    has_one_partition,
    readdress,
)
from airflow_provider.runtime.checkpoint.report import describe_checkpoint
from airflow_provider.runtime.checkpoint.stateschemas import (
    DEFAULT_FAMILY,
    Field,
    StateSchema,
    read_schemas,
    type_text,
)
from airflow_provider.runtime.checkpoint.steps import (
    END_OF_TIME_MS,
    MAX_WATERMARK_MS,
    DrainStep,
    LogPosition,
    is_of_drain,
    next_drain_step,
    next_watermark,
)
from airflow_provider.runtime.checkpoint.topology import OperatorShape, Topology, mismatches

__all__ = [
    "DEFAULT_FAMILY",
    "END_OF_TIME_MS",
    "MAX_WATERMARK_MS",
    "CheckpointLogs",
    "CommitEntry",
    "CommitLog",
    "DrainStep",
    "Field",
    "Inventory",
    "LogPosition",
    "Mark",
    "Marks",
    "NeededFile",
    "OffsetEntry",
    "OperatorMetadata",
    "OperatorShape",
    "StateOperator",
    "StateProvider",
    "StateSchema",
    "StateVariable",
    "Topology",
    "describe_checkpoint",
    "describe_operator",
    "has_hadoop_checksum",
    "has_one_partition",
    "has_spark_checksum",
    "is_of_drain",
    "marks_of",
    "mismatches",
    "next_drain_step",
    "next_watermark",
    "plan_drain_batch",
    "provider_name",
    "read_schemas",
    "readdress",
    "take_inventory",
    "type_text",
]
