"""Run one DAG by ``dag.test()`` and write down how it went.

``dag_test.py FILE DAG_ID ANSWER`` runs it once; with ``--at-each`` once for every logical date that
comes as a line of its input.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
from pathlib import Path
from typing import Any


def main(dag_file: str, dag_id: str, answer: str, *each: str) -> None:
    from airflow_names import DagBag

    bag = DagBag(dag_file)
    assert not bag.import_errors, bag.import_errors
    if not each:
        _run(bag.dags[dag_id], Path(answer))
        return
    for line in sys.stdin:
        at = dt.datetime.fromisoformat(line.strip())
        _run(bag.dags[dag_id], Path(answer), logical_date=at)


def _run(dag: Any, answer: Path, **at: Any) -> None:
    run = dag.test(**at)
    tasks = {  # of mapped ones the last
        ti.task_id: {
            "state": str(ti.state),
            "value": ti.xcom_pull(task_ids=ti.task_id, map_indexes=ti.map_index),
        }
        for ti in run.get_task_instances()
    }
    document = {"state": str(run.state), "run_id": run.run_id, "tasks": tasks}
    unfinished = answer.with_suffix(".tmp")
    unfinished.write_text(json.dumps(document))
    unfinished.replace(answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
