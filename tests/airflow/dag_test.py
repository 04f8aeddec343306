"""Run one DAG by ``dag.test()`` and write down how it went.

``dag_test.py FILE DAG_ID ANSWER [LOGICAL_DATE]``
"""

from __future__ import annotations

import datetime as dt
import json
import sys
from pathlib import Path


def main(dag_file: str, dag_id: str, answer: str, logical_date: str | None = None) -> None:
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(dag_file)
    assert not bag.import_errors, bag.import_errors
    at = {"logical_date": dt.datetime.fromisoformat(logical_date)} if logical_date else {}
    run = bag.dags[dag_id].test(**at)
    tasks = {
        ti.task_id: {"state": str(ti.state), "value": ti.xcom_pull(task_ids=ti.task_id)}
        for ti in run.get_task_instances()
    }
    document = {"state": str(run.state), "run_id": run.run_id, "tasks": tasks}
    Path(answer).write_text(json.dumps(document))


if __name__ == "__main__":
    main(*sys.argv[1:])
