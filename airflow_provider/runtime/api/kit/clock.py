"""Clock: time behind one small interface, so that tests control it."""

from __future__ import annotations

from airflow_provider.runtime.base.clock import (
    Clock,
    SystemClock,
)

__all__ = [
    "Clock",
    "SystemClock",
]
