"""What holds for every test."""

from __future__ import annotations

import gc


def pytest_configure() -> None:
    """Look for no garbage while the tests are imported: there is none yet."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Never look again at what was imported: half a million objects that stay to the end."""
    gc.freeze()
    gc.enable()
