"""Tasks whose processes end with them, as in a pod of the KubernetesExecutor, with real Spark."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from gated import Gated
from namespace_executor import UNSHARE, WORKLOAD
from services import Airflow, end_drivers, postgres_server, wait_for

HERE = Path(__file__).resolve().parent
TASK = "count"
ENDS = ("success", "failed")
HAS_NAMESPACES = (
    subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0
)

pytestmark = [
    pytest.mark.spark,
    pytest.mark.whole,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not HAS_NAMESPACES, reason="needs the right to make a PID namespace"),
]


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    """Give an Airflow that starts a PID namespace for each task."""
    folder = tmp_path_factory.mktemp("namespaces")
    dags, data = folder / "dags", folder / "data"
    dags.mkdir()
    shutil.copy(HERE / "dags" / "gated.py", dags)
    shutil.copytree(HERE / "dags" / "jobs", dags / "jobs")
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    with postgres_server() as url:
        started = Airflow(
            folder / "home",
            dags,
            url,
            TEST_DATA=str(data),
            PYTHONPATH=path,
            AIRFLOW__CORE__EXECUTOR="namespace_executor.NamespaceExecutor",
        )
        try:
            started.start()
            yield started
        finally:
            started.stop()
            end_drivers(data)


def pods(airflow: Airflow) -> list[psutil.Process]:
    """Return the first process of each task's namespace."""
    scheduler = psutil.Process(airflow.processes["scheduler"].pid)
    found = []
    for process in scheduler.children(recursive=True):
        if process.name() == UNSHARE[0]:
            found += process.children()
    return found


def the_pod(airflow: Airflow) -> psutil.Process:
    (pod,) = pods(airflow)
    return pod


def begin(airflow: Airflow, dag_id: str) -> tuple[Gated, str]:
    return Gated(Path(airflow.environment["TEST_DATA"]), dag_id), airflow.trigger(dag_id)


def check_exact(airflow: Airflow, gated: Gated, run_id: str, *, attempts: int) -> None:
    """Check that the task is green, and the rows are exact."""
    dag_id = gated.root.name
    states = airflow.follow(dag_id, run_id, TASK, until=ENDS, within=240)
    assert "success" == states[-1], airflow.logs(dag_id, run_id, TASK)
    assert "deferred" not in states
    final = airflow.xcom(dag_id, run_id, TASK)
    assert ("FINISHED", attempts) == (final["outcome"], final["attempts"])
    assert gated.truth() == gated.result()


def test_a_task_whose_processes_end_with_it_waits_itself(airflow: Airflow) -> None:
    """It says so and why, is not deferred, and nothing of it is left."""
    gated, run_id = begin(airflow, "cleared")

    wait_for("the last batch is planned", gated.in_last_batch, within=120)
    state = airflow.task("cleared", run_id, TASK)["state"]
    pod = the_pod(airflow)
    inside = pod.children(recursive=True)
    gated.open_gate()

    assert "running" == state
    assert (
        any(WORKLOAD in word for word in pod.cmdline()) or "airflow supervisor" in pod.cmdline()[0]
    )
    assert any(process.name() == "java" for process in inside)
    check_exact(airflow, gated, run_id, attempts=1)
    said = airflow.logs("cleared", run_id, TASK)
    assert "This task does not defer, it waits itself" in said
    assert "in a container that ends with the task: execute_workload" in said
    wait_for("the namespace has ended", lambda: not pods(airflow), within=30)
    assert not [process for process in inside if process.is_running()]


def kill_pod(airflow: Airflow, gated: Gated) -> None:
    """Lose the node: all processes of the namespace are gone at once."""
    the_pod(airflow).kill()
    wait_for("the next try has looked at the run", lambda: gated.claims() == 2, within=120)


def delete_pod(airflow: Airflow, gated: Gated) -> None:
    """Delete the pod as Kubernetes does: its first process gets SIGTERM, and has some time."""
    the_pod(airflow).send_signal(signal.SIGTERM)
    wait_for("the driver is asked to end", lambda: [*gated.job.glob("requests/*")], within=30)


def kill_task(airflow: Airflow, gated: Gated) -> None:
    """Kill the task's process, as for its memory: its supervisor ends, and so does the namespace."""
    supervisor = the_pod(airflow)
    (task,) = supervisor.children()
    task.kill()
    wait_for("the next try has looked at the run", lambda: gated.claims() == 2, within=120)


def kill_driver(airflow: Airflow, gated: Gated) -> None:
    (attempt,) = gated.documents("runs/*/attempts/*.json")
    (driver,) = [
        process
        for process in the_pod(airflow).children(recursive=True)
        if pid_inside(process) == attempt["pid"]
    ]
    driver.kill()


def pid_inside(process: psutil.Process) -> int:
    """Return the number that a process has in the innermost of its PID namespaces."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    (numbers,) = [line.split() for line in lines if line.startswith("NSpid:")]
    return int(numbers[-1])


KILLS: dict[str, Callable[[Airflow, Gated], None]] = {
    "killed_pod": kill_pod,
    "deleted_pod": delete_pod,
    "killed_task": kill_task,
    "killed_driver": kill_driver,
}


@pytest.mark.parametrize("dag_id", list(KILLS))
def test_a_task_killed_with_its_driver_is_tried_again_exactly(
    airflow: Airflow, dag_id: str
) -> None:
    """Whatever of a pod is killed, the next one resumes the run: two attempts, exact rows."""
    gated, run_id = begin(airflow, dag_id)

    wait_for("the last batch is planned", gated.in_last_batch, within=120)
    KILLS[dag_id](airflow, gated)
    gated.open_gate()

    check_exact(airflow, gated, run_id, attempts=2)
    records: list[dict[str, Any]] = gated.documents("runs/*/attempts/*.json")
    assert 2 == len({record["driver_id"] for record in records})


def test_a_pod_lost_before_its_driver_has_the_lease_costs_no_ten_minutes(airflow: Airflow) -> None:
    """The next try sees the silence of what has started the driver, and submits another one."""
    gated, run_id = begin(airflow, "starting_pod")

    wait_for(
        "a driver is coming up",
        lambda: gated.documents("runs/*/submissions/*.process.json"),
        within=60,
        every=0.05,
    )
    the_pod(airflow).kill()
    leases = [*gated.job.glob("leases/*.json")]
    gated.open_gate()

    assert [] == leases
    check_exact(airflow, gated, run_id, attempts=1)
    assert 2 == airflow.task("starting_pod", run_id, TASK)["try_number"]
    assert 2 == len([*gated.job.glob("runs/*/submissions/*.process.json")])
