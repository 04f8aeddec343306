"""A driver from a shell, and executors of a cluster on which the package is not installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys
from airflow_provider.runtime.spark.session import using_spark

def found(_):
    from airflow_provider.extensions.postgres import copy
    return [copy.__file__]

with using_spark(None, "shipping", sys.argv[1], {"spark.executor.memory": "512m"}) as spark:
    print(*spark.sparkContext.parallelize([1], 1).mapPartitions(found).collect())
"""


def test_executors_run_what_the_driver_has_sent(tmp_path):
    """What a sink runs on executors comes out of the runtime's zip, and not from their machine."""
    cluster = Cluster(tmp_path / "cluster")
    try:
        cluster.worker()
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, cluster.url],
            cwd=ROOT,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
    finally:
        cluster.end()

    assert "/spark-stream-runtime-" in done.stdout, done.stderr[-3000:]
    assert done.stdout.strip().endswith(".zip/airflow_provider/extensions/postgres/copy.py")
