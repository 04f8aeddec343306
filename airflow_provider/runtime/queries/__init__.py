"""Spark's queries, streams or batch jobs: start, watch, stop, and read what they report."""

from airflow_provider.runtime.queries.batch import BatchQuery
from airflow_provider.runtime.queries.definition import QueryDefinition, ending_alone, upstream_of
from airflow_provider.runtime.queries.eventtimes import event_times_of
from airflow_provider.runtime.queries.flushing import next_step_of
from airflow_provider.runtime.queries.pacemaker import Pacemaker, pacemaker_for
from airflow_provider.runtime.queries.repartition import spark_repartition
from airflow_provider.runtime.queries.running import RunningQuery
from airflow_provider.runtime.queries.state import (
    StateOperator,
    read_state_operators,
    reported_state,
)

__all__ = [
    "BatchQuery",
    "Pacemaker",
    "QueryDefinition",
    "RunningQuery",
    "StateOperator",
    "ending_alone",
    "event_times_of",
    "next_step_of",
    "pacemaker_for",
    "read_state_operators",
    "reported_state",
    "spark_repartition",
    "upstream_of",
]
