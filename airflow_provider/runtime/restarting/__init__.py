"""When and what is started again after a failure."""

from airflow_provider.runtime.restarting.parsing import default_restart, parse_restart
from airflow_provider.runtime.restarting.regions import (
    FAILOVERS,
    Edge,
    Failover,
    FailoverScope,
    failover_scope,
)
from airflow_provider.runtime.restarting.restarter import Restarter, edges_of
from airflow_provider.runtime.restarting.strategies import (
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    NoRestart,
    RestartDecision,
    RestartState,
    RestartStrategy,
)

__all__ = [
    "FAILOVERS",
    "Edge",
    "ExponentialDelay",
    "Failover",
    "FailoverScope",
    "FailureRate",
    "FixedDelay",
    "NoRestart",
    "RestartDecision",
    "RestartState",
    "RestartStrategy",
    "Restarter",
    "default_restart",
    "edges_of",
    "failover_scope",
    "parse_restart",
]
