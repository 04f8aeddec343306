"""Launcher ``spark-application``: its contract, on a stand-in that starts real processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider.runtime.testing.launchers import RacingLauncherContract
from tests.contract.clusters import OperatorCluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("airflow.providers.cncf.kubernetes.hooks.kubernetes")
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("operator", ["kubeflow", "apache"])
class TestSparkApplication(RacingLauncherContract):
    """An API server that refuses a second application of a name."""

    @pytest.fixture
    def case(self, tmp_path: Path, operator: str) -> Iterator[OperatorCluster]:
        cluster = OperatorCluster(tmp_path, operator)
        yield cluster
        cluster.stop()
