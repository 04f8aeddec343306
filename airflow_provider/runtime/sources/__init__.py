"""Sources as the job names them."""

from airflow_provider.runtime.sources.definition import (
    SOURCE_OPTION,
    UNKNOWN_FORMAT,
    SourceDefinition,
)

__all__ = ["SOURCE_OPTION", "UNKNOWN_FORMAT", "SourceDefinition"]
