"""Operators for Spark: their CRDs, which Kubeflow's module has, and Kubeflow's controller."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client

from tests.real.fetching import go_module, program_of
from tests.real.hadoop.daemons import java_home
from tests.real.kubernetes.control_plane import ControlPlane
from tests.real.kubernetes.servers import Server, await_that
from tests.real.ports import free_ports

MODULE = Path(__file__).parent / "spark_operator" / "go.mod"
KUBEFLOW = "github.com/kubeflow/spark-operator/v2"
CRD_OF_KUBEFLOW = "config/crd/bases/sparkoperator.k8s.io_sparkapplications.yaml"
TYPES_OF_KUBEFLOW = "api/v1beta2/sparkapplication_types.go"
CRD_OF_APACHE = "SPARK_APPLICATION_CRD_OF_APACHE"
"""The variable with the path of that CRD, of which Maven has nothing."""
_STATE = re.compile(r'ApplicationState\w+ +ApplicationStateType = "(\w*)"')


def crd_of(operator: str) -> dict[str, Any]:
    """Return an operator's CRD; the test is skipped where it cannot be had."""
    if operator == "kubeflow":
        file = go_module(MODULE, KUBEFLOW) / CRD_OF_KUBEFLOW
    elif CRD_OF_APACHE in os.environ:
        file = Path(os.environ[CRD_OF_APACHE])
    else:
        pytest.skip(
            "spark-kubernetes-operator: Apache publishes no artifact with its CRD; give its file "
            f"in {CRD_OF_APACHE}"
        )
    found: dict[str, Any] = yaml.safe_load(file.read_text())
    return found


def states_of(operator: str) -> set[str]:
    """Return the states that an operator publishes."""
    if operator == "kubeflow":
        return set(_STATE.findall((go_module(MODULE, KUBEFLOW) / TYPES_OF_KUBEFLOW).read_text()))
    version = next(v for v in crd_of(operator)["spec"]["versions"] if v["name"] == "v1")
    status = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    return set(status["currentState"]["properties"]["currentStateSummary"]["enum"])


def install(crd: dict[str, Any], api: client.ApiClient) -> None:
    """Install a CRD, and wait until the API server has its resource."""
    crds = client.ApiextensionsV1Api(api)
    crds.create_custom_resource_definition(crd)
    name = crd["metadata"]["name"]

    def is_established() -> bool:
        conditions = crds.read_custom_resource_definition(name).status.conditions or []
        return any(each.type == "Established" and each.status == "True" for each in conditions)

    await_that(f"{name} is established", is_established)


def spark_home(folder: Path) -> Path:
    """Return a Spark of which ``spark-submit`` is a stand-in."""
    program = folder / "spark" / "bin" / "spark-submit"
    program.parent.mkdir(parents=True)
    code = Path(__file__).with_name("submit_stand_in.py")
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{code}" "$@"\n')
    program.chmod(0o755)
    return folder / "spark"


def kubeflow_controller(plane: ControlPlane, folder: Path, home: Path) -> Server:
    """Return Kubeflow's controller, which submits with the Spark of *home*."""
    program = program_of(MODULE, f"{KUBEFLOW}/cmd/operator")
    host, _, port = plane.url.removeprefix("https://").partition(":")
    (health,) = free_ports(1)
    environ = {
        "KUBERNETES_SERVICE_HOST": host,
        "KUBERNETES_SERVICE_PORT": port,
        "KUBECONFIG": str(plane.config),
        "SPARK_HOME": str(home),
        "JAVA_HOME": java_home(),
    }
    options: dict[str, object] = {
        "kubeconfig": plane.config,
        "namespaces": "streams",
        "health-probe-bind-address": f"127.0.0.1:{health}",
        "enable-ui-service": "false",
        "leader-election": "false",
    }
    server = Server("spark-operator", folder, program, options, environ=environ)
    server._command[1:1] = ["controller", "start"]
    return server


def other_crds() -> list[dict[str, Any]]:
    """Return the further CRDs of Kubeflow's operator."""
    folder = (go_module(MODULE, KUBEFLOW) / CRD_OF_KUBEFLOW).parent
    files = sorted(folder.glob("*.yaml"))
    return [yaml.safe_load(file.read_text()) for file in files if file.name not in CRD_OF_KUBEFLOW]
