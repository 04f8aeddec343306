"""SparkApplications of Kubeflow's and of Apache's operator: what is sent, and what states mean.

Names of fields and states are those of ``sparkoperator.k8s.io/v1beta2`` (Kubeflow's operator 2.0 to
2.5) and of ``spark.apache.org/v1`` (Apache's operator 0.5 to 1.1).
"""

# ruff: noqa: N815 - fields of answers have the operators' names
from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Protocol

from airflow_provider.extensions.spark_application.options import KIND, check_operator, name_of
from airflow_provider.extensions.spark_application.template import (
    own,
    put_over,
    read_template,
    refuse,
    value_at,
)
from airflow_provider.runtime.api.errors import ConfigError
from airflow_provider.runtime.api.kit.kubernetes_pods import CONTAINER, LABEL
from airflow_provider.runtime.api.kit.service_answers import exit_code_in
from airflow_provider.runtime.api.kit.typed_json import at_most
from airflow_provider.runtime.api.launchers import LaunchState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider.extensions.spark_application.options import SparkApplicationOptions
    from airflow_provider.runtime.api.launchers import Application

PLURAL: Final = "sparkapplications"
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
_MOST_LISTED: Final = 10_000  # labels, states or containers of one answer
_SPARKS_FILES: Final = "spark.submit.pyFiles"
_EXECUTOR_NAMES: Final = "spark.kubernetes.executor.podNamePrefix"
_QUEUED, _RUNNING, _ENDED = LaunchState.QUEUED, LaunchState.RUNNING, LaunchState.ENDED


@dataclasses.dataclass(frozen=True)
class Metadata:
    """What an answer's metadata has."""

    name: str
    uid: str
    labels: Annotated[dict[str, str], at_most(_MOST_LISTED)] | None = None
    deletionTimestamp: str | None = None


@dataclasses.dataclass(frozen=True)
class Observed:
    """What the status of an application says.

    Attributes:
        state: what the operator's state means.
        named: the operator's state.
        message: the operator's, or empty.
        exit_code: the driver's, if the status has it.
        asks_pod: whether the driver's pod says more, or something else.
    """

    state: LaunchState
    named: str
    message: str = ""
    exit_code: int | None = None
    asks_pod: bool = False


class Answer(Protocol):
    """An application as the API server returns it."""

    @property
    def metadata(self) -> Metadata:
        """The name, and the labels."""

    def observed(self) -> Observed:
        """Return what its status says."""


class Resource(Protocol):
    """A kind of SparkApplication.

    Attributes:
        group: of its API.
        operator: whose it is, and the first version that has a queue, for messages.
        answer: what reads it.
    """

    group: ClassVar[str]
    version: ClassVar[str]
    operator: ClassVar[str]
    with_queue: ClassVar[str]
    answer: ClassVar[type[Any]]

    def spec(
        self, options: SparkApplicationOptions, application: Application, token: str, given: Any
    ) -> dict[str, Any]:
        """Return the spec: a template's, with what options and application say."""


def manifest_of(
    resource: Resource,
    options: SparkApplicationOptions,
    namespace: str,
    application: Application,
    token: str,
) -> dict[str, Any]:
    """Return the application that the API server gets.

    Raises:
        ConfigError: the template is wrong, or contradicts what the launcher sets.
    """
    api_version = f"{resource.group}/{resource.version}"
    template = read_template(options.template, api_version)
    # Else Spark makes them of the application's name, which a long job directory makes too long.
    named = {"sparkConf": {_EXECUTOR_NAMES: name_of(token)}}
    labels = {LABEL: token, **({QUEUE_LABEL: options.queue} if options.queue else {})}
    metadata = own(template["metadata"], {"labels": labels}, "metadata.")
    return {
        "apiVersion": api_version,
        "kind": "SparkApplication",
        "metadata": {**metadata, "name": name_of(token), "namespace": namespace},
        "spec": resource.spec(options, application, token, put_over(named, template["spec"])),
    }


def _without_empty(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value}


def _need_version(spec: Mapping[str, Any], path: str) -> None:
    if not value_at(spec, path):
        raise ConfigError(
            f"{KIND}: spark_version is not given, and the template has no {path}; give the version "
            "of Spark in the image"
        )


# --- Kubeflow's operator --------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _KubeflowState:
    state: str = ""
    errorMessage: str | None = None


@dataclasses.dataclass(frozen=True)
class _KubeflowStatus:
    applicationState: _KubeflowState | None = None


