"""State as a database: opened where it lies, read as tables, queried, compared.

Two modules that write state need the driver and are imported by themselves:
:mod:`.state.bootstrap` makes a first state from history, :mod:`.state.rewrite` changes a savepoint.
"""

from airflow_provider.runtime.state.contents import (
    OperatorState,
    QueryState,
    SourceState,
    State,
    TableAddress,
    describe_state,
)
from airflow_provider.runtime.state.diff import TableDiff, diff_states
from airflow_provider.runtime.state.growth import Measure, state_growth
from airflow_provider.runtime.state.layouts import Column, Table, TableKind
from airflow_provider.runtime.state.open_state import open_state
from airflow_provider.runtime.state.reader import StateReader, spark_errors
from airflow_provider.runtime.state.sql import query_state, sql_errors

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
