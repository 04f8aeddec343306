"""Kills of tasks whose trigger Airflow only cancels, as versions without ``on_kill`` do.

They cancel a trigger also when its triggerer ends, and another one is about to run it. The state of
the task tells the two apart: it waits on, or somebody has cleared or marked it.
"""

from __future__ import annotations

from typing import Any, Final

_DEFERRED: Final = "deferred"


async def is_killed(task_instance: Any) -> bool:
    """Whether the task of a trigger that was cancelled waits no more.

    A task that was cleared and waits again looks as one that has waited all the time: then its
    newer trigger has the driver.

    Args:
        task_instance: of the trigger; None in ``dag.test()``, where nobody is killed.
    """
    if task_instance is None:
        return False
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
    from asgiref.sync import sync_to_async

    # In a thread that goes back to this event loop, in which messages to the supervisor are sent.
    states = await sync_to_async(RuntimeTaskInstance.get_task_states)(
        dag_id=task_instance.dag_id,
        task_ids=[task_instance.task_id],
        run_ids=[task_instance.run_id],
        map_index=task_instance.map_index,
    )
    of_run = states.get(task_instance.run_id, {}).values()  # one task; its name may have an index
    return all(state != _DEFERRED for state in of_run)
