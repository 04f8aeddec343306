"""Launcher ``spark-application``: SparkApplications of Kubeflow's or Apache's operator.

The application's name follows from the token, so the API server itself refuses a second one. The
token is also a label of the application and of its driver's pod: an application without it is not
ours. The operator starts the driver once and never again (``restartPolicy``), since Airflow's next
try submits another driver.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http
import uuid
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from airflow_provider.extensions.spark_application.options import (
    KIND,
    SparkApplicationOptions,
    check_operator,
    check_token,
    name_of,
)
from airflow_provider.extensions.spark_application.resources import (
    PLURAL,
    Answer,
    Resource,
    manifest_of,
    resource_of,
)
from airflow_provider.extensions.spark_application.timed_lines import lines_after
from airflow_provider.runtime.api.errors import (
    ConfigError,
    LauncherAwayError,
    SubmissionRefusedError,
)
from airflow_provider.runtime.api.kit.clock import SystemClock
from airflow_provider.runtime.api.kit.extras import require_extra
from airflow_provider.runtime.api.kit.kubernetes_pods import (
    LABEL,
    TIMEOUT,
    PodsClient,
    kubernetes_errors,
    message_of,
    refusal_in,
)
from airflow_provider.runtime.api.kit.messages import first_line
from airflow_provider.runtime.api.kit.service_answers import ANSWER_S, answer_as
from airflow_provider.runtime.api.kit.typed_json import read_json
from airflow_provider.runtime.api.launchers import (
    Application,
    Handle,
    LaunchState,
    LaunchStatus,
    LogPart,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Connection

    from airflow_provider.runtime.api.kit.clock import Clock

T = TypeVar("T")

_MOST_BYTES: Final = 16 << 20  # of one answer; an object has 1.5 MiB at most
_STEP_BYTES: Final = 1 << 16
_LOG_LINES: Final = 1000
_LOG_BYTES: Final = 4 << 20
_NO_SUSPEND: Final = 'unknown field "spec.suspend"'
_RIGHTS: Final = f"the verbs create, get and delete on {PLURAL} there"


class SparkApplicationLauncher:
    """Starts drivers as SparkApplications.

    Args:
        options: see :class:`SparkApplicationOptions`; its namespace is given.
        client: the Python client's ``ApiClient``.
        clock: bounds the time of an answer.
    """

    kind: ClassVar[str] = KIND

    def __init__(
        self, options: SparkApplicationOptions, client: Any, clock: Clock | None = None
    ) -> None:
        from kubernetes.client import CoreV1Api, CustomObjectsApi

        check_operator(options.operator)
        self._options, self._clock = options, clock or SystemClock()
        address = client.configuration.host
        self._api, self._pods = CustomObjectsApi(client), PodsClient(CoreV1Api(client), address)
        self._named = f"kubernetes {address}"

    def check(self) -> None:
        """Let the API server check an application without storing it, and list pods."""
        token = uuid.uuid4().hex
        self._create(Application(arguments=()), token, dry_run="All")
        self._pods.check(self._handle(token))

    def submit(self, application: Application, token: str) -> Handle:
        try:
            self._create(application, token)
        except _ExistsError as error:
            handle = self._handle(token)
            found = self._application(handle)
            if found is None:
                raise LauncherAwayError(f"{error}, and was deleted; submit again") from None
            if not _is_of(found, token):
                raise SubmissionRefusedError(
                    f"{error}, without the label {LABEL}={token}, so it is not ours; delete it, or "
                    "choose another namespace"
                ) from None
        return self._handle(token)

    def poll(self, handle: Handle) -> LaunchStatus:
        try:
            found = self._application(handle)
        except (ConfigError, LauncherAwayError) as error:
            return LaunchStatus(LaunchState.UNKNOWN, None, str(error))
        if found is None or not _is_of(found, handle.driver_id):
            missing = f"{self._named}: {_namespace(handle)} has no application {handle.id} of ours"
            return LaunchStatus(LaunchState.GONE, None, missing)
        return self._status(found, handle)

    def end(self, handle: Handle) -> None:
        """Delete the application, and with it the driver, unless it is over."""
        found = self._application(handle)
        if found is None:
            return
        if not _is_of(found, handle.driver_id):
            raise SubmissionRefusedError(
                f"{self._named}: {handle.id} has no label {LABEL}={handle.driver_id}, so it is "
                "not ours"
            )
        if self._status(found, handle).is_over:
            return
        # It stays until the pods are gone: nothing is reported gone that may still run.
        how = {"propagationPolicy": "Foreground", "preconditions": {"uid": found.metadata.uid}}
        with contextlib.suppress(_MissingError, _ExistsError):  # gone, or a later one
            self._ask("delete_namespaced_custom_object", handle, dict[str, Any], body=how)

    def log(self, handle: Handle, offset: int = 0) -> LogPart:
        """Return the next lines of the driver's pod, of its last thousand."""
        text = self._pods.log(handle, lines=_LOG_LINES, most_bytes=_LOG_BYTES)
        return LogPart((), offset) if text is None else lines_after(text, offset)

    def _handle(self, token: str) -> Handle:
        location = {"namespace": self._options.namespace, "operator": self._options.operator}
        return Handle(driver_id=token, launcher=KIND, id=name_of(token), location=location)

    def _create(self, application: Application, token: str, **more: Any) -> None:
        self._options.check()
        check_token(token)
        resource, handle = resource_of(self._options.operator), self._handle(token)
        namespace = self._options.namespace
        body = manifest_of(resource, self._options, namespace, application, token)
        # Strict: a field that this version of the operator lacks would be dropped without a word.
        more = {**more, "body": body, "field_validation": "Strict"}
        try:
            self._ask("create_namespaced_custom_object", handle, resource.answer, **more)
        except _MissingError as error:
            raise self._absence(resource, error) from None
        except SubmissionRefusedError as error:
            if _NO_SUSPEND in str(error):
                raise SubmissionRefusedError(
                    f"{self._named}: queue: {resource.operator}'s operator has queues from version "
                    f"{resource.with_queue} on; upgrade it and its CRDs, or leave queue out"
                ) from None
            raise

    def _absence(self, resource: Resource, error: _MissingError) -> SubmissionRefusedError:
        if error.kind == "namespaces":
            return SubmissionRefusedError(
                f"{self._named}: has no namespace {self._options.namespace!r}; create it, or "
                "correct namespace"
            )
        return SubmissionRefusedError(
            f"{self._named}: has no {PLURAL} of {resource.group}/{resource.version}; install "
            f"{resource.operator}'s operator for Spark with its CRDs, or correct the option "
            "operator"
        )

    def _application(self, handle: Handle) -> Answer | None:
        """Return the application of the handle; None if there is no such object."""
        resource = _resource_of(handle)
        try:
            found: Answer = self._ask("get_namespaced_custom_object", handle, resource.answer)
        except _MissingError as error:
            if error.name == handle.id:
                return None
            # Without the CRD, or before the API server has read it, nothing is said of the object.
            raise LauncherAwayError(str(self._absence(resource, error))) from None
        return found

    def _status(self, found: Answer, handle: Handle) -> LaunchStatus:
        seen = found.observed()
        state, code = seen.state, seen.exit_code
        said = f"{seen.named} {seen.message}"
        if found.metadata.deletionTimestamp is not None:
            said = f"{said} (is being deleted)"
        needs_code = state is LaunchState.ENDED and code is None
        if seen.asks_pod or needs_code:
            pod = self._pods.poll(handle)
            if pod.state is LaunchState.UNKNOWN and state is LaunchState.ENDED:
                return pod
            if pod.state not in {LaunchState.UNKNOWN, LaunchState.GONE}:
                state, code = pod.state, pod.exit_code if pod.exit_code is not None else code
                said = f"{said}; {pod.reason}"
        return LaunchStatus(state, code if state is LaunchState.ENDED else None, first_line(said))

    def _ask(self, operation: str, handle: Handle, kind: type[T], **more: Any) -> T:
        from kubernetes.client import ApiException

        resource, namespace = _resource_of(handle), _namespace(handle)
        what = f"{operation.partition('_')[0]} {PLURAL}.{resource.group} {namespace}/{handle.id}"
        where = [resource.group, resource.version, namespace, PLURAL]
        if operation.partition("_")[0] != "create":
            where.append(handle.id)
        request = getattr(self._api, operation)
        with kubernetes_errors(self._named, what, _RIGHTS):
            try:
                response = request(*where, **more, _preload_content=False, _request_timeout=TIMEOUT)
            except ApiException as error:
                if error.status == http.HTTPStatus.NOT_FOUND:
                    raise _MissingError(self._named, error) from None
                if error.status == http.HTTPStatus.CONFLICT:
                    raise _ExistsError(f"{self._named}: {handle.id} exists already") from None
                raise
            answer = read_json(self._content(response), at_most_bytes=_MOST_BYTES)
        return answer_as(kind, answer, where=f"{self._named}: {what}")

    def _content(self, response: Any) -> bytes:
        """Return the content of an answer: bounded in time and in size."""
        due, found = self._clock.monotonic() + ANSWER_S, bytearray()
        with contextlib.closing(response):
            while (step := response.read1(_STEP_BYTES)) and len(found) <= _MOST_BYTES:
                found += step
                if self._clock.monotonic() > due:
                    raise TimeoutError(f"{len(found)} bytes within {ANSWER_S:.0f} s, and no end")
        return bytes(found)


