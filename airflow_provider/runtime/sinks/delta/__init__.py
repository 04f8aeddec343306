"""The ``delta`` sink: an epoch is one version of a Delta Lake table."""

from airflow_provider.runtime.sinks.delta.sink import DeltaSink, delta

__all__ = ["DeltaSink", "delta"]
