"""Login at the API server of Kubernetes for drivers that ``spark-submit`` puts into pods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base.kubernetes_pods import PodsClient
from airflow_provider.runtime.errors.explanation import first_line

if TYPE_CHECKING:
    from collections.abc import Mapping

_WRONG: Final = (AttributeError, KeyError, TypeError, ValueError)  # of the client, for a file


def pods_client(master: str, context: str | None, environ: Mapping[str, str]) -> PodsClient | str:
    """Return a client with the login of this process, or what it lacks.

    Args:
        master: Spark's, ``k8s://`` and the address of the API server.
        context: of the kube config; None for its current one.
        environ: says where the kube config is; a pod without one has its service account.
    """
    try:
        from kubernetes import client, config
        from yaml import YAMLError
    except ImportError:
        return "install the package kubernetes"
    found = client.Configuration()
    try:
        try:
            config.load_kube_config(environ.get("KUBECONFIG"), context, found, persist_config=False)
        except config.ConfigException:
            if context is not None:
                raise
            config.load_incluster_config(found)
    except (config.ConfigException, YAMLError, OSError, *_WRONG) as error:
        line = first_line(str(error))
        return f"set KUBECONFIG to a file with a login, or give the pod a service account ({line})"
    address = master.removeprefix("k8s://")
    host = address if "://" in address else f"https://{address}"  # as Spark takes it
    _keep_host(found, host)
    found.retries = 0
    return PodsClient(client.CoreV1Api(client.ApiClient(found)), host)


def _keep_host(configuration: Any, host: str) -> None:
    """Let the address be Spark's, also when the client has refreshed a token by the kube config."""
    refresh = configuration.refresh_api_key_hook

    def refresh_login(its: Any) -> None:
        if refresh is not None:
            refresh(its)
        its.refresh_api_key_hook, its.host = refresh_login, host

    configuration.refresh_api_key_hook, configuration.host = refresh_login, host
