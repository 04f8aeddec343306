"""Upgrade a running stream: savepoint, stop, start the new version from it, or roll back.

``flights_versioned`` supervises the version that is in force; ``flights_upgrade`` puts another one
in its place. Each version that is tried has a job directory and an output folder of its own, so
nothing that the new version writes has to be reverted: if it makes no progress its folder is
ignored, and the old version continues in its own job directory, from where the savepoint was taken.
The rows of the stream are those of all folders in ``outputs``, each of which continues where the
one before it ends; the asset's event lists them for readers.

==================================  ================================================================
what happens                        what follows
==================================  ================================================================
the new version commits batches     it is in force from then on, and ``flights_versioned`` adopts it
it fails, or its batch does not     its driver is ended, the old version is started again, and the
end, or nothing arrives for it      DAG run fails: the upgrade has
the old version cannot be stopped   the same
a task is tried again               it finds what it has done, and goes on
==================================  ================================================================
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from airflow.sdk import Asset, Param, TriggerRule, Variable, dag, task

from airflow_provider.hooks.spark_streaming import SparkStreamingHook
from airflow_provider.operators.spark_stop import SparkStopOperator
from airflow_provider.operators.spark_streaming import SparkStreamingOperator

HERE = Path(__file__).resolve().parent
DATA = os.environ.get("FLIGHTS_DATA", str(HERE.parent / ".work" / "flights"))
PLACE = f"{DATA}/upgrade"
# How long a version is watched, and how long a new one has to show that it makes progress.
WATCHED = os.environ.get("FLIGHTS_WATCHED", "59 minutes")
PROBATION = os.environ.get("FLIGHTS_PROBATION", "5 minutes")
STATE = "flights_versions"
RUN_ID = "stream"
ROWS = Asset("flights_versioned_rows")


def versions() -> dict[str, Any]:
    """Return which version is in force, and which one is being tried."""
    first = {"number": 1, "function": "daily_delays_so_far", "savepoint": ""}
    begin = {"current": first, "tried": 1, "upgrade": None, "outputs": [f"{PLACE}/1/output"]}
    return dict(Variable.get(STATE, default=begin, deserialize_json=True))


def keep(state: dict[str, Any], **changes: Any) -> None:
    """Store the new state."""
    Variable.set(STATE, {**state, **changes}, serialize_json=True)


def stream(task_id: str, version: str, **more: Any) -> SparkStreamingOperator:
    """Watch a version, or start it: the one that the task *version* has returned.

    Each start of it has the same arguments, the savepoint included, or would be refused.
    """
    told = f"ti.xcom_pull(task_ids='{version}')"
    place = f"{PLACE}/{{{{ {told}['number'] }}}}"
    return SparkStreamingOperator(
        task_id=task_id,
        job=f"{HERE}/jobs/daily_delays.py:{{{{ {told}['function'] }}}}",
        job_dir=f"{place}/job",
        params={"input": f"{DATA}/input", "output": f"{place}/output"},
        from_savepoint=f"{{{{ {told}['savepoint'] }}}}",
        run_id=RUN_ID,
        until="stopped",
        trigger="2 seconds",
        conf={"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "4"},
        **more,
    )


@task.short_circuit
def is_at_rest() -> bool:
    """Tell whether nobody is upgrading the stream."""
    return versions()["upgrade"] is None


@task
def in_force() -> dict[str, Any]:
    """Return the version in force."""
    return dict(versions()["current"])


@dag(schedule="0 * * * *", catchup=False, max_active_runs=1, tags=["spark", "streaming"])
def flights_versioned() -> None:
    """Watch the version that is in force; while it is replaced, do nothing."""
    watched = stream(
        "stream", "in_force", max_runtime=WATCHED, progress_timeout="10 minutes", retries=5
    )
    is_at_rest() >> in_force() >> watched


@task
def begin(params: Any = None, run_id: Any = None) -> dict[str, Any]:
    """Take the stream out of the other DAG's hands; return the version in force, and the next."""
    state = versions()
    upgrade = state["upgrade"]
    if upgrade is None:
        upgrade = {"by": run_id, "number": state["tried"] + 1, "function": params["function"]}
        keep(state, tried=upgrade["number"], upgrade=upgrade)
    if upgrade["by"] != run_id:
        msg = f"run {upgrade['by']!r} is upgrading the stream, and has not ended"
        raise RuntimeError(msg)
    return {**state["current"], "next": upgrade["number"]}


@task
def new_version(savepoint: str) -> dict[str, Any]:
    """Return the version that is tried, which begins from the savepoint."""
    upgrade = versions()["upgrade"]
    number, function = upgrade["number"], upgrade["function"]
    return {"number": number, "function": function, "savepoint": savepoint}


@task
def check_progress(handed_over: Any, savepoint: str) -> None:
    """Refuse a version that is alive, and has committed nothing since the savepoint."""
    from airflow_provider.runtime.savepoints.catalog import open_savepoint

    for name, query in open_savepoint(savepoint).record.queries.items():
        batch = handed_over["queries"][name]["batch_id"]
        if batch is None or batch <= query.batch:
            msg = f"query {name!r} has committed no batch since the savepoint's {query.batch}"
            raise RuntimeError(msg)


@task(outlets=[ROWS])
def accept(version: Any, outlet_events: Any = None) -> list[str]:
    """Put the new version in force, and tell readers where the rows are."""
    state = versions()
    output = f"{PLACE}/{version['number']}/output"
    outputs = [*(each for each in state["outputs"] if each != output), output]
    keep(state, current=version, upgrade=None, outputs=outputs)
    outlet_events[ROWS].extra = {"outputs": outputs}
    return outputs


@task(trigger_rule=TriggerRule.ONE_FAILED)
def give_up() -> None:
    """Ask the new version's driver to end, if there is one; nobody reads what it writes."""
    job_dir = f"{PLACE}/{versions()['upgrade']['number']}/job"
    hook = SparkStreamingHook()
    hook.end(job_dir, RUN_ID, hook.claim(job_dir, RUN_ID))


@task
def roll_back() -> None:
    """Give the stream, with the old version, back to the other DAG."""
    keep(versions(), upgrade=None)


@dag(
    schedule=None,
    catchup=False,
    max_active_runs=1,
    params={"function": Param("daily_delays_rated", type="string")},
    tags=["spark", "streaming"],
    doc_md=__doc__,
)
def flights_upgrade() -> None:
    """Try another version of the stream."""
    stop_old = SparkStopOperator(
        task_id="stop_old",
        job_dir=f"{PLACE}/{{{{ ti.xcom_pull(task_ids='begin')['number'] }}}}/job",
        savepoint="before-{{ ti.xcom_pull(task_ids='begin')['next'] }}",
    )
    savepoint = "{{ ti.xcom_pull(task_ids='stop_old')['savepoint'] }}"
    version = new_version(savepoint)
    new = stream("new", "new_version", max_runtime=PROBATION, progress_timeout="2 minutes")
    progress = check_progress(new.output, savepoint)
    begin() >> stop_old >> version >> new >> progress >> accept(version)
    # Handed over as soon as it is at work.
    old_again = stream("old_again", "begin", max_runtime="1 second", retries=5)
    [new, progress] >> give_up() >> old_again >> roll_back()


flights_versioned()
flights_upgrade()
