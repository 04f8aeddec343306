"""A person clears a task in Airflow, with ``on_clear="replay"``: real processes, four real sinks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from orders import Orders, Rows
from services import Airflow

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

DAG, TASK = "replayed", "write"
ENDS = ("success", "failed")


class Runs:
    """Runs of the DAG, one after the other."""

    def __init__(self, airflow: Airflow) -> None:
        self._airflow = airflow

    def trigger(self) -> tuple[str, str]:
        """Return a new run and how its task has ended."""
        run_id = self._airflow.trigger(DAG)
        return run_id, self._end_of(run_id)

    def clear(self, run_id: str) -> str:
        """Return how the task has ended after it was cleared."""
        self._airflow.clear(DAG, run_id, TASK)
        return self._end_of(run_id)

    def clear_together(self, *run_ids: str) -> list[str]:
        """Return how the tasks have ended after all were cleared before the first one began."""
        for run_id in run_ids:
            self._airflow.wait_for_end(DAG, run_id)
        self._airflow.call("PATCH", f"/dags/{DAG}", is_paused=True)
        for run_id in run_ids:
            self._airflow.clear(DAG, run_id, TASK)
        self._airflow.unpause(DAG)
        return [self._end_of(run_id) for run_id in run_ids]

    def _end_of(self, run_id: str) -> str:
        return self._airflow.follow(DAG, run_id, TASK, until=ENDS, within=120)[-1]


@pytest.mark.whole  # tests/spark/test_replay.py is without Airflow
def test_a_cleared_run_is_replayed(airflow_services: Airflow, postgres_url: str) -> None:
    """
    Cleared after failure and again after success, each time with its input changed meanwhile, a run
    leaves in files, Delta, Iceberg and SQL what one execution leaves; a run on which later ones have
    built is refused, and the error names them. Cleared together with them, it is undone with them, and
    all are executed again.
    """
    airflow = airflow_services
    environment = airflow.environment
    orders = Orders(Path(environment["TEST_DATA"]), postgres_url, environment["TEST_SQL"])
    runs = Runs(airflow)

    orders.write(0, {1: 10, 2: 20})
    first, state = runs.trigger()
    assert "success" == state, airflow.logs(DAG, first, TASK)

    before = orders.truth()
    orders.write(1, {3: 30})
    orders.write(2, {4: -40})
    second, state = runs.trigger()
    assert "failed" == state, airflow.logs(DAG, second, TASK)
    assert everywhere([*before, (3, 30)]) == orders.outputs()

    orders.write(1, {3: 33})
    orders.write(2, {4: 40, 5: 50})
    assert "success" == runs.clear(second), airflow.logs(DAG, second, TASK)
    assert everywhere(orders.truth()) == orders.outputs()
    assert "SUSPENDED" == airflow.xcom(DAG, second, TASK)["outcome"]

    orders.write(2, {4: 44, 6: 60})
    orders.write(3, {7: 70})
    assert "success" == runs.clear(second), airflow.logs(DAG, second, TASK)
    assert everywhere(orders.truth()) == orders.outputs()

    assert "failed" == runs.clear(first)
    newest, *others = [json.loads(path.read_text())["run_id"] for path in by_start(orders.root)]
    assert [".r2", "", ""] == [name[len(name.removesuffix(".r2")) :] for name in others]
    assert newest.endswith(".r3")
    log = airflow.logs(DAG, first, TASK)
    assert f"the runs of later DAG runs have built on it: {second}. Clear this task with" in log
    assert everywhere(orders.truth()) == orders.outputs()

    orders.write(0, {1: 11, 2: 20})
    assert ["success", "success"] == runs.clear_together(first, second), airflow.logs(
        DAG, first, TASK
    )
    assert everywhere(orders.truth()) == orders.outputs()
    assert [".r2", ".r4"] == [
        airflow.xcom(DAG, run, TASK)["run_id"][-3:] for run in (first, second)
    ]


def everywhere(rows: Rows) -> dict[str, Rows]:
    return dict.fromkeys(("files", "delta", "iceberg", "postgres"), rows)


def by_start(root: Path) -> list[Path]:
    """Return the records of the job's runs, the newest first."""
    found = root.glob("job/runs/*/run.json")
    return sorted(found, key=lambda path: json.loads(path.read_text())["started"], reverse=True)
