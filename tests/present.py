"""Values that may be missing, where a test has no doubt that they are there."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def present(value: T | None) -> T:
    assert value is not None, "nothing is there"
    return value
