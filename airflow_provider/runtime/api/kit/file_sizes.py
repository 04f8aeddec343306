"""The size of an epoch's data files: many small ones are gathered."""

from __future__ import annotations

from airflow_provider.runtime.sinks.file_sizes import FileSizes, gathering

__all__ = ["FileSizes", "gathering"]
