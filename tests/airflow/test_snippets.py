"""Code in the pages that needs Airflow: each block is executed as a part of a DAG file."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from services import missing_names

from tests.snippets import Block, python_of

# What the sentences around a block have named before: locations, and functions of the reader's own.
GIVEN = """
from airflow.sdk import Asset, AssetWatcher, DAG, CronDataIntervalTimetable, dag, task
from airflow_provider.operators.spark_bootstrap import SparkBootstrapOperator
from airflow_provider.operators.spark_savepoint import SparkSavepointOperator
from airflow_provider.operators.spark_stop import SparkStopOperator
from airflow_provider.operators.spark_streaming import SparkStreamingOperator
from airflow_provider.extensions.upgrades.operator import SparkUpgradeOperator
from airflow_provider.sensors.spark_watermark import SparkWatermarkSensor

HERE, PLACE, JOB_DIR = "/opt/dags", "/data", "/data/job"
REQUIRED = {"task_id": "stream", "job": "/opt/jobs.py:daily", "job_dir": "/data/job"}

@task
def report():
    pass
"""


class Filled(ast.NodeTransformer):
    """Puts the arguments that are left out, ``...``, into calls."""

    def visit_Call(self, node: ast.Call) -> ast.Call:
        """Fill a call in which "..." stands for what each operator needs."""
        self.generic_visit(node)
        given = [each for each in node.args if ast.unparse(each) != "..."]
        if len(given) < len(node.args):
            node.args = given
            node.keywords.append(ast.keyword(None, ast.Name("REQUIRED", ast.Load())))
        return node


@pytest.mark.skipif(bool(missing_names()), reason="an older Airflow lacks names")
@pytest.mark.parametrize(
    "block", [pytest.param(each, id=each.location) for each in python_of("airflow")]
)
def test_a_piece_of_a_dag_file_makes_its_tasks(block: Block, tmp_path: Any) -> None:
    """
    A DAG file is imported and has tasks; a piece of one makes its tasks in a DAG of the test's.
    """
    from airflow.sdk import DAG

    names: dict[str, Any] = {"__name__": "snippet", "__file__": str(tmp_path / "dag.py")}
    exec(compile(GIVEN, "given", "exec"), names)  # noqa: S102 - the pages are ours
    before = dict(names)
    code = ast.fix_missing_locations(Filled().visit(ast.parse(block.text)))
    with DAG("snippet") as around:
        exec(compile(code, block.location, "exec"), names)  # noqa: S102 - the pages are ours

    made = [name for name, value in names.items() if before.get(name) is not value]
    assert made or around.tasks, "it makes nothing"
    if (
        "Operator(" in block.text or "live_with_history(" in block.text
    ) and "@dag" not in block.text:
        assert around.tasks
