"""Fixtures of the tests with Livy."""

from __future__ import annotations

from tests.airflow.conftest import callable_outside_of_a_task  # noqa: F401 - a fixture
