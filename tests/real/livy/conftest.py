"""What a task of the tests needs outside of Airflow."""

from __future__ import annotations

from tests.airflow.conftest import callable_outside_of_a_task  # noqa: F401 - a fixture