class _MissingError(SubmissionRefusedError):
    """The API server lacks an object, its namespace, or its kind.

    Attributes:
        name: of what is missing, if the API server names it.
        kind: of what is missing, in the plural.
    """

    def __init__(self, named: str, error: Any) -> None:
        super().__init__(f"{named}: answered {error.status}: {message_of(error)}")
        details = refusal_in(error).get("details")
        details = details if isinstance(details, dict) else {}
        self.name, self.kind = details.get("name"), details.get("kind")


class _ExistsError(SubmissionRefusedError):
    """There is an object of this name, or another one than is asked for."""


def _is_of(found: Answer, token: str) -> bool:
    return (found.metadata.labels or {}).get(LABEL) == token


def _namespace(handle: Handle) -> str:
    return handle.location.get("namespace", "default")


def _resource_of(handle: Handle) -> Resource:
    return resource_of(handle.location.get("operator", ""))


class SparkApplicationKind:
    """See :class:`airflow_provider.hooks.api.LauncherKind`."""

    api_version = 1
    conn_types = ("kubernetes",)
    options = SparkApplicationOptions
    is_experimental = True
    reads_local_paths = True

    def open(
        self, connection: Connection, options: Mapping[str, str], named: str
    ) -> SparkApplicationLauncher:
        require_extra(f"the launcher {KIND!r}", "kubernetes", "airflow.providers.cncf.kubernetes")
        client = _client(connection, named)
        chosen = SparkApplicationOptions(**options)
        if not chosen.namespace:
            own = _extra(connection, "namespace") or "default"
            chosen = dataclasses.replace(chosen, namespace=own)
        return SparkApplicationLauncher(chosen, client)


