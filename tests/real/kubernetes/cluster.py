"""Kubernetes with one node on this machine, its API as the administrator sees it, Spark's settings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kubernetes import client, config

from tests.jvm import QUICK
from tests.real.kubernetes.control_plane import ControlPlane
from tests.real.kubernetes.images import SPARK
from tests.real.kubernetes.node import ADDRESS, Node, make_bridge, shared_folders
from tests.real.kubernetes.servers import await_that

NAMESPACE = "streams"
DRIVERS = "spark"  # the service account of drivers
SUBMITTER, ASKER, NOBODY = "submitter", "asker", "nobody"
"""Users: who runs ``spark-submit``, who asks about drivers as the docs say, who may do nothing."""
RULES: dict[str, list[tuple[tuple[str, ...], tuple[str, ...]]]] = {
    DRIVERS: [(("pods", "services", "configmaps", "persistentvolumeclaims"), ("*",))],
    SUBMITTER: [
        (
            # Spark 4.3 makes policies for the network, too.
            ("pods", "services", "configmaps", "networkpolicies"),
            # In client mode Spark removes its executors as a collection.
            ("create", "get", "list", "watch", "patch", "delete", "deletecollection"),
        ),
    ],
    ASKER: [(("pods",), ("list", "delete"))],
}
RBAC = "rbac.authorization.k8s.io"
NETWORKS = "networking.k8s.io"
ROLE, DRIVER, EXECUTOR = "spark-role", "spark-role=driver", "spark-role=executor"


class Cluster:
    """A control plane and a node, each part a process.

    Attributes:
        plane: its control plane.
        node: its only node.
        shared: a folder of this machine that pods see at the same path.
        pods: the client's API of pods.
    """

    def __init__(self, folder: Path, shared: Path) -> None:
        self.shared = shared
        self.plane = ControlPlane(folder / "plane", ADDRESS, SUBMITTER, ASKER, NOBODY)
        self.node = Node(folder / "node", self.plane.config, self.plane.authority)
        (shared / "uploads").mkdir(parents=True)
        self._login = client.Configuration()
        config.load_kube_config(str(self.plane.config), client_configuration=self._login)
        self.pods = client.CoreV1Api(client.ApiClient(self._login))

    @property
    def url(self) -> str:
        return self.plane.url

    def start(self) -> None:
        make_bridge()
        self.plane.start()
        self.node.start()
        self.node.kubelet.await_ready(self.has_node)
        self._make_namespace()

    def has_node(self) -> bool:
        """Return whether its node takes pods."""
        conditions = [each.status.conditions or [] for each in self.pods.list_node().items]
        return any(c.type == "Ready" and c.status == "True" for each in conditions for c in each)

    def _make_namespace(self) -> None:
        self.pods.create_namespace({"metadata": {"name": NAMESPACE}})
        account = {"metadata": {"name": DRIVERS}}
        self.pods.create_namespaced_service_account(NAMESPACE, account)
        rights = client.RbacAuthorizationV1Api(client.ApiClient(self._login))
        for name, rules in RULES.items():
            role: dict[str, Any] = {
                "metadata": {"name": name},
                "rules": [
                    {
                        "apiGroups": ["", NETWORKS],
                        "resources": list(resources),
                        "verbs": list(verbs),
                    }
                    for resources, verbs in rules
                ],
            }
            rights.create_namespaced_role(NAMESPACE, role)
            subject = {"kind": "User", "apiGroup": RBAC, "name": name}
            if name == DRIVERS:
                subject = {"kind": "ServiceAccount", "namespace": NAMESPACE, "name": name}
            binding = {
                "metadata": {"name": name},
                "subjects": [subject],
                "roleRef": {"kind": "Role", "apiGroup": RBAC, "name": name},
            }
            rights.create_namespaced_role_binding(NAMESPACE, binding)

        def has_account() -> bool:
            with contextlib.suppress(client.ApiException):
                return bool(self.pods.read_namespaced_service_account("default", NAMESPACE))
            return False

        await_that("the namespace has its service account", has_account)

    def login_of(self, user: str) -> Path:
        """Return the kube config of a user."""
        return self.plane.write_config(f"{user}.config", user, NAMESPACE)

    def of_role(self, selector: str) -> list[Any]:
        """Return the pods of a role, the newest last."""
        found = self.pods.list_namespaced_pod(NAMESPACE, label_selector=selector).items
        return sorted(found, key=lambda pod: pod.metadata.creation_timestamp)

    def driver(self) -> Any:
        """Return the newest driver's pod."""
        return self.of_role(DRIVER)[-1]

    def running(self, selector: str) -> list[Any]:
        return [pod for pod in self.of_role(selector) if pod.status.phase == "Running"]

    def only(self, selector: str) -> Any:
        """Return the only pod of a role that runs."""
        (pod,) = self.running(selector)
        return pod

    def is_alive(self, pod: Any) -> bool:
        """Whether the pod's only container runs on the node, whatever the API server says."""
        return _container_of(pod) in self.node.tasks()

    def kill(self, pod: Any) -> None:
        """Kill what the pod runs on its node, without a word to the API server."""
        self.node.ctr("tasks", "kill", "--signal", "SIGKILL", _container_of(pod))
        await_that("the container has ended", lambda: not self.is_alive(pod))

    def await_successor(self, executor: Any) -> None:
        """Wait until an executor has ended and another one runs."""
        await_that("the executor has ended", lambda: not self.is_alive(executor))

        def has_come() -> bool:
            uids = {pod.metadata.uid for pod in self.running(EXECUTOR)}
            return len(uids) == 1 and executor.metadata.uid not in uids

        await_that("there is another executor", has_come)

    def delete(self, pod: Any, *, grace_s: int | None = None) -> None:
        """Delete a pod; with a grace of 0 seconds it is forgotten at once, and killed."""
        with contextlib.suppress(client.ApiException):
            self.pods.delete_namespaced_pod(
                pod.metadata.name, NAMESPACE, grace_period_seconds=grace_s
            )

    def evict(self, pod: Any) -> None:
        """Evict a pod as a node does that is drained."""
        body = {"metadata": {"name": pod.metadata.name, "namespace": NAMESPACE}}
        self.pods.create_namespaced_pod_eviction(pod.metadata.name, NAMESPACE, body)

    def log_of(self, pod: Any) -> str:
        """Return what the containers of a pod have written on the node."""
        return self.node.log_of(pod.metadata.uid)

    def end_pods(self, selector: str = ROLE) -> None:
        """Delete all pods of a role, and wait until nothing of them runs."""
        self.pods.delete_collection_namespaced_pod(
            NAMESPACE, label_selector=selector, grace_period_seconds=0
        )
        await_that("no pod is left", lambda: not self.of_role(selector))
        await_that("no container is left", lambda: not self.node.tasks())

    def heal(self) -> None:
        """Start whatever a test has killed."""
        if not self.plane.api.is_alive:
            self.plane.start_api()
        if not self.node.kubelet.is_alive:
            self.node.kubelet.start()
        self.node.kubelet.await_ready(self.has_node)

    def stop(self) -> None:
        self.node.stop()
        self.plane.stop()

    def spark_conf(self) -> Mapping[str, str]:
        """Return the settings of an application whose pods see folders of this machine."""
        prefix = "spark.kubernetes"
        return {
            f"{prefix}.container.image": SPARK,
            f"{prefix}.file.upload.path": f"file://{self.shared}/uploads",
            f"{prefix}.authenticate.driver.serviceAccountName": DRIVERS,
            # Nothing brings the address of a service to its pods.
            f"{prefix}.driver.master": self.url,
            f"{prefix}.driver.request.cores": "0.1",
            f"{prefix}.executor.request.cores": "0.1",
            f"{prefix}.report.interval": "500ms",
            f"{prefix}.allocation.batch.delay": "200ms",
            "spark.executor.instances": "1",
            "spark.executor.memory": "640m",
            "spark.driver.memory": "1g",
            "spark.executor.extraJavaOptions": QUICK,
            "spark.sql.shuffle.partitions": "1",
            "spark.sql.session.timeZone": "UTC",
            **self._volumes("driver"),
            **self._volumes("executor"),
        }

    def _volumes(self, part: str) -> dict[str, str]:
        found = {}
        for number, folder in enumerate(shared_folders(self.shared)):
            prefix = f"spark.kubernetes.{part}.volumes.hostPath.folder-{number}"
            found[f"{prefix}.mount.path"] = found[f"{prefix}.options.path"] = folder
        return found


def _container_of(pod: Any) -> str:
    """Return the id that containerd has given to the pod's only container."""
    (container,) = pod.status.container_statuses
    return str(container.container_id).partition("://")[2]


@contextlib.contextmanager
def running(cluster: Cluster) -> Iterator[Cluster]:
    """Run it for the block."""
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
