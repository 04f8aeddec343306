"""Records of a job directory: the job at an address, and its newest run."""

from __future__ import annotations

from airflow_provider.runtime.jobdir.layout import (
    directory_at,
)
from airflow_provider.runtime.jobdir.runs import (
    newest_run,
)

__all__ = [
    "directory_at",
    "newest_run",
]