def _extra(connection: Connection, name: str) -> Any:
    extra = connection.extra_dejson
    return extra.get(name, extra.get(f"extra__kubernetes__{name}"))


def _client(connection: Connection, named: str) -> Any:
    """Return a client with the login that the provider's hook reads from the connection."""
    # The only module that has it in every supported version.
    from airflow.exceptions import AirflowException  # type: ignore[attr-defined]
    from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
    from kubernetes.client import ApiClient, Configuration
    from kubernetes.config import ConfigException
    from yaml import YAMLError

    # Of its own: another connection of this process has another login. The hook ignores it in a
    # cluster, where all have the pod's.
    own = None if _extra(connection, "in_cluster") else Configuration()
    hook = KubernetesHook(conn_id=connection.conn_id, client_configuration=own)
    hook.get_connection = lambda _conn_id: connection
    try:
        configuration = hook.get_conn().configuration
    except (
        *(AirflowException, ConfigException, YAMLError),
        *(OSError, AttributeError, LookupError, TypeError, ValueError),
    ) as error:
        line = first_line(str(error)) or type(error).__name__
        raise ConfigError(
            f"{named}: has no login at Kubernetes ({line}); give kube_config_path, kube_config or "
            "in_cluster in its extra"
        ) from None
    configuration.retries = 0  # the caller repeats a request: a task asks again
    return ApiClient(configuration)


SPARK_APPLICATION: Final = SparkApplicationKind()
