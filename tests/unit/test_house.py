"""Budgets: how large each room of the package may be."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_no_room_outgrows_its_budget(monkeypatch):
    """A room that grows past its budget is simplified or split off, or its budget is argued for."""
    monkeypatch.setattr(sys, "path", [str(ROOT / "scripts"), *sys.path])
    house = importlib.import_module("house")
    code = {room: counted.code for room, counted in house.rooms().items() if counted.code}

    budget = {room: house.NEW_EXTENSION for room in code if room.startswith("extensions/")}
    budget |= house.BUDGET
    assert {} == {room: lines for room, lines in code.items() if lines > budget.get(room, 0)}
    assert [] == sorted({*house.BUDGET} - {*code}), "rooms that are gone"
