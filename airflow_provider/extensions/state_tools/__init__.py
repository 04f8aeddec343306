"""State as a database: opened where it lies, read as tables, queried, compared.

:mod:`.state_tools.rewrite` changes a savepoint; it needs the driver, and is imported by itself.
"""

from airflow_provider.extensions.state_tools.contents import (
    OperatorState,
    QueryState,
    SourceState,
    State,
    TableAddress,
    describe_state,
)
from airflow_provider.extensions.state_tools.diff import TableDiff, diff_states
from airflow_provider.extensions.state_tools.growth import Measure, state_growth
from airflow_provider.extensions.state_tools.layouts import Column, Table, TableKind
from airflow_provider.extensions.state_tools.open_state import open_state
from airflow_provider.extensions.state_tools.reader import StateReader, spark_errors
from airflow_provider.extensions.state_tools.sql import query_state, sql_errors

__all__ = [
    "Column",
    "Measure",
    "OperatorState",
    "QueryState",
    "SourceState",
    "State",
    "StateReader",
    "Table",
    "TableAddress",
    "TableDiff",
    "TableKind",
    "describe_state",
    "diff_states",
    "open_state",
    "query_state",
    "spark_errors",
    "sql_errors",
    "state_growth",
]
