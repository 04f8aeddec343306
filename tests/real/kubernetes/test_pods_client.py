"""The questions about pods, to a real API server and a real kubelet; the pods run no Spark."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider.hooks.kubernetes_pods import pods_client
from airflow_provider.runtime.api.launchers import Handle, LaunchState, LaunchStatus
from airflow_provider.runtime.base.kubernetes_pods import LABEL, PodsClient, pod_handle
from airflow_provider.runtime.errors import SubmissionRefusedError
from tests.real.kubernetes.cluster import ASKER, DRIVER, NAMESPACE, NOBODY, Cluster
from tests.real.kubernetes.images import SPARK
from tests.real.kubernetes.servers import await_that

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

TOKEN = "7f" * 16
HANDLE = pod_handle(TOKEN, NAMESPACE)
NAME = "daily-driver"
CONTAINER = "spark-kubernetes-driver"
SLEEPS = "trap 'exit 143' TERM; sleep 1000 & wait"
UNKNOWN_IMAGE = "localhost:1/nothing:1"


@pytest.fixture
def pods(cluster: Cluster) -> Iterator[Cluster]:
    yield cluster
    cluster.heal()
    cluster.end_pods()


@pytest.fixture
def client(pods: Cluster) -> PodsClient:
    return of_user(pods, ASKER)


def of_user(cluster: Cluster, user: str) -> PodsClient:
    environ = {**os.environ, "KUBECONFIG": str(cluster.login_of(user))}
    found: Any = pods_client(f"k8s://{cluster.url}", None, environ)
    assert isinstance(found, PodsClient), found
    return found


def make(
    cluster: Cluster, script: str = SLEEPS, *, memory: str = "64Mi", image: str = SPARK
) -> Any:
    """Make a driver's pod, as ``spark-submit`` labels one, whose container runs a script."""
    container = {
        "name": CONTAINER,
        "image": image,
        "args": ["bash", "-c", script],
        "resources": {"requests": {"memory": memory}, "limits": {"memory": memory}},
        "volumeMounts": [{"name": "usr", "mountPath": "/usr"}],
    }
    body = {
        "metadata": {"name": NAME, "labels": {LABEL: TOKEN, "spark-role": "driver"}},
        "spec": {
            "restartPolicy": "Never",
            "containers": [container],
            "volumes": [{"name": "usr", "hostPath": {"path": "/usr"}}],
        },
    }
    return cluster.pods.create_namespaced_pod(NAMESPACE, body)


def await_state(client: PodsClient, state: LaunchState, says: str = "") -> LaunchStatus:
    def is_there() -> bool:
        status = client.poll(HANDLE)
        return status.state is state and says in status.reason

    await_that(f"the driver is {state.value} {says}", is_there)
    return client.poll(HANDLE)


def test_a_pod_is_gone_runs_and_ends(pods: Cluster, client: PodsClient) -> None:
    """Before it was made it is gone; its exit code is the container's."""
    before = client.poll(HANDLE)
    make(pods, "sleep 2; exit 0")
    running = await_state(client, LaunchState.RUNNING, "Running")
    ended = await_state(client, LaunchState.ENDED)

    assert LaunchState.GONE is before.state
    assert LaunchStatus(LaunchState.RUNNING, None, f"pod {NAME} Running") == running
    assert LaunchStatus(LaunchState.ENDED, 0, f"pod {NAME} Succeeded Completed") == ended


@pytest.mark.parametrize(
    ("script", "code", "reason"),
    [
        ("exit 3", 3, "Error"),
        # The first process of a container cannot kill itself; Kubernetes makes one $ of two.
        ("bash -c 'kill -KILL $BASHPID'; exit $?", 137, "Error"),
        # As much as a heap that is larger than the pod.
        ("tail /dev/zero", 137, "OOMKilled"),
        ("exec /nowhere", 127, "Error"),
    ],
    ids=["exit", "killed", "memory", "no program"],
)
def test_a_pod_that_fails_has_exit_code_and_reason(
    pods: Cluster, client: PodsClient, script: str, code: int, reason: str
) -> None:
    """Also one that its memory has killed."""
    make(pods, script)
    status = await_state(client, LaunchState.ENDED)

    assert code == status.exit_code
    assert status.reason.startswith(f"pod {NAME} Failed {reason}")


def test_a_pod_without_room_is_queued_and_is_ended(pods: Cluster, client: PodsClient) -> None:
    """The scheduler's words are the reason; without a node nothing delays its end."""
    make(pods, memory="900Gi")
    status = await_state(client, LaunchState.QUEUED, "Insufficient memory")
    client.end(HANDLE)

    assert f"pod {NAME} Pending 0/1 nodes are available" in status.reason
    assert LaunchState.GONE is client.poll(HANDLE).state


