"""Fixtures for the tests of extensions: with Spark, and without it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.conftest import clock, storage

__all__ = ["clock", "storage"]

sys.path.insert(0, str(Path(__file__).parents[1] / "spark"))


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from tests.spark.conftest import spark_session  # late: Spark is not imported where none starts

    with spark_session() as session:
        yield session


@pytest.fixture
def location(tmp_path: Path) -> Any:
    from streams import Location

    return Location(tmp_path)
