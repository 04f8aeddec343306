"""Fixtures of the JVM-free tests."""

from __future__ import annotations

import pytest

from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.testing.job_directories import CheckpointBuilder
from tests.unit.support import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def storage(tmp_path) -> LocalStorage:
    return LocalStorage(str(tmp_path / "job"))


@pytest.fixture
def spark(tmp_path) -> CheckpointBuilder:
    return CheckpointBuilder(tmp_path / "checkpoint")
