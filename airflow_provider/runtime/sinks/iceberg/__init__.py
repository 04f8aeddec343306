"""The ``iceberg`` sink: an epoch is one snapshot of an Apache Iceberg table."""

from airflow_provider.runtime.sinks.iceberg.sink import IcebergSink, iceberg

__all__ = ["IcebergSink", "iceberg"]
