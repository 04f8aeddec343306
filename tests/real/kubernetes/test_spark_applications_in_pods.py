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


# --- what dies, when the executor holds the last batch -------------------------------------------


def test_an_application_ends_with_its_final_checkpoint(connected: Cluster, job: Task) -> None:
    """Its pods have the label, and its end is a success."""
    trial = begin(job)
    driver, executor = connected.only(DRIVER), connected.only(EXECUTOR)
    running = present(job.status())
    job.gated.open_gate()

    job.check_exact(trial.result(), attempts=1)
    ended = follow(connected, job, driver)[-1]
    assert LaunchState.RUNNING is running.state
    assert (LaunchState.ENDED, 0) == (ended.state, ended.exit_code)
    assert {job.driver_id()} == {pod.metadata.labels[LABEL] for pod in (driver, executor)}


@pytest.mark.parametrize("loss", ["deleted", "evicted", "killed"])
def test_a_driver_that_is_lost_in_a_batch_is_resumed_exactly(
    connected: Cluster, job: Task, loss: str
) -> None:
    """The operator does not start it again; the next try does."""
    trial = begin(job)
    driver = connected.only(DRIVER)
    LOSSES[loss](connected, driver)
    ended = follow(connected, job, driver)[-1]
    error = fail(trial)
    job.gated.open_gate()

    print(f"{loss}: {ended}; {error}")
    assert LaunchState.ENDED is ended.state
    job.check_exact(job.begin().result(), attempts=2)


@pytest.mark.parametrize("loss", ["deleted", "killed"])
def test_an_executor_that_is_lost_in_a_batch_is_replaced(
    connected: Cluster, job: Task, loss: str
) -> None:
    """Spark makes another pod, and the application goes on."""
    trial = begin(job)
    executor = connected.only(EXECUTOR)
    LOSSES[loss](connected, executor)
    connected.await_successor(executor)
    during = present(job.status())
    job.gated.open_gate()

    assert LaunchState.RUNNING is during.state
    job.check_exact(trial.result(), attempts=1)


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


DEATHS: dict[str, Callable[[Cluster, Server], None]] = {
    "operator": kill_operator,
    "kubelet": kill_kubelet,
    "API server": kill_api_server,
}


@pytest.mark.parametrize("victim", DEATHS)
def test_an_application_survives_what_is_around_it(
    connected: Cluster, controller: Server, job: Task, victim: str
) -> None:
    """The driver is the same one; while its node is lost the operator says so."""
    trial = begin(job)
    driver = connected.only(DRIVER)
    DEATHS[victim](connected, controller)
    during = present(job.status())
    job.gated.open_gate()

    job.check_exact(trial.result(), attempts=1)
    assert during.state in {LaunchState.RUNNING, LaunchState.UNKNOWN}
    assert (LaunchState.ENDED, 0) == (
        (ended := follow(connected, job, driver)[-1]).state,
        ended.exit_code,
    )


def test_a_driver_is_ended_from_airflow(connected: Cluster, job: Task) -> None:
    """A killed task leaves no pod that runs; the next try goes on from there."""
    trial = begin(job)
    driver = connected.only(DRIVER)
    job.operator.on_kill()
    follow(connected, job, driver)
    fail(trial)
    job.gated.open_gate()

    job.check_exact(job.begin().result(), attempts=2)
