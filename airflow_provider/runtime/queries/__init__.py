"""Spark's streaming queries: start, watch, stop, and read what they report."""

from airflow_provider.runtime.queries.definition import QueryDefinition
from airflow_provider.runtime.queries.pacemaker import Pacemaker
from airflow_provider.runtime.queries.running import RunningQuery
from airflow_provider.runtime.queries.state import StateOperator, read_state_operators

__all__ = ["Pacemaker", "QueryDefinition", "RunningQuery", "StateOperator", "read_state_operators"]
