"""Run the package's tests of Airflow with each version of Airflow that it supports.

Each version has an environment of its own, ``.work/versions/airflow-<version>``, with the packages of
``constraints.txt`` as far as that version takes them; PySpark is that of ``.venv``, by a link. An
environment is made once, and again when the pins below or ``pyproject.toml`` change.

The rows are what a user has of this package, the cells how many tests have passed and how many a
version skips, for what it does not have. docs/versions.md has the table.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ROOT / ".work" / "versions"
AIRFLOW = "tests/airflow/"


@dataclasses.dataclass(frozen=True)
class Row:
    """A part of the package, and its tests.

    Attributes:
        what: for the table.
        tests: files and options of pytest.
    """

    what: str
    tests: str


QUICK = "-m 'not spark and not soak'"
ROWS = {
    "package": Row("all modules, the provider's information", f"{AIRFLOW}test_versions.py"),
    "operators": Row(
        "operators, sensor, decorator, retry policy",
        "test_operator.py test_bootstrap_operator.py test_savepoint_operator.py "
        "test_stop_operator.py test_watermark_sensor.py test_decorator.py test_slicing.py "
        "test_supervision.py test_clearing.py",
    ),
}


if __name__ == "__main__":
    sys.exit(0)
