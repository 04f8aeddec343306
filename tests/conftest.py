"""What holds for every test."""

from __future__ import annotations

import gc

import pytest

HEAVY = ("spark", "airflow")


def pytest_configure() -> None:
    """Look for no garbage while the tests are imported: there is none yet."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Never look again at what was imported: half a million objects that stay to the end."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep what starts a JVM or Airflow in one process: two would be too much for two cores."""
    for item in items:
        if any(item.get_closest_marker(mark) for mark in HEAVY):
            item.add_marker(pytest.mark.xdist_group("jvm"))
