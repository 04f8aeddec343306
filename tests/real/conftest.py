"""Real counterparts, which `make test` does not need: `make test-real` fetches and starts them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "crash"), str(TESTS / "spark")]

from drivers import Drivers  # noqa: E402 - found through the path just set
from streams import Location  # noqa: E402 - the same

from tests.spark.conftest import spark_session  # noqa: E402 - the same


@pytest.fixture
def location(tmp_path: Path) -> Location:
    return Location(tmp_path)


@pytest.fixture
def drivers(location: Location) -> Iterator[Drivers]:
    started = Drivers(location)
    yield started
    started.end_all()


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """A Spark of this package's own version, in this process."""
    with spark_session() as session:
        yield session
