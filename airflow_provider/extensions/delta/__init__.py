"""Delta tables: a sink by one transaction for each epoch, and a source without Delta's jar."""

from airflow_provider.extensions.delta.table_source import delta_table
from airflow_provider.extensions.delta.tables_out import delta

__all__ = ["delta", "delta_table"]
