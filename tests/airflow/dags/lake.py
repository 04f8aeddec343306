"""A DAG whose task waits for a job in S3, which only the keys of a connection open."""

from __future__ import annotations

from airflow.sdk import dag

from airflow_provider.sensors.spark_watermark import SparkWatermarkSensor


@dag(dag_id="lake", schedule=None, catchup=False)
def lake() -> None:
    """Wait until the job is complete; the bucket is the connection's."""
    SparkWatermarkSensor(
        task_id="complete",
        job_dir="s3://bucket/jobs/lake",
        up_to="2026-01-01T00:00:00Z",
        storage_conn_id="lake",
        poke_interval=1,
        timeout=120,
    )


lake()
