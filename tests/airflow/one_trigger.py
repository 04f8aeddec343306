"""A real triggerer with one trigger, which a deferred task of its own database waits for.

``one_trigger.py JOB_DIR RUN_ID DRIVER_ID EMIT_S``: it runs until it is ended.
"""

from __future__ import annotations

import sys

from handmade_page import put_tasks

from airflow_provider.hooks import stream_metrics

DAG, TASK = "flights", "group.daily"


def defer_task(job_dir: str, run_id: str, driver_id: str) -> None:
    """Put the rows of a deferred task and its trigger into new tables."""
    from airflow import settings
    from airflow.models import import_all_models
    from airflow.models.base import Base
    from airflow.models.dag_version import DagVersion
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.trigger import Trigger
    from airflow.utils.session import create_session
    from sqlalchemy import update

    from airflow_provider.hooks.launchers import LauncherChoice
    from airflow_provider.triggers.spark_streaming import SparkStreamingTrigger

    import_all_models()
    Base.metadata.create_all(settings.engine)
    waits = SparkStreamingTrigger(
        job_dir,
        run_id,
        driver_id,
        1,
        poll_interval=0.2,
        launcher=LauncherChoice.of(None, "spark_default").to_dict(),
    )
    with create_session() as session:
        put_tasks(session, [(DAG, TASK, "deferred", job_dir, False)])
        version = DagVersion(dag_id=DAG, bundle_name="page", version_number=1)
        trigger = Trigger.from_object(waits)
        session.add_all([version, trigger])
        session.flush()
        waiting = {"trigger_id": trigger.id, "dag_version_id": version.id}
        more = {"queue": "default", "priority_weight": 1}
        session.execute(update(TaskInstance).values(**waiting, **more))


def main() -> None:
    """Defer the task, and be the triggerer."""
    from airflow.cli.commands.triggerer_command import triggerer_run

    *job, emit_s = sys.argv[1:]
    stream_metrics.EMIT_S = float(emit_s)  # type: ignore[misc]  # a test does not wait ten seconds
    defer_task(*job)
    triggerer_run(True, 10, 1.0)  # noqa: FBT003 - without its server of logs


if __name__ == "__main__":
    main()
