"""Real drivers as processes of their own, none of which outlives its test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "spark")]

from drivers import Drivers  # noqa: E402 - found through the path just set
from streams import Place  # noqa: E402 - the same


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def drivers(place: Place) -> Iterator[Drivers]:
    started = Drivers(place)
    yield started
    started.end_all()