_KUBEFLOW_STATES: Final = {
    "": _QUEUED,
    "SUBMITTED": _QUEUED,
    "RUNNING": _RUNNING,
    "COMPLETED": _ENDED,
    "FAILED": _ENDED,
    "SUBMISSION_FAILED": _ENDED,
    "PENDING_RERUN": _QUEUED,
    "INVALIDATING": _QUEUED,
    "SUCCEEDING": _RUNNING,
    "FAILING": _RUNNING,
    "SUSPENDING": _QUEUED,
    "SUSPENDED": _QUEUED,
    "RESUMING": _QUEUED,
}
"""All states but ``UNKNOWN``, which means that the operator cannot ask its node."""
# A failed one may have a driver: an operator that died after spark-submit submits once more, and
# fails because the driver is there.
_KUBEFLOW_ASKS_POD: Final = frozenset({"SUBMITTED", "FAILED", "SUBMISSION_FAILED"})


@dataclasses.dataclass(frozen=True)
class _KubeflowAnswer:
    metadata: Metadata
    status: _KubeflowStatus | None = None

    def observed(self) -> Observed:
        said = (self.status and self.status.applicationState) or _KubeflowState()
        message = said.errorMessage or ""
        return Observed(
            _KUBEFLOW_STATES.get(said.state, LaunchState.UNKNOWN),
            said.state or "NEW",
            message,
            0 if said.state == "COMPLETED" else exit_code_in(message),
            asks_pod=said.state in _KUBEFLOW_ASKS_POD,
        )


_KUBEFLOW_CONF: Final = {
    "driver.cores": "spark.driver.cores",
    "driver.coreLimit": "spark.kubernetes.driver.limit.cores",
    "driver.coreRequest": "spark.kubernetes.driver.request.cores",
    "driver.javaOptions": "spark.driver.extraJavaOptions",
    "driver.memory": "spark.driver.memory",
    "driver.memoryOverhead": "spark.driver.memoryOverhead",
    "executor.cores": "spark.executor.cores",
    "executor.coreLimit": "spark.kubernetes.executor.limit.cores",
    "executor.coreRequest": "spark.kubernetes.executor.request.cores",
    "executor.instances": "spark.executor.instances",
    "executor.javaOptions": "spark.executor.extraJavaOptions",
    "executor.memory": "spark.executor.memory",
    "executor.memoryOverhead": "spark.executor.memoryOverhead",
    "memoryOverheadFactor": "spark.kubernetes.memoryOverheadFactor",
    "deps.archives": "spark.archives",
    "deps.excludePackages": "spark.jars.excludes",
    "deps.files": "spark.files",
    "deps.jars": "spark.jars",
    "deps.packages": "spark.jars.packages",
    "deps.repositories": "spark.jars.repositories",
}
"""Fields that win over a property of Spark: which one the user means is not known."""


class Kubeflow:
    """``sparkoperator.k8s.io/v1beta2``."""

    group: ClassVar[str] = "sparkoperator.k8s.io"
    version: ClassVar[str] = "v1beta2"
    operator: ClassVar[str] = "Kubeflow"
    with_queue: ClassVar[str] = "2.4"
    answer: ClassVar[type[Any]] = _KubeflowAnswer

    def spec(
        self, options: SparkApplicationOptions, application: Application, token: str, given: Any
    ) -> dict[str, Any]:
        for path, name in _KUBEFLOW_CONF.items():
            if name in application.conf and value_at(given, path) is not None:
                raise ConfigError(
                    f"{KIND}: the template has spec.{path}, which wins over {name} of the task's "
                    "conf; leave one of them out"
                )
        refuse({"spec": given}, ("spec.mainClass", "spec.driver.podName", "spec.suspend"))
        over = {"sparkConf": dict(application.conf), "driver": {}, "executor": {}}
        over |= _without_empty({"sparkVersion": options.spark_version, "image": options.image})
        if options.service_account:
            over["driver"] = {"serviceAccount": options.service_account}
        ours: dict[str, Any] = {
            "type": "Python",
            "mode": "cluster",
            "mainApplicationFile": options.entry_point,
            "arguments": list(application.arguments),
            "deps": {"pyFiles": [options.runtime, *application.py_files]},
            "driver": {"labels": {LABEL: token}},
            "restartPolicy": {"type": "Never"},
        }
        if options.queue:
            ours["suspend"] = True  # until Kueue admits it
        spec = own(put_over(given, over), ours, "spec.")
        _need_version(spec, "sparkVersion")
        return spec


# --- Apache's operator ----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Terminated:
    exitCode: int


@dataclasses.dataclass(frozen=True)
class _ContainerState:
    terminated: _Terminated | None = None


@dataclasses.dataclass(frozen=True)
class _Container:
    name: str
    state: _ContainerState | None = None


@dataclasses.dataclass(frozen=True)
class _PodStatus:
    containerStatuses: Annotated[tuple[_Container, ...], at_most(_MOST_LISTED)] | None = None


@dataclasses.dataclass(frozen=True)
class _ApacheState:
    currentStateSummary: str
    message: str | None = None
    lastObservedDriverStatus: _PodStatus | None = None


@dataclasses.dataclass(frozen=True)
class _ApacheStatus:
    currentState: _ApacheState | None = None
    stateTransitionHistory: Annotated[dict[str, _ApacheState], at_most(_MOST_LISTED)] | None = None


