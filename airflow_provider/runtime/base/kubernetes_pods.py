"""Drivers in pods of Kubernetes, through the Python client of its API server.

Each driver's pod has the token of its submission as a label, by which it is found before the driver
has written anything. A client ends only a pod that has the label.
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
    SparkStreamError,
    SubmissionRefusedError,
    WrongAnswerError,
)
from airflow_provider.runtime.errors.explanation import first_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

KUBERNETES: Final = "kubernetes"
"""The launcher's name in the handles of drivers that ``spark-submit`` puts into pods."""
LABEL: Final = "spark-stream-driver-id"
CONTAINER: Final = "spark-kubernetes-driver"
"""The driver's container, unless a pod template has named it."""
TIMEOUT: Final = (5.0, ANSWER_S)
"""Seconds to connect, and for a part of an answer."""
_ROLE: Final = "spark-role"  # Spark's own: ``driver`` or ``executor``
_MOST_LISTED: Final = 100
_PHASES: Final = {
    "Pending": LaunchState.QUEUED,
    "Running": LaunchState.RUNNING,
    "Succeeded": LaunchState.ENDED,
    "Failed": LaunchState.ENDED,
}
_GONE: Final = frozenset({http.HTTPStatus.NOT_FOUND, http.HTTPStatus.CONFLICT})  # or a later pod
_WRONG: Final = (AttributeError, KeyError, TypeError, ValueError)  # of the client, for an answer


def pod_handle(token: str, namespace: str) -> Handle:
    """Return the handle of a driver that ``spark-submit`` puts into a pod."""
    return Handle(driver_id=token, launcher=KUBERNETES, id=token, location={"namespace": namespace})


@contextlib.contextmanager
def kubernetes_errors(named: str, what: str, rights: str) -> Iterator[None]:
    """Raise errors of the Python client as ours, each in one line.

    Args:
        named: the API server, for messages.
        what: the request, for messages.
        rights: the verbs that it needs, for a request that is denied.

    Raises:
        SubmissionRefusedError: the API server refuses.
        LauncherAwayError: it does not answer, or not in a form that is known.
    """
    from kubernetes.client import ApiException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except SparkStreamError:
        raise
    except ApiException as error:
        status = int(error.status or 0)
        said = f"{named}: {what}: answered {status}: {message_of(error)}"
        if is_transient(status) or not status:
            raise LauncherAwayError(said) from None
        if status == http.HTTPStatus.UNAUTHORIZED:
            said += "; it does not know the login of this process"
        if status == http.HTTPStatus.FORBIDDEN:
            said += f"; this process's account needs {rights}"
        raise SubmissionRefusedError(said) from None
    except (HTTPError, OSError) as error:
        cause = getattr(error, "reason", None) or error  # without the words about retries
        line = first_line(str(cause) or type(error).__name__)
        raise LauncherAwayError(f"{named}: does not answer: {line}") from None
    except _WRONG as error:
        line = f"{type(error).__name__}: {first_line(str(error))}"
        raise WrongAnswerError(f"{named}: {what}: not an answer that is known: {line}") from None


def message_of(error: Any) -> str:
    """Return the first line of the message of a refusal."""
    said = refusal_in(error).get("message")
    return first_line(said if isinstance(said, str) else _body_of(error))


def refusal_in(error: Any) -> dict[str, Any]:
    """Return the ``Status`` object of a refusal; an empty one if it has none."""
    try:
        found = read_json(_body_of(error))
    except ValueError:
        found = {}
    return found if isinstance(found, dict) else {}


def _body_of(error: Any) -> str:
    body = error.body or error.reason or ""
    return body.decode(errors="replace") if isinstance(body, bytes) else str(body)


class PodsClient:
    """Polls and ends pods of drivers, and reads their logs.

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
                return _status_of(_current(pods))
        except (ConfigError, LauncherAwayError) as error:
            return LaunchStatus(LaunchState.UNKNOWN, None, str(error))

    def end(self, handle: Handle) -> None:
        """Delete the driver's pod, unless it is over or deleted. Idempotent."""
        for pod in self._pods(handle):
            if _is_over(pod) or _is_deleted(pod):
                continue
            with self._explained(f"delete pod {pod.metadata.name}"):
                self._delete(pod.metadata.name, pod.metadata.uid, _namespace(handle))

    def log(self, handle: Handle, *, lines: int, most_bytes: int) -> bytes | None:
        """Return the end of the driver's log, each line with its time; None without a log.

        Args:
            handle: the driver's.
            lines: the number of lines from the end.
            most_bytes: the number of bytes that are read at most, from the first of these lines on.

        Raises:
            ConfigError: the API server refuses.
            LauncherAwayError: it does not answer.
        """
        from kubernetes.client import ApiException

        pods = self._pods(handle)
        if not pods:
            return None
        with self._explained("a driver's log", "the verb get on pods/log there"):
            pod = _current(pods)
            container = _driver_of(pod)
            state = container and container.state
            if not state or not (state.running or state.terminated):
                return None  # it has not begun to write
            try:
                response = self._api.read_namespaced_pod_log(
                    pod.metadata.name,
                    _namespace(handle),
                    container=container.name,
                    tail_lines=lines,
                    limit_bytes=most_bytes,
                    timestamps=True,
                    _preload_content=False,
                    _request_timeout=TIMEOUT,
                )
            except ApiException as error:
                if error.status == http.HTTPStatus.NOT_FOUND:
                    return None
                raise
            with contextlib.closing(response):
                found: bytes = response.read(most_bytes)
                return found

    def _delete(self, name: str, uid: str, namespace: str) -> None:
        from kubernetes.client import ApiException

        try:
            self._api.delete_namespaced_pod(
                name, namespace, body={"preconditions": {"uid": uid}}, _request_timeout=TIMEOUT
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
                _request_timeout=TIMEOUT,
            ).items
            # Whatever the answer has: nothing else is ours.
            return [pod for pod in found if _labels(pod).get(LABEL) == handle.driver_id]

    def _explained(
        self, what: str, rights: str = "the verbs list and delete on pods there"
    ) -> contextlib.AbstractContextManager[None]:
        return kubernetes_errors(self._named, what, rights)


def _namespace(handle: Handle) -> str:
    return handle.location.get("namespace", "default")


def _labels(pod: Any) -> Mapping[str, str]:
    return pod.metadata.labels or {}


def _current(pods: list[Any]) -> Any:
    """Return the pod that lives: there are several if the driver was started again."""
    return max(pods, key=lambda pod: (not _is_over(pod), not _is_deleted(pod)))


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
    named = (each for each in containers if each.name == CONTAINER)
    return next(named, containers[0] if len(containers) == 1 else None)
