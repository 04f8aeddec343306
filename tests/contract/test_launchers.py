"""The contract of launchers on ``spark-submit``'s processes, on EMR Serverless, and on Livy."""

from __future__ import annotations

import pytest

from airflow_provider.runtime.control.launchers.testing import (
    LauncherContract,
    RacingLauncherContract,
    RemoteLauncherContract,
)
from tests.contract.clusters import LivyCluster, ThisMachine, serve_emr

pytestmark = pytest.mark.slow


class TestSparkSubmit(LauncherContract):
    """Processes of this machine."""

    @pytest.fixture
    def case(self, tmp_path):
        return ThisMachine(tmp_path)


class TestLivy(RacingLauncherContract):
    """A server that refuses a second batch of a name."""

    @pytest.fixture
    def case(self, tmp_path):
        cluster = LivyCluster(tmp_path)
        yield cluster
        cluster.stop()


@pytest.fixture(scope="module")
def emr():
    cluster = serve_emr()
    yield cluster
    cluster.server.stop()


class TestEmrServerless(RemoteLauncherContract):
    """Moto, which ignores client tokens: only the real service decides between racing requests."""

    @pytest.fixture
    def case(self, emr):
        emr.new_application()
        yield emr
        emr.end_all()
