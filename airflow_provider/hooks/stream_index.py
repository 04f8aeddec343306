"""Index entry of a stream: the XCom by which the page "Streams" finds a task's job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from airflow.sdk import Context

STREAM_KEY: Final = "spark_stream"
"""The XCom's key; a page of another version looks for the same."""


def push_stream(context: Context, job_dir: str, run_id: str) -> None:
    """Say that this task instance has a job, as soon as it runs, so that a running one is found.

    Idempotent: by the task instance; a later try replaces it.
    """
    context["ti"].xcom_push(key=STREAM_KEY, value={"job_dir": job_dir, "run_id": run_id})
