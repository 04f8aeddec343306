"""A stand-in for ``spark-submit`` in deploy mode cluster: it makes the driver's pod, without a JVM.

It is in the place of ``$SPARK_HOME/bin/spark-submit``, reads the options that Kubeflow's operator
gives, and makes of them what Spark makes: image, labels, arguments, and the template's owner.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml
from kubernetes import client, config

PREFIX = "spark.kubernetes."
LABEL = f"{PREFIX}driver.label."
CONTAINER = "spark-kubernetes-driver"


def pod_of(arguments: list[str]) -> tuple[str, dict[str, Any]]:
    """Return namespace and pod for the arguments of ``spark-submit``."""
    conf: dict[str, str] = {}
    rest = list(arguments)
    while rest and rest[0].startswith("--"):
        option, value = rest[:2]
        rest = rest[2:]
        if option == "--conf":
            name, _, text = value.partition("=")
            conf[name] = text
    template = yaml.safe_load(Path(conf[f"{PREFIX}driver.podTemplateFile"]).read_text())
    labels = {name.removeprefix(LABEL): v for name, v in conf.items() if name.startswith(LABEL)}
    image = conf[f"{PREFIX}driver.container.image"]
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "containers": [{"name": CONTAINER, "image": image, "args": ["driver", *rest]}],
    }
    account = conf.get(f"{PREFIX}authenticate.driver.serviceAccountName")
    spec |= {"serviceAccountName": account} if account else {}
    metadata = {
        "name": conf[f"{PREFIX}driver.pod.name"],
        "labels": {**labels, "spark-role": "driver"},
        "ownerReferences": template["metadata"]["ownerReferences"],
    }
    return conf[f"{PREFIX}namespace"], {"metadata": metadata, "spec": spec}


def main() -> None:
    namespace, pod = pod_of(sys.argv[1:])
    config.load_kube_config()
    try:
        client.CoreV1Api().create_namespaced_pod(namespace, pod)
    except client.ApiException as error:
        sys.exit(f"Exception in thread main: {error.body}")


if __name__ == "__main__":
    main()
