"""Keyword arguments of operators that own a driver, for type checkers.

``scripts/docs_operators.py`` writes this module from the signatures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from airflow_provider.runtime.jobdir.run_arguments import RunArguments

if TYPE_CHECKING:
    from collections.abc import Mapping


class TaskArguments(TypedDict, total=False):
    """Arguments of Airflow's ``BaseOperator``; ``params`` is an argument of our own."""

    task_id: Any
    owner: Any
    email: Any
    email_on_retry: Any
    email_on_failure: Any
    retries: Any
    retry_delay: Any
    retry_exponential_backoff: Any
    max_retry_delay: Any
    retry_policy: Any
    start_date: Any
    end_date: Any
    depends_on_past: Any
    ignore_first_depends_on_past: Any
    wait_for_past_depends_before_skipping: Any
    wait_for_downstream: Any
    dag: Any
    default_args: Any
    priority_weight: Any
    weight_rule: Any
    queue: Any
    pool: Any
    pool_slots: Any
    sla: Any
    execution_timeout: Any
    on_execute_callback: Any
    on_failure_callback: Any
    on_success_callback: Any
    on_retry_callback: Any
    on_skipped_callback: Any
    pre_execute: Any
    post_execute: Any
    trigger_rule: Any
    resources: Any
    run_as_user: Any
    map_index_template: Any
    max_active_tis_per_dag: Any
    max_active_tis_per_dagrun: Any
    executor: Any
    executor_config: Any
    do_xcom_push: Any
    multiple_outputs: Any
    inlets: Any
    outlets: Any
    task_group: Any
    doc: Any
    doc_md: Any
    doc_json: Any
    doc_yaml: Any
    doc_rst: Any
    task_display_name: Any
    logger_name: Any
    allow_nested_operators: Any
    render_template_as_native_obj: Any


class DriverArguments(RunArguments, TaskArguments, total=False):
    """Arguments of an operator that owns a driver, with those of Airflow and of a run."""

    run_id: str | None
    secret_params: Mapping[str, str] | None
    on_existing: str
    on_kill: str | None
    deferrable: bool
    driver_outlives_task: bool | None
    poll_interval: float
    conn_id: str
    launcher: str | None
    launcher_options: Mapping[str, str] | None
    warm: bool | None
    conf: Mapping[str, str] | None
    env_vars: Mapping[str, Any] | None
    py_files: str | None
    files: str | None
    archives: str | None
    jars: str | None
    driver_class_path: str | None
    packages: str | None
    exclude_packages: str | None
    repositories: str | None
    driver_memory: str | None
    executor_memory: str | None
    executor_cores: int | None
    num_executors: int | None
    total_executor_cores: int | None
    properties_file: str | None
    principal: str | None
    keytab: str | None
    use_krb5ccache: bool
    proxy_user: str | None
    yarn_queue: str | None
    deploy_mode: str | None
    spark_binary: str | None
    verbose: bool
    openlineage_inject_parent_job_info: bool | None
    openlineage_inject_transport_info: bool | None
    storage_conn_id: str | None
