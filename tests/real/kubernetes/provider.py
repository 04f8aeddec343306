"""Airflow's provider for Kubernetes, which the environment of the tests does not have."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import airflow
from airflow.providers.apache.spark.hooks import spark_submit

from tests.real.fetching import python_packages

CLIENT = "airflow.providers.cncf.kubernetes.kube_client"
REQUIREMENTS = Path(__file__).parent / "requirements.txt"


def add_provider() -> Path:
    """Let this process import it; return the folder to add to another one's ``PYTHONPATH``."""
    folder = python_packages(REQUIREMENTS)
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
        airflow.__path__.append(str(folder / "airflow"))
    # This module may have been imported without the provider.
    spark_submit.__dict__["kube_client"] = importlib.import_module(CLIENT)
    return folder
