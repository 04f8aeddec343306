"""SparkApplications on a real API server with both CRDs, and Kubeflow's real operator.

There is no node here: a test writes into a pod's status what a node would, and the operator and the
API server do the rest. ``spark-submit`` is Spark's own, or a stand-in that needs no JVM.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyspark
import pytest

from airflow_provider.runtime.api.launchers import Application, Handle, LaunchState, LaunchStatus
from airflow_provider.runtime.errors import (
    ConfigError,
    LauncherAwayError,
    SubmissionRefusedError,
)
from airflow_provider.runtime.testing.launchers import a_token, until
from tests.real.kubernetes import spark_operators
from tests.real.kubernetes.provider import add_provider
from tests.real.kubernetes.servers import Server, await_that
from tests.real.kubernetes.spark_plane import DRIVER, LABEL, NOBODY, Plane, where

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

BOTH = pytest.mark.parametrize("operator", ["kubeflow", "apache"])
APPLICATION = Application(
    arguments=("driver", "run", "s3a://lake/job"), conf={"spark.executor.memory": "512m"}
)


@pytest.fixture(scope="module")
def plane() -> Iterator[Plane]:
    add_provider()
    folder = Path(tempfile.mkdtemp(prefix="k8s-"))
    made = Plane(folder)
    try:
        made.start()
        yield made
    finally:
        made.plane.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def crds(plane: Plane) -> dict[str, bool]:
    """Which CRDs are installed; :func:`cluster` installs the one that a test needs."""
    del plane
    return {}


@pytest.fixture
def operator() -> str:
    return "kubeflow"


@pytest.fixture
def cluster(plane: Plane, crds: dict[str, bool], operator: str) -> Plane:
    if operator not in crds:
        crd = spark_operators.crd_of(operator)
        with pytest.raises(ConfigError, match="install .* operator for Spark with its CRDs"):
            plane.open(operator).check()
        spark_operators.install(crd, plane.api)
        crds[operator] = True
    return plane


# --- a real API server and both CRDs --------------------------------------------------------------


@BOTH
def test_all_published_states_are_known(cluster: Plane, operator: str) -> None:
    """A state that an operator has and we do not would be UNKNOWN."""
    from airflow_provider.extensions.spark_application import resources

    del cluster
    known = {"kubeflow": resources._KUBEFLOW_STATES, "apache": resources._APACHE_STATES}[operator]
    # Of Kubeflow's the one that means that nothing is known; of Apache's one of 1.1.
    assert spark_operators.states_of(operator) - known.keys() <= {"UNKNOWN"}
    assert known.keys() - spark_operators.states_of(operator) <= {"Suspended"}


@BOTH
def test_an_application_is_what_the_crd_takes(cluster: Plane, operator: str) -> None:
    """With the rights of the page it is checked, made once by racing submissions, and ended."""
    cluster.open(operator).check()
    before = len(cluster.applications(operator))
    token = a_token()
    with ThreadPoolExecutor(8) as pool:
        submitted = [
            pool.submit(cluster.open(operator).submit, APPLICATION, token) for _ in range(8)
        ]
        handles = {each.result().id for each in submitted}
    launcher = cluster.open(operator)
    handle = launcher.submit(APPLICATION, token)
    queued = launcher.poll(handle)
    made = [each["metadata"]["name"] for each in cluster.applications(operator)]
    launcher.end(handle)
    until(launcher, handle, lambda status: status.state is LaunchState.GONE)
    launcher.end(handle)

    assert {handle.id} == handles
    assert LaunchState.QUEUED is queued.state
    assert 1 == len(made) - before
    assert launcher.log(handle).lines == ()


@BOTH
def test_a_template_is_checked_by_the_crd(cluster: Plane, operator: str) -> None:
    """An unknown field, and a value of another type, are refused before anything is stored."""
    before = len(cluster.applications(operator))
    for template, says in (
        ({"spec": {"imaeg": "x"}}, 'unknown field "spec.imaeg"'),
        ({"spec": {"sparkConf": {"spark.ui.enabled": False}}}, "spark.ui.enabled"),
    ):
        launcher = cluster.open(operator, template=json.dumps(template))
        with pytest.raises(SubmissionRefusedError, match=re.escape(says)) as raised:
            launcher.check()
        assert 1 == len(str(raised.value).splitlines())

    assert before == len(cluster.applications(operator))


@BOTH
def test_whole_templates_are_taken(cluster: Plane, operator: str) -> None:
    """What users have in theirs: environment from secrets, volumes, tolerations."""
    env = [{"name": "P", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
    pod = {"spec": {"containers": [{"name": DRIVER, "env": env}]}}
    spec: dict[str, Any] = {
        "driver": {"env": env, "cores": 1, "volumeMounts": [{"name": "v", "mountPath": "/v"}]},
        "executor": {"instances": 2},
        "volumes": [{"name": "v", "emptyDir": {}}],
        "timeToLiveSeconds": 86400,
    }
    if operator == "apache":
        spec = {
            "driverSpec": {"podTemplateSpec": pod},
            "applicationTolerations": {"ttlAfterStopMillis": 86_400_000},
        }
    cluster.open(operator, template=json.dumps({"spec": spec})).check()


@BOTH
def test_a_foreign_application_is_left_alone(cluster: Plane, operator: str) -> None:
    """It has our name, and not our label."""
    launcher, token = cluster.open(operator), a_token()
    handle = launcher.submit(APPLICATION, token)
    other = {"metadata": {"labels": {LABEL: "another"}}}
    cluster.custom.patch_namespaced_custom_object(*where(operator), handle.id, other)
    for act in (lambda: launcher.submit(APPLICATION, token), lambda: launcher.end(handle)):
        with pytest.raises(SubmissionRefusedError, match="not ours"):
            act()

    assert LaunchState.GONE is launcher.poll(handle).state
    assert handle.id in [each["metadata"]["name"] for each in cluster.applications(operator)]
    cluster.custom.delete_namespaced_custom_object(*where(operator), handle.id)


@BOTH
def test_a_user_without_rights_is_refused(cluster: Plane, operator: str) -> None:
    """Nothing is made or ended, and the verbs are named."""
    handle = cluster.open(operator).submit(APPLICATION, a_token())
    stranger = cluster.open(operator, NOBODY)
    for act in (
        stranger.check,
        lambda: stranger.submit(APPLICATION, a_token()),
        lambda: stranger.end(handle),
    ):
        with pytest.raises(SubmissionRefusedError, match="create, get and delete") as raised:
            act()
        assert 1 == len(str(raised.value).splitlines())

    assert LaunchState.UNKNOWN is stranger.poll(handle).state
    cluster.open(operator).end(handle)


@BOTH
def test_a_namespace_that_is_not_there(cluster: Plane, operator: str) -> None:
    """A user with all rights hears of the namespace, and not of the CRD."""
    with pytest.raises(ConfigError, match="has no namespace 'elsewhere'"):
        cluster.open(operator, "admin", namespace="elsewhere").check()


def test_a_queue_of_kubeflow(cluster: Plane) -> None:
    """The CRD of 2.4 and later has ``suspend``."""
    cluster.open("kubeflow", queue="night").check()


@pytest.mark.parametrize("operator", ["apache"])
def test_a_queue_of_apache(cluster: Plane) -> None:
    """The CRD of 1.0 has no ``suspend``, and its operator does not wait."""
    with pytest.raises(ConfigError, match=r"queues from version 1\.1 on"):
        cluster.open("apache", queue="night").check()


@pytest.mark.parametrize("operator", ["apache"])
def test_a_status_of_apache(cluster: Plane) -> None:
    """As its operator writes it: the exit code is that of the driver's last status."""
    launcher = cluster.open("apache")
    handle = launcher.submit(APPLICATION, a_token())
    states = []
    ended: dict[str, Any] = {"name": DRIVER, "state": {"terminated": {"exitCode": 3}}}
    ended |= {"image": "x", "imageID": "x", "ready": False, "restartCount": 0}
    failed = {
        "currentStateSummary": "Failed",
        "message": "Driver has one or more failed critical container(s)",
        "lastObservedDriverStatus": {"phase": "Failed", "containerStatuses": [ended]},
    }
    released = {"currentStateSummary": "ResourceReleased", "message": "released"}
    running = {"currentStateSummary": "RunningHealthy"}
    for current, history in ((running, {}), (failed, {}), (released, {"4": failed, "5": released})):
        put = {"currentState": current, "stateTransitionHistory": history}
        cluster.put_status("apache", handle.id, put)
        status = launcher.poll(handle)
        states.append((status.state, status.exit_code))

    ends = (LaunchState.ENDED, 3)
    assert [(LaunchState.RUNNING, None), ends, ends] == states