def test_a_pod_whose_image_cannot_be_pulled_runs_with_the_reason(
    pods: Cluster, client: PodsClient
) -> None:
    """It has a node, so it has to come up in time."""
    make(pods, image=UNKNOWN_IMAGE)
    status = await_state(client, LaunchState.RUNNING, UNKNOWN_IMAGE)
    client.end(HANDLE)

    assert "ImagePull" in status.reason
    await_state(client, LaunchState.GONE)


def test_a_deleted_pod_runs_until_its_node_has_ended_it(pods: Cluster, client: PodsClient) -> None:
    """While its node is silent it stays, and says so; twice is as once."""
    make(pods)
    await_state(client, LaunchState.RUNNING, "Running")
    pods.node.kubelet.kill()
    client.end(HANDLE)
    client.end(HANDLE)
    deleted = client.poll(HANDLE)
    pods.node.kubelet.start()

    assert LaunchStatus(LaunchState.RUNNING, None, f"pod {NAME} Running, deleted") == deleted
    await_state(client, LaunchState.GONE)
    client.end(HANDLE)


@pytest.mark.parametrize("way", ["deleted by force", "evicted"])
def test_a_pod_that_others_take_away_is_gone(pods: Cluster, client: PodsClient, way: str) -> None:
    """Nothing is left that could be asked for its exit code."""
    make(pods)
    await_state(client, LaunchState.RUNNING, "Running")
    (pod,) = pods.of_role(DRIVER)
    if way == "evicted":
        pods.evict(pod)
    else:
        pods.delete(pod, grace_s=0)

    status = await_state(client, LaunchState.GONE)
    assert f"{NAMESPACE} has no pod with the label {LABEL}" == status.reason


def test_the_api_server_is_away_for_a_while(pods: Cluster, client: PodsClient) -> None:
    """Then nothing is known; later it is the same pod."""
    make(pods)
    before = await_state(client, LaunchState.RUNNING, "Running")
    pods.plane.api.kill()
    away = client.poll(HANDLE)
    pods.plane.start_api()

    assert LaunchState.UNKNOWN is away.state
    assert f"kubernetes {pods.url}: does not answer" in away.reason
    assert before == client.poll(HANDLE)


def test_who_asks_needs_the_verbs_list_and_delete_alone(pods: Cluster, client: PodsClient) -> None:
    """As the docs say; without them it is told so in one line, and with no login another one."""
    make(pods)
    await_state(client, LaunchState.RUNNING, "Running")
    nobody = of_user(pods, NOBODY)
    refused = nobody.poll(HANDLE)
    with pytest.raises(SubmissionRefusedError, match="answered 403"):
        nobody.end(HANDLE)
    config = pods.login_of(NOBODY)
    token = pods.plane.tokens[NOBODY]
    config.write_text(config.read_text().replace(token, "another"))
    stranger = pods_client(f"k8s://{pods.url}", None, {"KUBECONFIG": str(config)})

    assert isinstance(stranger, PodsClient)
    assert f"pods of {NAMESPACE} can be listed" == client.check(HANDLE)
    assert LaunchState.UNKNOWN is refused.state
    assert f'User "{NOBODY}" cannot list resource "pods"' in refused.reason
    assert "this process's account needs the verbs list and delete on pods" in refused.reason
    assert "it does not know the login of this process" in stranger.poll(HANDLE).reason


def test_another_pod_of_the_same_name_is_not_ended(pods: Cluster, client: PodsClient) -> None:
    """Its uid is another one, so the deletion is refused, which is no failure."""
    first = make(pods)
    pods.delete(first, grace_s=0)
    await_state(client, LaunchState.GONE)
    make(pods)
    client._delete(NAME, first.metadata.uid, NAMESPACE)

    assert client.poll(HANDLE).reason.startswith(f"pod {NAME} ")
    assert "deleted" not in client.poll(HANDLE).reason


def test_another_driver_and_another_namespace_are_none_of_it(
    pods: Cluster, client: PodsClient
) -> None:
    """Nothing is told of them, and nothing is done to them."""
    make(pods)
    other = Handle(driver_id="8" * 32, launcher="kubernetes", id="8", location=HANDLE.location)

    assert LaunchState.GONE is client.poll(other).state
    client.end(other)
    assert [] == [pod for pod in pods.of_role(DRIVER) if pod.metadata.deletion_timestamp]
