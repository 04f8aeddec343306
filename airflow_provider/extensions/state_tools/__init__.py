"""State as a database: opened in its place, read as tables, queried, compared."""

from airflow_provider.extensions.state_tools.contents import describe_state
from airflow_provider.extensions.state_tools.diff import TableDiff, diff_states, state_growth
from airflow_provider.extensions.state_tools.open_state import open_state
from airflow_provider.extensions.state_tools.reader import StateReader, query_state

__all__ = [
    "StateReader",
    "TableDiff",
    "describe_state",
    "diff_states",
    "open_state",
    "query_state",
    "state_growth",
]
