"""Spark's queries, streams or batch jobs: start, watch, stop, and read what they report."""

from airflow_provider.runtime.queries.batch import BatchQuery
from airflow_provider.runtime.queries.definition import QueryDefinition
from airflow_provider.runtime.queries.running import RunningQuery
from airflow_provider.runtime.queries.state import StateOperator, read_state_operators

__all__ = ["BatchQuery", "QueryDefinition", "RunningQuery", "StateOperator", "read_state_operators"]
