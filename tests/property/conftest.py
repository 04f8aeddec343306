"""The JVM of the tests of real streams, and the modules that they share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "spark")]


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from tests.spark.conftest import spark_session  # late: it needs the path just set

    with spark_session() as session:
        yield session
