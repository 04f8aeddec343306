"""The launcher's contract with Kubeflow's real operator on a real API server.

Its drivers are processes of a stand-in for a node; a stand-in for ``spark-submit`` makes their pods.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from urllib3.exceptions import ProtocolError

from airflow_provider.runtime.api.launchers import Application
from airflow_provider.runtime.testing.launchers import RacingLauncherContract
from tests.contract.clusters import PROGRAM, an_application
from tests.real.kubernetes import spark_operators
from tests.real.kubernetes.node_stand_in import NodeStandIn
from tests.real.kubernetes.provider import add_provider
from tests.real.kubernetes.servers import Server
from tests.real.kubernetes.spark_plane import ASKER, NAMESPACE, Plane

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]


class Case:
    """One test's applications.

    Args:
        plane: the control plane.
        controller: the operator.
    """

    def __init__(self, plane: Plane, controller: Server) -> None:
        self.plane, self._controller = plane, controller
        self.secrets = (plane.plane.tokens[ASKER],)
        self._begin = len(controller.log)
        self._loses = False

    def open(self, user: str = ASKER) -> Any:
        launcher = self.plane.open("kubeflow", user, entry_point=str(PROGRAM))
        create = launcher._api.create_namespaced_custom_object

        def create_or_lose(*args: Any, **kwargs: Any) -> Any:
            made = create(*args, **kwargs)
            if self._loses and "dry_run" not in kwargs:
                self._loses = False
                made.close()
                raise ProtocolError("Connection aborted.")
            return made

        launcher._api.create_namespaced_custom_object = create_or_lose
        return launcher

    def open_as_stranger(self) -> Any:
        from airflow.sdk import Connection

        from airflow_provider.extensions.spark_application.launcher import SPARK_APPLICATION

        login = json.loads(self.plane.plane.config.read_text())
        login["users"][0]["user"]["token"] = "wr0ng"  # noqa: S105 - it is none
        extra = json.dumps({"kube_config": json.dumps(login), "namespace": NAMESPACE})
        connection = Connection(conn_id="kube", conn_type="kubernetes", extra=extra)
        options = {"entry_point": "x", "runtime": "x", "spark_version": "4.3.0"}
        return SPARK_APPLICATION.open(connection, options, "kube")

    def application(self, exit_code: int | None) -> Application:
        return an_application(exit_code)

    def runs(self) -> int:
        """Return how often the operator has called ``spark-submit``."""
        return self._controller.log[self._begin :].count("Running spark-submit")

    def lose_reply(self) -> None:
        self._loses = True

    def go_away(self) -> None:
        self.plane.plane.api.kill()

    def come_back(self) -> None:
        self.plane.plane.start_api()


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Plane, Server]]:
    add_provider()
    folder = Path(tempfile.mkdtemp(prefix="k8s-"))
    plane = Plane(folder / "plane")
    node = controller = None
    try:
        plane.start()
        for crd in (spark_operators.crd_of("kubeflow"), *spark_operators.other_crds()):
            spark_operators.install(crd, plane.api)
        node = NodeStandIn(plane.api, folder / "plane")
        node.start()
        home = spark_operators.spark_home(folder)
        controller = spark_operators.kubeflow_controller(plane.plane, folder, home)
        controller.start()
        yield plane, controller
    finally:
        if controller is not None:
            controller.kill()
        if node is not None:
            node.stop()
        plane.plane.stop()
        shutil.rmtree(folder, ignore_errors=True)


class TestKubeflowsOperator(RacingLauncherContract):
    """Its applications are drivers, their ends its states."""

    @pytest.fixture
    def case(self, running: tuple[Plane, Server]) -> Case:
        return Case(*running)
