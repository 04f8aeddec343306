"""The hook of a chosen launcher, as operators, triggers and commands open it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider.hooks.launchers import SPARK_SUBMIT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_provider.hooks.driver_hook import DriverHook
    from airflow_provider.hooks.launchers import LauncherChoice
    from airflow_provider.hooks.submit_options import SubmitOptions


def hook_of(
    choice: LauncherChoice,
    options: SubmitOptions | None = None,
    *,
    warm: bool | None = None,
    with_lineage: Callable[[Mapping[str, str]], dict[str, str]] | None = None,
) -> DriverHook:
    """Return the hook of a launcher.

    Args:
        choice: the launcher and its connection.
        options: the task's options of ``spark-submit``; None for none.
        warm: whether to use a warm driver; None for what the connection says.
        with_lineage: completes the configuration of a driver that is started for this task alone.
    """
    # Each is imported where it is used: a process has one kind of task, as a rule.
    if choice.kind == SPARK_SUBMIT:
        from airflow_provider.hooks.spark_streaming import SparkStreamingHook

        return SparkStreamingHook(choice.conn_id, options, warm=warm, with_lineage=with_lineage)
    from airflow_provider.hooks.cluster import ClusterHook

    return ClusterHook(choice, options, with_lineage=with_lineage)
