"""A real control plane for SparkApplications: users with the rights of the page, and no node."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import yaml
from kubernetes import client, config

from tests.real.kubernetes.control_plane import ControlPlane
from tests.real.kubernetes.servers import await_that

NAMESPACE, ASKER, NOBODY = "streams", "asker", "nobody"
PAGE = Path(__file__).parents[3] / "docs" / "clusters.md"
LABEL = "spark-stream-driver-id"
DRIVER = "spark-kubernetes-driver"


class Plane:
    """A control plane with users, CRDs, and what a node would write.

    Attributes:
        plane: etcd, the API server, its controllers and its scheduler.
        api: the client of the administrator.
    """

    def __init__(self, folder: Path) -> None:
        self.plane = ControlPlane(folder, "127.0.0.1", ASKER, NOBODY)
        login = client.Configuration()
        config.load_kube_config(str(self.plane.config), client_configuration=login)
        self.api = client.ApiClient(login)
        self.pods, self.custom = client.CoreV1Api(self.api), client.CustomObjectsApi(self.api)

    def start(self) -> None:
        self.plane.start()
        self.pods.create_namespace({"metadata": {"name": NAMESPACE}})
        await_that("the namespace has its account", self._has_account)
        self._grant(yaml.safe_load(role_of_the_page()))

    def _has_account(self) -> bool:
        with contextlib.suppress(client.ApiException):
            return bool(self.pods.read_namespaced_service_account("default", NAMESPACE))
        return False

    def _grant(self, role: dict[str, Any]) -> None:
        """Give one user exactly the rights that the page names, of both operators."""
        role["rules"][0]["apiGroups"].append("spark.apache.org")
        rights = client.RbacAuthorizationV1Api(self.api)
        rights.create_namespaced_role(NAMESPACE, role)
        group = "rbac.authorization.k8s.io"
        binding = {
            "metadata": {"name": ASKER},
            "subjects": [{"kind": "User", "apiGroup": group, "name": ASKER}],
            "roleRef": {"kind": "Role", "apiGroup": group, "name": role["metadata"]["name"]},
        }
        rights.create_namespaced_role_binding(NAMESPACE, binding)

    def open(self, operator: str, user: str = ASKER, **options: str) -> Any:
        """Return a launcher as Airflow makes it of a user's connection."""
        from airflow.sdk import Connection

        from airflow_provider.extensions.spark_application.launcher import SPARK_APPLICATION

        file = self.plane.write_config(f"{user}.config", user, NAMESPACE)
        extra = json.dumps({"kube_config_path": str(file), "namespace": NAMESPACE})
        given = {
            "operator": operator,
            "entry_point": "local:///opt/driver.py",
            "runtime": "local:///opt/runtime.zip",
            "spark_version": "4.3.0",
            "image": "localhost/spark:1",
        }
        connection = Connection(conn_id="kube", conn_type="kubernetes", extra=extra)
        return SPARK_APPLICATION.open(connection, {**given, **options}, "conn_id 'kube'")

    def applications(self, operator: str) -> list[Any]:
        listed = self.custom.list_namespaced_custom_object(*where(operator))
        return list(listed["items"])

    def put_status(self, operator: str, name: str, status: Any) -> None:
        """Write a status as an operator does."""
        self.custom.patch_namespaced_custom_object_status(
            *where(operator), name, {"status": status}
        )

    def driver(self, token: str) -> Any:
        """Return the driver's pod; None before there is one."""
        selector = f"{LABEL}={token},spark-role=driver"
        found = self.pods.list_namespaced_pod(NAMESPACE, label_selector=selector).items
        return found[0] if found else None

    def put_phase(self, token: str, phase: str, **state: Any) -> None:
        """Write the status of a driver's pod as its node does."""
        container = {"name": DRIVER, "image": "x", "imageID": "x", "ready": not state}
        container |= {"restartCount": 0, "state": state or {"running": {}}}
        status = {"phase": phase, "containerStatuses": [container]}
        name = self.driver(token).metadata.name
        self.pods.patch_namespaced_pod_status(name, NAMESPACE, {"status": status})


def where(operator: str) -> tuple[str, str, str, str]:
    group, version = {
        "kubeflow": ("sparkoperator.k8s.io", "v1beta2"),
        "apache": ("spark.apache.org", "v1"),
    }[operator]
    return group, version, NAMESPACE, "sparkapplications"


def role_of_the_page() -> str:
    (found,) = re.findall(r"```yaml\n(apiVersion: rbac.*?)```", PAGE.read_text(), re.DOTALL)
    return str(found)
