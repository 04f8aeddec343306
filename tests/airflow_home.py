"""Airflow's environment for tests, set when this is imported: before anything imports Airflow.

Airflow reads it once, which is when test modules are collected: before any fixture, so neither
``tmp_path_factory`` nor ``monkeypatch`` could come in time. Processes that tests start inherit it.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "airflow-tests-"

if not Path(os.environ.get("AIRFLOW_HOME", "")).name.startswith(PREFIX):
    home = tempfile.mkdtemp(prefix=PREFIX)
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    for name in [name for name in os.environ if name.startswith(("AIRFLOW", "_AIRFLOW"))]:
        del os.environ[name]
    os.environ["AIRFLOW_HOME"] = home
    os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
    os.environ["AIRFLOW__CORE__UNIT_TEST_MODE"] = "False"
    os.environ["AIRFLOW__CORE__DAGS_FOLDER"] = str(Path(__file__).parents[1] / "dags")
    os.environ["AIRFLOW__USAGE_DATA_COLLECTION__ENABLED"] = "False"
    os.environ["AIRFLOW_CONN_SPARK_DEFAULT"] = '{"conn_type": "spark", "host": "local[1]"}'
