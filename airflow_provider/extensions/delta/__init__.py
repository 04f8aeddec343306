"""Sink: a Delta table, by one transaction for each epoch."""

from airflow_provider.extensions.delta.sink import delta

__all__ = ["delta"]
