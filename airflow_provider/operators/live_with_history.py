"""``live_with_history``: a job that is live from the end of its history, as one group of a DAG."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import TaskGroup

from airflow_provider.operators.spark_bootstrap import SparkBootstrapOperator
from airflow_provider.operators.spark_streaming import SparkStreamingOperator
from airflow_provider.runtime.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

_PAIRED: Final = ("from_savepoint", "task_id")  # what makes the two tasks one job
_OF_LIVE: Final = ("inlets", "on_kill", "outlets", "run_id")  # both operators take them
_OF_HISTORY: Final = ("trigger_rule",)  # about what is before the group


def live_with_history(
    group_id: str,
    *,
    job: str,
    job_dir: str,
    history_params: Mapping[str, Any],
    params: Mapping[str, Any],
    history: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> TaskGroup:
    """Return a task group with the tasks ``history`` and ``live`` of one job.

    ``history`` is a :class:`.SparkBootstrapOperator`: it reads the history once, and compares it
    with the live job before that. ``live`` is a :class:`.SparkStreamingOperator` that begins from
    the savepoint of ``history``. In later runs of the DAG ``history`` returns the same savepoint
    without a driver, and ``live`` continues. They are two tasks because they are retried, killed
    and measured as two: a live job can stop with a savepoint, a half-read history cannot.

    Args:
        group_id: the group's name in the DAG.
        job: the job's function, ``FILE.py:FUNC`` or ``pkg.mod:FUNC``, for both.
        job_dir: the job's home, for both.
        history_params: parameters with which the job's function reads the history; templated.
        params: parameters of the live job; templated.
        history: further arguments of ``history`` alone, such as *output*, *keep_positions*,
            *on_kill* and *retries*. With *keep_positions* a source that both read continues where
            the history has ended.
        arguments: those of ``SparkStreamingOperator``. ``history`` gets those that it takes as
            well, so that *conf*, on which the state depends, is the same; but not *inlets*,
            *on_kill*, *outlets* and *run_id*. *trigger_rule* is for ``history`` alone.

    Raises:
        ConfigError: an argument is invalid; when the DAG is parsed.
    """
    for name in _PAIRED:
        if name in arguments:
            raise ConfigError(f"{name}: live_with_history gives it itself; leave it out")
    rule = {name: arguments.pop(name) for name in _OF_HISTORY if name in arguments}
    shared = {name: value for name, value in arguments.items() if name not in _only_live()}
    with TaskGroup(group_id) as group:
        first = SparkBootstrapOperator(
            task_id="history",
            job=job,
            job_dir=job_dir,
            history_params=history_params,
            live_params=params,
            **{**shared, **rule, **(history or {})},
        )
        first >> SparkStreamingOperator(
            task_id="live",
            job=job,
            job_dir=job_dir,
            params=params,
            from_savepoint=f"{{{{ ti.xcom_pull(task_ids={first.task_id!r})['url'] }}}}",
            **arguments,
        )
    return group


def _only_live() -> set[str]:
    own, taken = (
        set(inspect.signature(operator.__init__).parameters)
        for operator in (SparkStreamingOperator, SparkBootstrapOperator)
    )
    return own - taken | set(_OF_LIVE)
