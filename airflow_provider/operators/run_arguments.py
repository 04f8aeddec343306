"""Arguments about a run that several operators have, checked, as the fields of its request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider.operators.base import check_choice
from airflow_provider.runtime.base.clock import parse_duration
from airflow_provider.runtime.failures.classify import FailureOverrides
from airflow_provider.runtime.failures.restart_strategy import FAILOVERS, Failover, parse_restart
from airflow_provider.runtime.jobdir.late_policy import check_late
from airflow_provider.runtime.jobdir.run_options import (
    MISSING_INPUT,
    RETRY,
    check_run_options,
    parse_target_batch_time,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


def run_options(
    *,
    mode: str,
    until: str | None,
    at_end: str | None,
    trigger: str | float | None,
    target_batch_time: str | float | None,
    restart: str | Mapping[str, Any] | None,
    failover: str,
    fails_as: Mapping[str, str] | None,
    late: str,
    late_limit: str | int | None,
    missing_input: str = RETRY,
    **flags: bool,
) -> dict[str, Any]:
    """Return the fields of a run's request; its arguments are :class:`.SparkStreamingOperator`'s.

    They are in seconds and text, which a driver reads without any package of its own. The *flags*,
    such as *allow_mixed_results*, are given as they are.

    Raises:
        ConfigError: the message names the argument.
    """
    late_limit = None if late_limit is None else str(late_limit)
    check_run_options(mode, until, at_end)
    check_late(late, late_limit, until=until, at_end=at_end)
    check_choice("failover", failover, FAILOVERS)
    check_choice("missing_input", missing_input, MISSING_INPUT)
    return {
        "mode": mode,
        "until": until,
        "at_end": at_end,
        "trigger_s": None if trigger is None else parse_duration(trigger, name="trigger"),
        "target_batch_s": parse_target_batch_time(target_batch_time),
        "restart": parse_restart(restart).to_text() if restart else None,
        "failover": Failover(failover),
        "fails_as": FailureOverrides.parse(fails_as or {}).to_dict(),
        "late": late,
        "late_limit": late_limit,
        "missing_input": missing_input,
        **flags,
    }
