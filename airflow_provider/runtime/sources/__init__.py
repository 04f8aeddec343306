"""Sources as the job names them."""

from airflow_provider.runtime.sources.definition import (
    FILE_FORMATS,
    SOURCE_OPTION,
    UNKNOWN_FORMAT,
    SourceBinding,
    SourceDefinition,
)
from airflow_provider.runtime.sources.marker import END_MS, is_marker, marker_name, put_marker

__all__ = [
    "END_MS",
    "FILE_FORMATS",
    "SOURCE_OPTION",
    "UNKNOWN_FORMAT",
    "SourceBinding",
    "SourceDefinition",
    "is_marker",
    "marker_name",
    "put_marker",
]
