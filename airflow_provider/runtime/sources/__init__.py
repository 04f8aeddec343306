"""Sources as the job names them."""

from airflow_provider.runtime.sources.definition import (
    FILE_FORMATS,
    SOURCE_OPTION,
    UNKNOWN_FORMAT,
    SourceBinding,
    SourceDefinition,
    load_table,
)
from airflow_provider.runtime.sources.places import ReadPlace

__all__ = [
    "FILE_FORMATS",
    "SOURCE_OPTION",
    "UNKNOWN_FORMAT",
    "ReadPlace",
    "SourceBinding",
    "SourceDefinition",
    "load_table",
]
