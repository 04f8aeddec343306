"""SparkApplications of Kubeflow's real operator on a real node: Spark in pods, which are killed."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark
import pytest
import yaml
from handmade import RUN
from kubernetes import client

from airflow_provider.runtime.api.launchers import LaunchState
from airflow_provider.runtime.base.kubernetes_pods import LABEL
from airflow_provider.runtime.base.runtime_zip import write_package
from tests.present import present
from tests.real.hadoop.tasks import ENTRY, Task
from tests.real.kubernetes import spark_operators
from tests.real.kubernetes.cluster import ASKER, DRIVER, DRIVERS, EXECUTOR, NAMESPACE, RBAC, Cluster
from tests.real.kubernetes.images import SPARK
from tests.real.kubernetes.servers import Server, await_that
from tests.real.kubernetes.spark_plane import role_of_the_page, where
from tests.real.kubernetes.trials import LOSSES, begin, fail, follow

pytestmark = [pytest.mark.real, pytest.mark.spark, pytest.mark.timeout(600)]

# What Kubeflow's operator takes from fields alone.
FIELDS = frozenset(
    {
        "spark.kubernetes.container.image",
        "spark.kubernetes.authenticate.driver.serviceAccountName",
    }
)


@pytest.fixture(scope="module")
def controller(cluster: Cluster) -> Iterator[Server]:
    """Kubeflow's controller, which submits with Spark's own ``spark-submit``."""
    folder = Path(tempfile.mkdtemp(prefix="operator-"))
    home = Path(pyspark.__file__).parent
    server = spark_operators.kubeflow_controller(cluster.plane, folder, home)
    api = cluster.pods.api_client
    for crd in (spark_operators.crd_of("kubeflow"), *spark_operators.other_crds()):
        spark_operators.install(crd, api)
    grant(api)
    server.start()
    yield server
    server.kill()
    shutil.rmtree(folder, ignore_errors=True)


def grant(api: client.ApiClient) -> None:
    """Give a user the rights that the page names."""
    role = yaml.safe_load(role_of_the_page())
    rights = client.RbacAuthorizationV1Api(api)
    rights.create_namespaced_role(NAMESPACE, role)
    name = role["metadata"]["name"]
    binding = {
        "metadata": {"name": name},
        "subjects": [{"kind": "User", "apiGroup": RBAC, "name": ASKER}],
        "roleRef": {"kind": "Role", "apiGroup": RBAC, "name": name},
    }
    rights.create_namespaced_role_binding(NAMESPACE, binding)


@pytest.fixture
def job(
    connected: Cluster,
    controller: Server,
    task: Callable[..., Task],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Task]:
    """The test's task, whose driver is a SparkApplication's."""
    login = {"kube_config_path": str(connected.login_of(ASKER)), "namespace": NAMESPACE}
    connection = {"conn_type": "kubernetes", "extra": login}
    monkeypatch.setenv("AIRFLOW_CONN_OPERATED", json.dumps(connection))
    runtime = tmp_path / "runtime.zip"
    write_package(runtime, replaces=False)
    file, _, name = ENTRY.rpartition(":")
    shutil.copy(file, tmp_path)
    conf = {key: v for key, v in connected.spark_conf().items() if key not in FIELDS}
    yield task(
        None,
        job=f"local://{tmp_path / Path(file).name}:{name}",
        conn_id="operated",
        launcher="spark-application",
        launcher_options={
            "entry_point": f"local://{runtime.with_name('spark_stream_driver.py')}",
            "runtime": f"local://{runtime}",
            "spark_version": pyspark.__version__,
            "image": SPARK,
            "service_account": DRIVERS,
        },
        conf=conf,
    )
    custom = client.CustomObjectsApi(connected.pods.api_client)
    custom.delete_collection_namespaced_custom_object(*where("kubeflow"))
    assert controller.is_alive, controller.log[-2000:]


# --- what dies around a driver --------------------------------------------------------------------


def kill_operator(cluster: Cluster, controller: Server) -> None:
    """Kill the operator, and start it again."""
    del cluster
    controller.kill()
    controller.start()


def kill_kubelet(cluster: Cluster, controller: Server) -> None:
    """Kill the kubelet, until its node is lost."""
    del controller
    cluster.node.kubelet.kill()
    await_that("the node is lost", lambda: not cluster.has_node())
    cluster.heal()


def kill_api_server(cluster: Cluster, controller: Server) -> None:
    """Kill the API server, and start it again; without it the operator may end, as its pod would."""
    cluster.plane.api.kill()
    cluster.heal()
    if not controller.is_alive:
        controller.start()


def lose_executors(cluster: Cluster, controller: Server) -> None:
    """Lose one executor after the other; Spark makes another pod each time."""
    del controller
    for lose in LOSSES.values():
        executor = cluster.only(EXECUTOR)
        lose(cluster, executor)
        cluster.await_successor(executor)


LOST = (lose_executors, kill_operator, kill_kubelet, kill_api_server)


def test_an_application_survives_what_dies_around_its_driver(
    connected: Cluster, controller: Server, job: Task
) -> None:
    """Its pods have the label, it is never over before its driver, and its end is a success."""
    trial = begin(job)
    lines = job.operator._hook().last_lines(job.job_dir, RUN, job.driver_id())
    driver, executor = connected.only(DRIVER), connected.only(EXECUTOR)
    said = [present(job.status())]
    for lose in LOST:
        lose(connected, controller)
        said.append(present(job.status()))
    job.gated.open_gate()

    job.check_exact(trial.result(), attempts=1)
    ended = follow(connected, job, driver)[-1]
    print(said, ended)
    assert {LaunchState.RUNNING, LaunchState.UNKNOWN} >= {each.state for each in said}
    assert LaunchState.RUNNING is said[0].state
    assert (LaunchState.ENDED, 0) == (ended.state, ended.exit_code)
    assert any("query=counts started" in line for line in lines)
    assert {job.driver_id()} == {pod.metadata.labels[LABEL] for pod in (driver, executor)}
    assert f"spark-stream-{job.driver_id()}-exec-1" == executor.metadata.name


# --- a driver that dies ---------------------------------------------------------------------------


@pytest.mark.parametrize("way", [*LOSSES, "ended from Airflow"])
def test_a_driver_that_is_lost_in_a_batch_is_resumed_exactly(
    connected: Cluster, job: Task, way: str
) -> None:
    """The operator does not start it again; the next try does."""
    trial = begin(job)
    driver = connected.only(DRIVER)
    if way in LOSSES:
        LOSSES[way](connected, driver)
    else:
        job.operator.on_kill()
    ended = follow(connected, job, driver)[-1]
    error = fail(trial)
    job.gated.open_gate()

    print(ended, error)
    job.check_exact(job.begin().result(), attempts=2)
    assert LaunchState.ENDED is ended.state