@BOTH
def test_an_api_server_that_dies_says_nothing(cluster: Plane, operator: str) -> None:
    """Killed and started again, it has the application."""
    launcher = cluster.open(operator)
    handle = launcher.submit(APPLICATION, a_token())
    cluster.plane.api.kill()
    away = launcher.poll(handle)
    with pytest.raises(LauncherAwayError):
        launcher.submit(APPLICATION, handle.driver_id)
    cluster.plane.start_api()
    # A resource of a CRD may be missing for a moment: that is no end.
    seen: list[LaunchState] = []

    def is_queued() -> bool:
        seen.append(launcher.poll(handle).state)
        return seen[-1] is LaunchState.QUEUED

    await_that("it is queued", is_queued)

    assert LaunchState.UNKNOWN is away.state
    assert {LaunchState.UNKNOWN, LaunchState.QUEUED} >= set(seen)
    assert handle == launcher.submit(APPLICATION, handle.driver_id)
    launcher.end(handle)


# --- Kubeflow's operator --------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["stand-in", pytest.param("Spark", marks=pytest.mark.spark)])
def controller(
    request: pytest.FixtureRequest, plane: Plane, crds: dict[str, bool]
) -> Iterator[Server]:
    """Kubeflow's controller, with a stand-in for ``spark-submit``, and with Spark's own."""
    folder = Path(tempfile.mkdtemp(prefix="operator-"))
    is_spark = request.param == "Spark"
    home = Path(pyspark.__file__).parent if is_spark else spark_operators.spark_home(folder)
    server = spark_operators.kubeflow_controller(plane.plane, folder, home)
    if "kubeflow" not in crds:
        spark_operators.install(spark_operators.crd_of("kubeflow"), plane.api)
        crds["kubeflow"] = True
    # Its caches wait for all of its kinds.
    for crd in spark_operators.other_crds() if "others" not in crds else ():
        spark_operators.install(crd, plane.api)
    crds["others"] = True
    server.start()
    yield server
    server.kill()
    shutil.rmtree(folder, ignore_errors=True)


