"""Sources as the job names them."""

from airflow_provider.runtime.sources.definition import (
    FILE_FORMATS,
    SOURCE_OPTION,
    UNKNOWN_FORMAT,
    SourceBinding,
    SourceDefinition,
)

__all__ = [
    "FILE_FORMATS",
    "SOURCE_OPTION",
    "UNKNOWN_FORMAT",
    "SourceBinding",
    "SourceDefinition",
]
