"""Iceberg tables: a sink, by one snapshot for each epoch, and a source of every row once."""

from airflow_provider.extensions.iceberg.source import iceberg_table
from airflow_provider.extensions.iceberg.tables_out import iceberg

__all__ = ["iceberg", "iceberg_table"]
