"""Sources as the job names them."""

from airflow_provider.runtime.readplaces import FILE_FORMATS
from airflow_provider.runtime.sources.definition import (
    SOURCE_OPTION,
    UNKNOWN_FORMAT,
    SourceBinding,
    SourceDefinition,
    load_table,
)

__all__ = [
    "FILE_FORMATS",
    "SOURCE_OPTION",
    "UNKNOWN_FORMAT",
    "SourceBinding",
    "SourceDefinition",
    "load_table",
]