_APACHE_STATES: Final = {
    "Submitted": _QUEUED,
    "ScheduledToRestart": _QUEUED,
    "Suspended": _QUEUED,
    "DriverRequested": _QUEUED,
    "DriverStarted": _RUNNING,
    "DriverReady": _RUNNING,
    "InitializedBelowThresholdExecutors": _RUNNING,
    "RunningHealthy": _RUNNING,
    "RunningWithPartialCapacity": _RUNNING,
    "RunningWithBelowThresholdExecutors": _RUNNING,
    # The operator is about to end the driver.
    "DriverStartTimedOut": _RUNNING,
    "ExecutorsStartTimedOut": _RUNNING,
    "DriverReadyTimedOut": _RUNNING,
    "Succeeded": _ENDED,
    "Failed": _ENDED,
    "SchedulingFailure": _ENDED,
    "DriverEvicted": _ENDED,
    "ResourceReleased": _ENDED,
    "TerminatedWithoutReleaseResources": _ENDED,
}
_RELEASED: Final = ("ResourceReleased", "TerminatedWithoutReleaseResources")
# What is retained may be a driver that still runs.
_APACHE_ASKS_POD: Final = frozenset({"DriverRequested", "TerminatedWithoutReleaseResources"})


@dataclasses.dataclass(frozen=True)
class _ApacheAnswer:
    metadata: Metadata
    status: _ApacheStatus | None = None

    def observed(self) -> Observed:
        status = self.status or _ApacheStatus()
        current = status.currentState or _ApacheState("Submitted")
        past = status.stateTransitionHistory or {}
        numbers = sorted((each for each in past if each.isdecimal()), key=int, reverse=True)
        states = [current, *(past[number] for number in numbers)]
        # A released one says nothing of how its driver has ended: the state before does.
        last = next((s for s in states if s.currentStateSummary not in _RELEASED), current)
        state = _APACHE_STATES.get(current.currentStateSummary, LaunchState.UNKNOWN)
        code = next((c for s in states if (c := _exit_code_of(s)) is not None), None)
        if last.currentStateSummary == "Succeeded":
            code = 0
        named = dict.fromkeys([last.currentStateSummary, current.currentStateSummary])
        return Observed(
            state,
            ", ".join(named),
            last.message or "",
            code if state is _ENDED else None,
            asks_pod=current.currentStateSummary in _APACHE_ASKS_POD,
        )


def _exit_code_of(state: _ApacheState) -> int | None:
    pod = state.lastObservedDriverStatus
    containers = (pod and pod.containerStatuses) or ()
    named = [each for each in containers if each.name == CONTAINER]
    chosen = (named or containers)[:1] if named or len(containers) == 1 else ()
    return next(
        (c.state.terminated.exitCode for c in chosen if c.state and c.state.terminated), None
    )


class Apache:
    """``spark.apache.org/v1``."""

    group: ClassVar[str] = "spark.apache.org"
    version: ClassVar[str] = "v1"
    operator: ClassVar[str] = "Apache"
    with_queue: ClassVar[str] = "1.1"
    answer: ClassVar[type[Any]] = _ApacheAnswer

    def spec(
        self, options: SparkApplicationOptions, application: Application, token: str, given: Any
    ) -> dict[str, Any]:
        refuse({"spec": given}, ("spec.jars", "spec.sparkRFiles", "spec.suspend"))
        # A failed driver's pod is kept for its log.
        kept = {"applicationTolerations": {"resourceRetainPolicy": "OnFailure"}}
        conf = _without_empty(
            {
                "spark.kubernetes.container.image": options.image,
                "spark.kubernetes.authenticate.driver.serviceAccountName": options.service_account,
            }
        )
        over = {
            "sparkConf": {**application.conf, **conf},
            "runtimeVersions": _without_empty({"sparkVersion": options.spark_version}),
        }
        ours: dict[str, Any] = {
            "mainClass": "org.apache.spark.deploy.PythonRunner",
            "pyFiles": options.entry_point,
            "driverArgs": list(application.arguments),
            "deploymentMode": "ClusterMode",
            "sparkConf": {
                _SPARKS_FILES: ",".join([options.runtime, *application.py_files]),
                f"spark.kubernetes.driver.label.{LABEL}": token,
            },
            "applicationTolerations": {"restartConfig": {"restartPolicy": "Never"}},
        }
        if options.queue:
            ours["suspend"] = False  # an operator that has the field waits for Kueue by the label
        spec = own(put_over(put_over(kept, given), over), ours, "spec.")
        _need_version(spec, "runtimeVersions.sparkVersion")
        return spec


_RESOURCES: Final[dict[str, Resource]] = {"kubeflow": Kubeflow(), "apache": Apache()}


def resource_of(operator: str) -> Resource:
    """Return the kind of SparkApplication of an operator, or raise ConfigError."""
    check_operator(operator)
    return _RESOURCES[operator]
