"""Drivers in pods of Kubernetes, through the Python client of its API server.

``spark-submit`` labels the driver's pod with the token of its submission, by which it is found
before the driver has written anything. A client ends only a pod that has the label.
"""

from __future__ import annotations

import contextlib
import http
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.api.launchers import Handle, LaunchState, LaunchStatus
from airflow_provider.runtime.base.service_answers import ANSWER_S, is_transient
from airflow_provider.runtime.base.typed_json import read_json
from airflow_provider.runtime.errors import (
    ConfigError,
    LauncherAwayError,
    SubmissionRefusedError,
    WrongAnswerError,
)
from airflow_provider.runtime.errors.explanation import first_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

KUBERNETES: Final = "kubernetes"
"""The launcher's name in the handles of drivers in pods."""
LABEL: Final = "spark-stream-driver-id"
_ROLE: Final = "spark-role"  # Spark's own: ``driver`` or ``executor``
_CONTAINER: Final = "spark-kubernetes-driver"  # unless a pod template has named it
_TIMEOUT: Final = (5.0, ANSWER_S)  # to connect, and for a part of an answer
_MOST_LISTED: Final = 100
_PHASES: Final = {
    "Pending": LaunchState.QUEUED,
    "Running": LaunchState.RUNNING,
    "Succeeded": LaunchState.ENDED,
    "Failed": LaunchState.ENDED,
}
_DENIED: Final[dict[int, str]] = {
    http.HTTPStatus.UNAUTHORIZED: "; it does not know the login of this process",
    http.HTTPStatus.FORBIDDEN: (
        "; this process's account needs the verbs list and delete on pods there"
    ),
}
_GONE: Final = frozenset({http.HTTPStatus.NOT_FOUND, http.HTTPStatus.CONFLICT})  # or a later pod
_WRONG: Final = (AttributeError, KeyError, TypeError, ValueError)  # of the client, for an answer


def pod_handle(token: str, namespace: str) -> Handle:
    """Return the handle of a driver that ``spark-submit`` puts into a pod."""
    return Handle(driver_id=token, launcher=KUBERNETES, id=token, location={"namespace": namespace})


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


class PodsClient:
    """Polls and ends pods of drivers; see :class:`.ClusterClient`.

    Args:
        api: the client's ``CoreV1Api``.
        address: the API server's, for messages.
    """

    def __init__(self, api: Any, address: str) -> None:
        self._api, self._named = api, f"kubernetes {address}"

    def check(self, handle: Handle) -> str:
        """Return a line if pods in the handle's namespace can be listed.

        Raises:
            ConfigError: the API server refuses.
            LauncherAwayError: it does not answer.
        """
        self._pods(handle)
        return f"pods of {_namespace(handle)} can be listed"

    def poll(self, handle: Handle) -> LaunchStatus:
        """Return the status of the driver's pod; ``GONE`` also before it was made.

        A pod without a node is queued, also without end; one that has a node has to come up.
        """
        try:
            pods = self._pods(handle)
            if not pods:
                reason = f"{_namespace(handle)} has no pod with the label {LABEL}"
                return LaunchStatus(LaunchState.GONE, None, reason)
            with self._explained("an answer"):
                # More than one, if spark-submit was started again: the one that lives.
                alive = max(pods, key=lambda pod: (not _is_over(pod), not _is_deleted(pod)))
                return _status_of(alive)
        except (ConfigError, LauncherAwayError) as error:
            return LaunchStatus(LaunchState.UNKNOWN, None, str(error))

    def end(self, handle: Handle) -> None:
        """Delete the driver's pod, unless it is over or deleted. Idempotent."""
        for pod in self._pods(handle):
            if _is_over(pod) or _is_deleted(pod):
                continue
            with self._explained(f"delete pod {pod.metadata.name}"):
                self._delete(pod.metadata.name, pod.metadata.uid, _namespace(handle))

    def _delete(self, name: str, uid: str, namespace: str) -> None:
        from kubernetes.client import ApiException

        try:
            self._api.delete_namespaced_pod(
                name, namespace, body={"preconditions": {"uid": uid}}, _request_timeout=_TIMEOUT
            )
        except ApiException as error:
            if error.status not in _GONE:
                raise

    def _pods(self, handle: Handle) -> list[Any]:
        with self._explained(f"list pods of {_namespace(handle)}"):
            found = self._api.list_namespaced_pod(
                _namespace(handle),
                label_selector=f"{LABEL}={handle.driver_id},{_ROLE}=driver",
                limit=_MOST_LISTED,
                _request_timeout=_TIMEOUT,
            ).items
            # Whatever the answer has: nothing else is ours.
            return [pod for pod in found if _labels(pod).get(LABEL) == handle.driver_id]

    @contextlib.contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        try:
            yield
        except ApiException as error:
            status = int(error.status or 0)
            said = f"{self._named}: {what}: answered {status}: {_message_of(error.body)}"
            if is_transient(status) or not status:
                raise LauncherAwayError(said) from None
            raise SubmissionRefusedError(said + _DENIED.get(status, "")) from None
        except (HTTPError, OSError) as error:
            cause = getattr(error, "reason", None) or error  # without the words about retries
            line = first_line(str(cause) or type(error).__name__)
            raise LauncherAwayError(f"{self._named}: does not answer: {line}") from None
        except _WRONG as error:
            line = f"{type(error).__name__}: {first_line(str(error))}"
            raise WrongAnswerError(
                f"{self._named}: {what}: not an answer that is known: {line}"
            ) from None


