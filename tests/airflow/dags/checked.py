"""A DAG of a bounded stream with rules for its rows; each run says which job and where."""

from __future__ import annotations

from airflow.sdk import dag

from airflow_provider.operators.spark_streaming import SparkStreamingOperator


@dag(schedule=None, catchup=False)
def checked() -> None:
    """Read one file per batch."""
    SparkStreamingOperator(
        task_id="rows",
        job="{{ dag_run.conf['job'] }}",
        job_dir="{{ dag_run.conf['location'] }}/job",
        params={
            name: f"{{{{ dag_run.conf['location'] }}}}/{name}"
            for name in ("input", "output", "kept")
        }
        | {"rules": "{{ dag_run.conf['location'] }}/rules.json", "files_per_batch": "1"},
        mode="streaming",
        conf={"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "1"},
        poll_interval=0.5,
    )


checked()
