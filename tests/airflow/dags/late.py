"""A DAG of a bounded stream some of whose rows come late; each run says which job and where."""

from __future__ import annotations

from airflow.sdk import dag

from airflow_provider.operators.spark_streaming import SparkStreamingOperator


@dag(schedule=None, catchup=False)
def late() -> None:
    """Read one file per batch, and drop what is late, as is the default."""
    SparkStreamingOperator(
        task_id="windows",
        job="{{ dag_run.conf['job'] }}",
        job_dir="{{ dag_run.conf['location'] }}/job",
        params={
            "input": "{{ dag_run.conf['location'] }}/input",
            "output": "{{ dag_run.conf['location'] }}/output",
            "files_per_batch": "1",
        },
        mode="streaming",
        conf={"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "1"},
        poll_interval=0.5,
    )


late()