@dataclasses.dataclass
class Run:
    """An application that the operator has submitted."""

    cluster: Plane
    launcher: Any
    handle: Handle

    def await_state(self, state: LaunchState) -> LaunchStatus:
        return until(self.launcher, self.handle, lambda status: status.state is state)

    def await_driver(self) -> Any:
        await_that("there is a driver", lambda: self.cluster.driver(self.handle.driver_id))
        return self.cluster.driver(self.handle.driver_id)


@pytest.fixture
def run(cluster: Plane, controller: Server) -> Iterator[Run]:
    del controller
    launcher = cluster.open("kubeflow")
    made = Run(cluster, launcher, launcher.submit(APPLICATION, a_token()))
    yield made
    made.launcher.end(made.handle)


@pytest.mark.parametrize("code", [0, 3])
def test_the_operator_makes_a_driver(run: Run, code: int) -> None:
    """Its pod has the token, the conf and the arguments; its end is the application's."""
    pod = run.await_driver()
    queued = run.launcher.poll(run.handle)
    (container,) = pod.spec.containers
    run.cluster.put_phase(run.handle.driver_id, "Running")
    running = run.await_state(LaunchState.RUNNING)
    terminated = {"exitCode": code, "reason": "Error" if code else "Completed"}
    phase = "Failed" if code else "Succeeded"
    run.cluster.put_phase(run.handle.driver_id, phase, terminated=terminated)
    status = run.await_state(LaunchState.ENDED)
    run.launcher.end(run.handle)

    assert "localhost/spark:1" == container.image
    assert [*APPLICATION.arguments] == container.args[-3:]
    assert "local:///opt/driver.py" in container.args
    assert LaunchState.QUEUED is queued.state
    assert running.exit_code is None
    assert code == status.exit_code
    assert status == run.launcher.poll(run.handle)


def test_an_end_removes_the_driver(run: Run) -> None:
    """The application is gone when its pod is."""
    run.await_driver()
    run.launcher.end(run.handle)
    run.await_state(LaunchState.GONE)

    assert run.cluster.driver(run.handle.driver_id) is None


def test_a_suspended_application_waits(cluster: Plane, controller: Server) -> None:
    """Until Kueue, or a person, resumes it: then the operator submits it."""
    launcher = cluster.open("kubeflow", queue="night")
    run = Run(cluster, launcher, launcher.submit(APPLICATION, a_token()))
    suspended = until(launcher, run.handle, lambda status: "SUSPENDED" in status.reason)
    without = cluster.driver(run.handle.driver_id)
    resumed = {"spec": {"suspend": False}}
    cluster.custom.patch_namespaced_custom_object(*where("kubeflow"), run.handle.id, resumed)
    pod = run.await_driver()
    launcher.end(run.handle)

    assert (LaunchState.QUEUED, None) == (suspended.state, without)
    assert run.handle.driver_id == pod.metadata.labels[LABEL]
    assert "kueue.x-k8s.io/queue-name" not in pod.metadata.labels


def test_a_submission_that_fails_is_an_end(cluster: Plane, controller: Server) -> None:
    """With the reason of ``spark-submit`` in one line; nothing is started again."""
    launcher = cluster.open("kubeflow", service_account="nobody-has-it")
    handle = launcher.submit(APPLICATION, a_token())
    status = until(launcher, handle, lambda status: status.is_over)
    launcher.end(handle)

    assert (LaunchState.ENDED, None) == (status.state, status.exit_code)
    assert "failed to submit" in status.reason
    assert 1 == len(status.reason.splitlines())
