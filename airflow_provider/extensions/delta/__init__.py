"""Delta tables: a sink by one transaction for each epoch, and a source without Delta's jar."""

from airflow_provider.extensions.delta.sink import delta
from airflow_provider.extensions.delta.table_source import delta_table

__all__ = ["delta", "delta_table"]
