"""Sink: an Iceberg table, by one snapshot for each epoch."""

from airflow_provider.extensions.iceberg.sink import iceberg

__all__ = ["iceberg"]
