"""DAGs whose job directory, parameters and job are the DAG run's: what goes wrong at night."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

from airflow.sdk import DAG

from airflow_provider.extensions.upgrades.operator import SparkUpgradeOperator
from airflow_provider.operators.spark_savepoint import SparkSavepointOperator
from airflow_provider.operators.spark_stop import SparkStopOperator
from airflow_provider.operators.spark_streaming import SparkStreamingOperator

JOBS = f"{Path(__file__).resolve().parent}/jobs/nights.py"
BOTH: dict[str, Any] = {
    "job": f"{JOBS}:copy",
    "job_dir": "{{ dag_run.conf['job_dir'] }}",
    "params": {
        "input": "{{ dag_run.conf['input'] }}",
        "sinks": "{{ dag_run.conf['sinks'] }}",
    },
    "poll_interval": 0.5,
    "retries": 2,
    "retry_delay": dt.timedelta(seconds=1),
}
STREAM: dict[str, Any] = {**BOTH, "until": "stopped", "trigger": "0 seconds"}
SECRET = {"salt": "{{ var.value.nights_pepper }}", "pin": "{{ var.value.nights_digits }}"}


def night(dag_id: str) -> DAG:
    """Make a DAG whose templates keep the types of what they render."""
    return DAG(dag_id, schedule=None, render_template_as_native_obj=True)


with night("night_stream"):
    SparkStreamingOperator(task_id="stream", on_kill="cancel", **STREAM)

with night("night_once"):
    SparkStreamingOperator(task_id="stream", on_kill="cancel", **{**STREAM, "retries": 0})

with night("night_bounded"):
    SparkStreamingOperator(task_id="bounded", until="available", at_end="suspend", **BOTH)

with night("night_strict"):
    SparkStreamingOperator(
        task_id="bounded", until="available", at_end="suspend", missing_input="fail", **BOTH
    )

with night("night_secret"):
    SparkStreamingOperator(
        task_id="salted",
        job=f"{JOBS}:salted",
        job_dir="{{ dag_run.conf['job_dir'] }}",
        params={
            "input": "{{ dag_run.conf['input'] }}",
            "output": "{{ dag_run.conf['output'] }}",
            "uses": "{{ dag_run.conf['uses'] }}",
        },
        secret_params=SECRET,
        until="available",
        at_end="suspend",
        poll_interval=0.5,
    )

with night("night_upgrade"):
    SparkUpgradeOperator(
        task_id="upgrade",
        new_job_dir="{{ dag_run.conf['new_job_dir'] }}",
        trial_period="20 seconds",
        **STREAM,
    )

with night("night_savepoint"):
    SparkSavepointOperator(
        task_id="save", job_dir="{{ dag_run.conf['job_dir'] }}", retain={"keep": 2}
    )

with night("night_stop"):
    SparkStopOperator(task_id="stop", job_dir="{{ dag_run.conf['job_dir'] }}")

with night("night_crowd"):
    SparkStreamingOperator.partial(
        task_id="one",
        job=f"{JOBS}:copy",
        until="available",
        at_end="suspend",
        poll_interval=0.5,
        on_kill="cancel",
        env_vars={"SPARK_STREAM_LOCAL_DRIVERS": "2"},
    ).expand_kwargs(
        [
            {
                "job_dir": f"{{{{ dag_run.conf['location'] }}}}/jobs/{n}",
                "params": {
                    "input": "{{ dag_run.conf['location'] }}/input",
                    "sinks": {"files": f"{{{{ dag_run.conf['location'] }}}}/output/{n}"},
                },
            }
            for n in range(10)
        ]
    )
