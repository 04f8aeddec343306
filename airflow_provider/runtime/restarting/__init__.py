"""When and what is started again after a failure; pure decisions."""

from airflow_provider.runtime.restarting.parsing import default_restart, parse_restart
from airflow_provider.runtime.restarting.regions import (
    Edge,
    Failover,
    FailoverScope,
    failover_scope,
)
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
    "default_restart",
    "failover_scope",
    "parse_restart",
]
