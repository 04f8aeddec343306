"""Fixtures of the JVM-free tests, for the tests of extensions."""

from __future__ import annotations

from tests.unit.conftest import clock, spark, storage

__all__ = ["clock", "spark", "storage"]
