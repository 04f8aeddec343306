"""Views of state: its operators and tables with their sizes, without Spark."""

from __future__ import annotations

from airflow_provider.plugins.responses import QueryStateView, StateView
from airflow_provider.runtime.errors import SparkStreamError
from airflow_provider.runtime.state.contents import describe_state
from airflow_provider.runtime.state.open_state import open_state


def read_state(job_dir: str) -> StateView:
    """Return the state of a job after the last committed batch of each query.

    Raises:
        OSError: the storage cannot be read.
    """
    try:
        described = describe_state(open_state(job_dir))["queries"]
    except SparkStreamError as error:
        return StateView(queries=[], problem=str(error))
    queries = [QueryStateView(name=name, **query) for name, query in described.items()]
    return StateView(queries=queries)
