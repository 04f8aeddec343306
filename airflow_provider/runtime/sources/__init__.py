"""Sources as the job names them."""

from airflow_provider.runtime.sources.definition import SOURCE_OPTION, SourceDefinition

__all__ = ["SOURCE_OPTION", "SourceDefinition"]
