"""Sources as the job names them."""

from airflow_provider.runtime.sources.definition import (
    FILE_FORMATS,
    SOURCE_OPTION,
    UNKNOWN_FORMAT,
    SourceBinding,
    SourceDefinition,
)
from airflow_provider.runtime.sources.places import ReadPlace

__all__ = [
    "FILE_FORMATS",
    "SOURCE_OPTION",
    "UNKNOWN_FORMAT",
    "ReadPlace",
    "SourceBinding",
    "SourceDefinition",
]
