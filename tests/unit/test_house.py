"""Budgets: how large each room of the package may be."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_no_room_outgrows_its_budget(monkeypatch):
    """A room that grows past its budget is simplified or split off, or its budget is argued for."""
    monkeypatch.setattr(sys, "path", [str(ROOT / "scripts"), *sys.path])
    house = importlib.import_module("house")
    code = {room: counted.code for room, counted in house.rooms().items() if counted.code}

    assert {} == {room: lines for room, lines in code.items() if lines > house.BUDGET.get(room, 0)}
    assert [] == sorted({*house.BUDGET} - {*code}), "rooms that are gone"
