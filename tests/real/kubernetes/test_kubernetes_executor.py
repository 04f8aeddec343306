"""Tasks in pods of Airflow's KubernetesExecutor: their drivers end with them, and the next resumes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from gated import Gated
from services import Airflow, end_drivers, postgres_server, wait_for

import airflow_provider
from tests.real.hadoop.tasks import AIRFLOW_TESTS
from tests.real.kubernetes.cluster import NAMESPACE, Cluster
from tests.real.kubernetes.control_plane import ADMIN
from tests.real.kubernetes.images import SPARK
from tests.real.kubernetes.node import ADDRESS, image_environment, shared_folders
from tests.real.kubernetes.provider import add_provider

pytestmark = [pytest.mark.real, pytest.mark.spark, pytest.mark.timeout(600)]

TASK = "count"
ENDS = ("success", "failed")
WORKER = "kubernetes_executor=True"
HERE = Path(airflow_provider.__file__).parents[1]
FOR_PODS = ("AIRFLOW__CORE__", "AIRFLOW__LOGGING__", "AIRFLOW__SPARK_STREAM__", "AIRFLOW_CONN_")


class KubernetesAirflow(Airflow):
    """An Airflow whose API server is on the bridge, so that pods reach it."""

    def __init__(
        self, home: Path, dags: Path, database: str, cluster: Cluster, **more: str
    ) -> None:
        super().__init__(home, dags, database, **more)
        self.environment["AIRFLOW__API__HOST"] = ADDRESS
        url = f"http://{ADDRESS}:{self.port}"
        self.environment["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] = f"{url}/execution/"
        self._http = httpx.Client(base_url=url, timeout=30, trust_env=False)
        template = home / "pod.json"
        template.write_text(json.dumps(self._template(cluster)))
        prefix = "AIRFLOW__KUBERNETES_EXECUTOR__"
        self.environment |= {
            f"{prefix}NAMESPACE": NAMESPACE,
            f"{prefix}IN_CLUSTER": "False",
            f"{prefix}CONFIG_FILE": str(cluster.login_of(ADMIN)),
            f"{prefix}POD_TEMPLATE_FILE": str(template),
            f"{prefix}WORKER_CONTAINER_REPOSITORY": SPARK.partition(":")[0],
            f"{prefix}WORKER_CONTAINER_TAG": SPARK.partition(":")[2],
        }

    def _template(self, cluster: Cluster) -> dict[str, Any]:
        folders = shared_folders(cluster.shared, HERE)
        volumes = {f"folder-{number}": folder for number, folder in enumerate(folders)}
        image = image_environment()
        environ = {
            **{k: v for k, v in self.environment.items() if k.startswith(FOR_PODS)},
            **image,
            "PATH": os.pathsep.join([str(Path(image["PYSPARK_PYTHON"]).parent), image["PATH"]]),
            "PYTHONPATH": str(HERE),
            "AIRFLOW_HOME": str(self.home),
            "TEST_DATA": self.environment["TEST_DATA"],
            "JDK_JAVA_OPTIONS": self.environment["JDK_JAVA_OPTIONS"],
        }
        container = {
            "name": "base",
            "image": SPARK,
            "env": [{"name": name, "value": value} for name, value in environ.items()],
            "volumeMounts": [{"name": n, "mountPath": path} for n, path in volumes.items()],
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "task", "namespace": NAMESPACE},
            "spec": {
                "restartPolicy": "Never",
                "containers": [container],
                "volumes": [{"name": n, "hostPath": {"path": p}} for n, p in volumes.items()],
            },
        }

    def launch(self, name: str) -> None:
        if name != "api-server":
            super().launch(name)
            return
        command = ["api-server", "--host", ADDRESS, "--port", str(self.port), "--workers", "1"]
        self.run_component(name, command)


@pytest.fixture(scope="module")
def airflow(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KubernetesAirflow]:
    """Give an Airflow that makes a pod for each task."""
    folder = tmp_path_factory.mktemp("pods")
    dags, data, home = folder / "dags", folder / "data", folder / "home"
    dags.mkdir()
    home.mkdir()
    shutil.copy(AIRFLOW_TESTS / "dags" / "gated.py", dags)
    shutil.copytree(AIRFLOW_TESTS / "dags" / "jobs", dags / "jobs")
    path = [str(add_provider()), os.environ.get("PYTHONPATH", "")]
    with postgres_server() as database:
        started = KubernetesAirflow(
            home,
            dags,
            database,
            cluster,
            TEST_DATA=str(data),
            PYTHONPATH=os.pathsep.join(filter(None, path)),
            AIRFLOW__CORE__EXECUTOR="KubernetesExecutor",
        )
        try:
            started.start()
            yield started
        finally:
            started.stop()
            cluster.end_pods(WORKER)
            end_drivers(data)


def begin(airflow: Airflow, dag_id: str) -> tuple[Gated, str]:
    gated = Gated(Path(airflow.environment["TEST_DATA"]), dag_id)
    run_id = airflow.trigger(dag_id)
    wait_for("the last batch is planned", gated.in_last_batch, within=150)
    return gated, run_id


def check_exact(airflow: Airflow, gated: Gated, run_id: str, *, attempts: int) -> None:
    """Check that the task is green, and the rows are exact."""
    dag_id = gated.root.name
    states = airflow.follow(dag_id, run_id, TASK, until=ENDS, within=240)
    assert "success" == states[-1], airflow.logs(dag_id, run_id, TASK)
    assert "deferred" not in states
    final = airflow.xcom(dag_id, run_id, TASK)
    assert ("FINISHED", attempts) == (final["outcome"], final["attempts"])
    assert gated.truth() == gated.result()


def test_a_task_in_a_pod_waits_itself(airflow: Airflow, cluster: Cluster) -> None:
    """It says so and why, and is not deferred."""
    gated, run_id = begin(airflow, "cleared")
    state = airflow.task("cleared", run_id, TASK)["state"]
    (pod,) = cluster.running(WORKER)
    gated.open_gate()

    assert "running" == state
    assert "cleared" == pod.metadata.labels["dag_id"]
    check_exact(airflow, gated, run_id, attempts=1)
    said = airflow.logs("cleared", run_id, TASK)
    assert "This task does not defer, it waits itself" in said
    assert "in the pod of a KubernetesExecutor: AIRFLOW_IS_K8S_EXECUTOR_POD" in said


def delete_pod(cluster: Cluster, gated: Gated) -> None:
    """Delete the pod: its first process gets SIGTERM, and has some time."""
    for pod in cluster.running(WORKER):
        cluster.delete(pod)
    wait_for("the driver is asked to end", lambda: [*gated.job.glob("requests/*")], within=30)


def test_a_task_whose_pod_is_deleted_is_tried_again_exactly(
    airflow: Airflow, cluster: Cluster
) -> None:
    """The driver ends in the pod's time, and the next pod resumes the run: exact rows."""
    gated, run_id = begin(airflow, "deleted_pod")
    delete_pod(cluster, gated)
    gated.open_gate()

    check_exact(airflow, gated, run_id, attempts=2)
