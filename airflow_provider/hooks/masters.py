"""The masters of ``spark-submit`` that can be asked about a driver which has not spoken yet.

In deploy mode cluster the end of ``spark-submit`` says nothing of the driver, and the driver says
nothing before it has the lease: until then its cluster is asked, by the token of the submission.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from airflow_provider.hooks.kubernetes_pods import pods_client
from airflow_provider.hooks.yarn import (
    ADDRESS,
    YARN,
    YarnClient,
    resource_managers,
    user_name,
    yarn_handle,
)
from airflow_provider.runtime.base.kubernetes_pods import KUBERNETES, pod_handle

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Connection

    from airflow_provider.runtime.api.launchers import Handle
    from airflow_provider.runtime.base.kubernetes_pods import PodsClient

log = logging.getLogger(__name__)

_NAMESPACE: Final = "spark.kubernetes.namespace"
_CONTEXT: Final = "spark.kubernetes.context"


def master_of(connection: Connection) -> str:
    """Return what ``SparkSubmitHook`` makes of a connection, whose import takes 60 ms."""
    host, port = connection.host or "", f":{connection.port}" if connection.port else ""
    is_whole = connection.conn_type == "spark" and host and ("://" in host or not port)
    return f"{host}{port}" if is_whole else f"{connection.conn_type}://{host}{port}"


def handle_on(connection: Connection, token: str, conf: Mapping[str, str]) -> Handle | None:
    """Return the handle of a driver in deploy mode cluster; None for a master without one.

    Args:
        connection: the Spark connection.
        token: the driver id.
        conf: Spark's configuration as far as it is known here.
    """
    master = master_of(connection)
    if master.startswith("yarn"):
        return yarn_handle(token)
    if master.startswith("k8s"):
        chosen = connection.extra_dejson.get("namespace") or conf.get(_NAMESPACE) or "default"
        return pod_handle(token, chosen)
    return None


def open_client(
    launcher: str, connection: Connection, environ: Mapping[str, str]
) -> YarnClient | PodsClient | None:
    """Return the client for handles of a launcher; None, with a line in the log, if there is none.

    Raises:
        ConfigError: the connection or ``yarn-site.xml`` is wrong.
    """
    named = f"conn_id {connection.conn_id!r}"
    if launcher == YARN:
        addresses = resource_managers(connection.extra_dejson, environ, named=named)
        if addresses:
            return YarnClient(addresses, user_name(environ))
        lacks = (
            f"give {ADDRESS} in the connection's extra, or set HADOOP_CONF_DIR to the folder of a "
            "yarn-site.xml that names the ResourceManager"
        )
    elif launcher == KUBERNETES:
        conf = connection.extra_dejson.get("conf")
        context = conf.get(_CONTEXT) if isinstance(conf, dict) else None
        found = pods_client(master_of(connection), context, environ)
        if not isinstance(found, str):
            return found
        lacks = found
    else:
        return None
    log.info(
        "%s: %s cannot be asked about a driver that has not come up; to allow it, %s",
        named,
        launcher,
        lacks,
    )
    return None
