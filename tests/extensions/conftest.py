"""Fixtures for the tests of extensions: with Spark, and without it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
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


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let a program answer in the place of the command that an operator runs."""

    def answer(program: str) -> None:
        whole = [sys.executable, "-c", f"import json, signal, sys\n{program}"]
        place = "airflow_provider.operators.command_operator.module_command"
        monkeypatch.setattr(place, lambda _: whole)

    return answer
