"""Iceberg tables: a sink, by one snapshot for each epoch, and a source of every row once."""

from airflow_provider.extensions.iceberg.sink import iceberg
from airflow_provider.extensions.iceberg.source import iceberg_table

__all__ = ["iceberg", "iceberg_table"]
