"""Views of state: its operators and tables with their sizes, without Spark."""

from __future__ import annotations

from typing import Any

from airflow_provider.extensions.state_tools.contents import describe_state
from airflow_provider.extensions.state_tools.open_state import open_state
from airflow_provider.plugins.responses import QueryStateView, StateView
from airflow_provider.runtime.checkpoint.operator_kinds import kind_named
from airflow_provider.runtime.errors import SparkStreamError


def read_state(job_dir: str) -> StateView:
    """Return the state of a job after the last committed batch of each query.

    Raises:
        OSError: the storage cannot be read.
    """
    try:
        described = describe_state(open_state(job_dir))["queries"]
    except SparkStreamError as error:
        return StateView(queries=[], problem=str(error))
    return StateView(queries=[_query(name, query) for name, query in described.items()])


def operator_title(name: str | None, number: int, kind: str) -> str:
    """Return the job's name for a stateful operator; what it does, and its number, without one."""
    if name and not name.isdecimal() and name != f"op{number}":
        return name
    return f"{kind_named(kind).does} ({number})"


def _query(name: str, described: dict[str, Any]) -> QueryStateView:
    operators = [
        {
            **each,
            "title": operator_title(each["name"], each["id"], each["kind"]),
            "does": kind_named(each["kind"]).does,
        }
        for each in described["operators"]
    ]
    return QueryStateView(name=name, **{**described, "operators": operators})