def _message_of(body: Any) -> str:
    """Return what an API server says in the ``Status`` of a refusal, or the body's first line."""
    with contextlib.suppress(*_WRONG):
        return first_line(str(read_json(body)["message"]))
    return first_line(str(body or ""))


def _namespace(handle: Handle) -> str:
    return handle.location.get("namespace", "default")


def _labels(pod: Any) -> Mapping[str, str]:
    return pod.metadata.labels or {}


def _is_over(pod: Any) -> bool:
    return _PHASES.get(pod.status.phase) is LaunchState.ENDED


def _is_deleted(pod: Any) -> bool:
    """Whether the pod was deleted: it stays until its node has ended it, and longer without one."""
    return pod.metadata.deletion_timestamp is not None


def _status_of(pod: Any) -> LaunchStatus:
    state = _PHASES.get(pod.status.phase, LaunchState.UNKNOWN)
    conditions = pod.status.conditions or []
    unscheduled = next((c for c in conditions if c.type == "PodScheduled"), None)
    has_node = bool(pod.spec.node_name)
    has_node = has_node or (unscheduled is not None and unscheduled.status == "True")
    if state is LaunchState.QUEUED and has_node:
        state = LaunchState.RUNNING  # such as one whose image cannot be pulled
    container = _driver_of(pod)
    code, said = None, pod.status.message or ""
    if container is not None and container.state is not None:
        ended, waits = container.state.terminated, container.state.waiting
        code = ended.exit_code if ended is not None else None
        said = said or " ".join(
            text for each in (ended, waits) if each for text in (each.reason, each.message) if text
        )
    if not has_node and unscheduled is not None:
        said = said or unscheduled.message or ""
    if pod.status.phase == "Succeeded":
        code = 0
    deleted = ", deleted" if _is_deleted(pod) else ""
    reason = first_line(f"pod {pod.metadata.name} {pod.status.phase}{deleted} {said}")
    return LaunchStatus(state, code if state is LaunchState.ENDED else None, reason)


def _driver_of(pod: Any) -> Any:
    """Return the status of the driver's container, or of the only one."""
    containers = pod.status.container_statuses or []
    named = (each for each in containers if each.name == _CONTAINER)
    return next(named, containers[0] if len(containers) == 1 else None)
