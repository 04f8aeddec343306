"""Launcher ``spark-application``: what it sends, states, conflicts, wrong answers and logs."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider.extensions.spark_application.launcher import SparkApplicationLauncher
from airflow_provider.extensions.spark_application.options import name_of
from airflow_provider.extensions.spark_application.timed_lines import lines_after
from airflow_provider.hooks.launchers import LauncherChoice
from airflow_provider.runtime.api.launchers import Application, Handle, LaunchState, LaunchStatus
from airflow_provider.runtime.errors import (
    ConfigError,
    LauncherAwayError,
    SubmissionRefusedError,
)
from tests.contract.clusters import kube_config, spark_application_launcher
from tests.contract.spark_operator_server import APACHE, KUBEFLOW, ApiServer, refusal
from tests.extensions.answering import check_wrong_answers
from tests.unit.api_server import a_pod, container, scheduled
from tests.unit.support import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("airflow.providers.cncf.kubernetes.hooks.kubernetes")
pytestmark = pytest.mark.slow
TOKEN, OTHER = "7f" * 16, "8a" * 16
NAME = f"spark-stream-{TOKEN}"
LABEL = "spark-stream-driver-id"
EXECUTORS = "spark.kubernetes.executor.podNamePrefix"
SECRET = "s3cr3t"  # noqa: S105 - of the stand-in
BOTH = pytest.mark.parametrize("operator", ["kubeflow", "apache"])
VERSIONS = {"kubeflow": KUBEFLOW, "apache": APACHE}
APPLICATION = Application(
    arguments=("driver", "run", "s3://b/job"),
    conf={"spark.executor.memory": "4g"},
    py_files=("s3://b/jobs.py",),
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    made = ApiServer(tmp_path / "applications", token=SECRET)
    made.applications.folder.mkdir()
    # No process here: what an operator would do is written by each test.
    made.applications.start = lambda *_: None  # type: ignore[method-assign]
    threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def opened(
    server: ApiServer, operator: str = "kubeflow", **options: str
) -> SparkApplicationLauncher:
    return spark_application_launcher(server.url, SECRET, {"operator": operator, **options})


def put_status(server: ApiServer, **status: Any) -> None:
    (server.applications.folder / NAME / "status.json").write_text(json.dumps(status))


def put_pod(server: ApiServer, phase: str, **status: Any) -> None:
    pod = a_pod(f"{NAME}-driver", TOKEN, phase, **status)
    (server.applications.folder / NAME / "pod.json").write_text(json.dumps(pod))


def sent(server: ApiServer) -> dict[str, Any]:
    found: dict[str, Any] = server.bodies[-1]
    return found


# --- what is sent ---------------------------------------------------------------------------------


def test_an_application_of_kubeflow(server: ApiServer) -> None:
    """The driver never restarts, has the token as a label, and gets the task's conf."""
    options = {"image": "spark:4", "service_account": "streams"}
    handle = opened(server, **options).submit(APPLICATION, TOKEN)

    assert (
        Handle(
            driver_id=TOKEN,
            launcher="spark-application",
            id=NAME,
            location={"namespace": "streams", "operator": "kubeflow"},
        )
        == handle
    )
    assert {
        "apiVersion": KUBEFLOW,
        "kind": "SparkApplication",
        "metadata": {"labels": {LABEL: TOKEN}, "name": NAME, "namespace": "streams"},
    } == {name: value for name, value in sent(server).items() if name != "spec"}
    spec = sent(server)["spec"]
    assert {
        "type": "Python",
        "mode": "cluster",
        "sparkVersion": "4.3.0",
        "image": "spark:4",
        "mainApplicationFile": spec["mainApplicationFile"],
        "arguments": ["driver", "run", "s3://b/job"],
        "deps": {"pyFiles": ["/no/runtime.zip", "s3://b/jobs.py"]},
        "sparkConf": {"spark.executor.memory": "4g", EXECUTORS: NAME},
        "driver": {"serviceAccount": "streams", "labels": {LABEL: TOKEN}},
        "executor": {},
        "restartPolicy": {"type": "Never"},
    } == spec
    assert spec["mainApplicationFile"].endswith("cluster_program.py")
    assert {"fieldValidation": ["Strict"]} == server.asked[-1][2]


def test_an_application_of_apache(server: ApiServer) -> None:
    """The same by that operator's fields; a failed driver's pod is kept for its log."""
    options = {"image": "spark:4", "service_account": "streams"}
    opened(server, "apache", **options).submit(APPLICATION, TOKEN)
    spec = sent(server)["spec"]

    assert {
        "mainClass": "org.apache.spark.deploy.PythonRunner",
        "pyFiles": spec["pyFiles"],
        "driverArgs": ["driver", "run", "s3://b/job"],
        "deploymentMode": "ClusterMode",
        "runtimeVersions": {"sparkVersion": "4.3.0"},
        "applicationTolerations": {
            "restartConfig": {"restartPolicy": "Never"},
            "resourceRetainPolicy": "OnFailure",
        },
        "sparkConf": {
            "spark.executor.memory": "4g",
            "spark.kubernetes.authenticate.driver.serviceAccountName": "streams",
            "spark.kubernetes.container.image": "spark:4",
            f"spark.kubernetes.driver.label.{LABEL}": TOKEN,
            EXECUTORS: NAME,
            "spark.submit.pyFiles": "/no/runtime.zip,s3://b/jobs.py",
        },
    } == spec
    assert spec["pyFiles"].endswith("cluster_program.py")


@BOTH
def test_a_queue_of_kueue(server: ApiServer, operator: str) -> None:
    """Kubeflow's operator waits suspended; Apache's waits by the label, and never when suspended."""
    launcher = opened(server, operator, queue="night")
    handle = launcher.submit(APPLICATION, TOKEN)
    body = sent(server)

    assert {LABEL: TOKEN, "kueue.x-k8s.io/queue-name": "night"} == body["metadata"]["labels"]
    assert (operator == "kubeflow") is body["spec"]["suspend"]
    if operator == "kubeflow":
        assert LaunchState.QUEUED is launcher.poll(handle).state


@BOTH
def test_an_operator_without_queues_is_refused(server: ApiServer, operator: str) -> None:
    """Its CRD has no field for it: the application would run at once, or never."""
    server.applications.fields[VERSIONS[operator]].discard("suspend")
    opened(server, operator).check()
    with pytest.raises(ConfigError, match=r"has queues from version \d\.\d on; upgrade it"):
        opened(server, operator, queue="night").check()


@pytest.mark.parametrize(
    ("token", "name"),
    [
        (TOKEN, NAME),
        ("d1", "spark-stream-d1"),
        ("D1", "spark-stream-"),
        ("a.b_c", "spark-stream-"),
        ("x" * 63, "spark-stream-"),
        ("-a", "spark-stream-"),
    ],
)
def test_a_name_is_a_dns_label(token: str, name: str) -> None:
    """Of the token alone, short enough for what an operator appends."""
    made = name_of(token)

    assert made.startswith(name)
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", made)
    assert len(made) <= len(NAME)
    assert made == name_of(token) != name_of(f"{token}0")


def test_a_token_that_no_label_has_is_refused(server: ApiServer) -> None:
    """Before anything is asked."""
    with pytest.raises(ConfigError, match="cannot be the value of a label"):
        opened(server).submit(APPLICATION, "a b")
    assert [] == server.asked


# --- templates and options ------------------------------------------------------------------------

WHOLE = """
apiVersion: sparkoperator.k8s.io/v1beta2
kind: SparkApplication
metadata:
  labels: {team: streams}
  annotations: {note: "1"}
spec:
  type: Python
  mode: cluster
  sparkVersion: "4.2.0"
  image: ours:1
  restartPolicy: {type: Never}
  sparkConf:
    spark.executor.memory: 1g
    spark.kubernetes.executor.podNamePrefix: mine
    spark.ui.enabled: "false"
  volumes: [{name: data, emptyDir: {}}]
  driver: {cores: 2, labels: {team: streams}}
  executor: {instances: 3}
"""


@pytest.mark.parametrize("is_file", [True, False])
def test_a_template_is_the_rest_of_the_spec(
    server: ApiServer, tmp_path: Path, *, is_file: bool
) -> None:
    """A file, or its text; the task's options and conf win over it."""
    file = tmp_path / "template.yaml"
    file.write_text(WHOLE)
    opened(server, template=str(file) if is_file else WHOLE).submit(APPLICATION, TOKEN)
    body = sent(server)

    assert {"note": "1"} == body["metadata"]["annotations"]
    assert {LABEL: TOKEN, "team": "streams"} == body["metadata"]["labels"]
    spec = body["spec"]
    assert ("4.3.0", "ours:1") == (spec["sparkVersion"], spec["image"])
    conf = {"spark.executor.memory": "4g", "spark.ui.enabled": "false", EXECUTORS: "mine"}
    assert conf == spec["sparkConf"]
    assert {"cores": 2, "labels": {LABEL: TOKEN, "team": "streams"}} == spec["driver"]
    assert [{"name": "data", "emptyDir": {}}] == spec["volumes"]


def test_a_mapping_is_a_template(server: ApiServer) -> None:
    """As launcher_options of a DAG, and as the extra of a connection, have it."""
    template = {"spec": {"executor": {"instances": 3}}}
    choice = LauncherChoice.of("spark-application", "kube", {"template": template})
    opened(server, **choice.options).submit(APPLICATION, TOKEN)

    assert choice == LauncherChoice.from_dict(json.loads(json.dumps(choice.to_dict())))
    assert {"instances": 3} == sent(server)["spec"]["executor"]
    with pytest.raises(ConfigError, match="namespace={}: spark-application takes texts"):
        LauncherChoice.of("spark-application", "kube", {"namespace": {}})


@pytest.mark.parametrize(
    ("operator", "template", "says"),
    [
        ("kubeflow", {"spec": {"restartPolicy": {"type": "Always"}}}, "spec.restartPolicy.type"),
        ("kubeflow", {"spec": {"type": "Scala"}}, "spec.type: is the launcher's own"),
        ("kubeflow", {"spec": {"arguments": ["x"]}}, "spec.arguments: is"),
        ("kubeflow", {"spec": {"deps": {"pyFiles": ["x"]}}}, "spec.deps.pyFiles: is"),
        ("kubeflow", {"spec": {"driver": {"labels": {LABEL: "x"}}}}, f"driver.labels.{LABEL}"),
        ("kubeflow", {"spec": {"driver": {"podName": "x"}}}, "spec.driver.podName: contradicts"),
        ("kubeflow", {"spec": {"suspend": False}}, "spec.suspend: contradicts"),
        ("kubeflow", {"spec": {"mainClass": "x"}}, "spec.mainClass: contradicts"),
        (
            "kubeflow",
            {"spec": {"executor": {"memory": "1g"}}},
            "spec.executor.memory, which wins over spark.executor.memory of the task",
        ),
        ("kubeflow", {"metadata": {"name": "x"}}, "metadata.name: leave it out"),
        ("kubeflow", {"metadata": {"labels": {LABEL: "x"}}}, f"metadata.labels.{LABEL}: is"),
        ("kubeflow", {"status": {}}, "template: status: leave it out"),
        ("kubeflow", {"apiVersion": APACHE}, "apiVersion is 'spark.apache.org/v1'"),
        ("kubeflow", {"spec": []}, "spec is []; give a mapping"),
        ("kubeflow", {"metadata": []}, "metadata is []; give a mapping"),
        ("kubeflow", {"spec": {"driver": []}}, "driver is []; give a mapping"),
        ("apache", {"spec": {"jars": "x"}}, "spec.jars: contradicts"),
        ("apache", {"spec": {"pyFiles": "x"}}, "spec.pyFiles: is"),
        ("apache", {"spec": {"sparkConf": {"spark.submit.pyFiles": "x"}}}, "spark.submit.pyFiles"),
        (
            "apache",
            {"spec": {"applicationTolerations": {"restartConfig": {"restartPolicy": "Always"}}}},
            "restartConfig.restartPolicy: is",
        ),
    ],
)
def test_what_the_launcher_owns_is_refused_by_name(
    server: ApiServer, operator: str, template: dict[str, Any], says: str
) -> None:
    """Before anything is asked, in one line."""
    launcher = opened(server, operator, template=json.dumps(template))
    with pytest.raises(ConfigError, match=re.escape(says)) as raised:
        launcher.submit(APPLICATION, TOKEN)

    assert 1 == len(str(raised.value).splitlines())
    assert [] == server.asked


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"operator": "google"}, "operator 'google': use 'kubeflow' or 'apache'"),
        ({"entry_point": ""}, "entry_point is not given"),
        ({"entry_point": "a,b"}, "an address has no comma"),
        ({"runtime": ""}, "runtime is not given"),
        ({"namespace": "../x"}, "no name of one"),
        ({"queue": "a b"}, "no value of a label"),
        ({"spark_version": ""}, "spark_version is not given"),
        ({"template": "/nowhere.yaml"}, "give the path of a YAML file"),
        ({"template": "{"}, "template: is no YAML"),
        ({"template": "a\nb"}, "has no mapping"),
        ({"template": "{? {a: 1} : 2}"}, "template: is no YAML"),
    ],
)
@BOTH
def test_an_option_that_is_wrong_is_named(
    server: ApiServer, operator: str, options: dict[str, str], says: str
) -> None:
    """Nothing is asked, and one line says what to give."""
    with pytest.raises(ConfigError, match=re.escape(says)) as raised:
        opened(server, **{"operator": operator} | options).check()

    assert 1 == len(str(raised.value).splitlines())
    assert [] == server.asked


def test_a_large_template_is_refused(server: ApiServer, tmp_path: Path) -> None:
    """It is not read whole."""
    file = tmp_path / "template.yaml"
    file.write_bytes(b" " * (2 << 20))
    with pytest.raises(ConfigError, match="has more than 1048576 bytes"):
        opened(server, template=str(file)).check()


# --- what the API server answers to a submission --------------------------------------------------


@BOTH
def test_a_check_stores_nothing(server: ApiServer, operator: str) -> None:
    """The API server checks the template by its CRD; pods can be listed."""
    opened(server, operator).check()
    wrong = opened(server, operator, template='{"spec": {"imaeg": "x"}}')
    with pytest.raises(ConfigError, match=re.escape('unknown field "spec.imaeg"')):
        wrong.check()

    assert [] == list(server.applications.folder.iterdir())
    assert {"dryRun": ["All"], "fieldValidation": ["Strict"]} == server.asked[0][2]


@BOTH
def test_a_missing_crd_is_one_error(server: ApiServer, operator: str) -> None:
    """Which operator to install is said; a namespace that is not there is another error."""
    with pytest.raises(ConfigError, match="has no namespace 'elsewhere'"):
        opened(server, operator, namespace="elsewhere").check()
    handle = opened(server, operator).submit(APPLICATION, TOKEN)
    server.applications.fields.clear()
    owner = {"kubeflow": "Kubeflow", "apache": "Apache"}[operator]
    with pytest.raises(ConfigError, match=f"has no sparkapplications of .*install {owner}'s"):
        opened(server, operator).check()

    assert LaunchState.UNKNOWN is opened(server, operator).poll(handle).state


def test_an_application_of_our_name_is_ours_by_its_label(server: ApiServer) -> None:
    """With the label of the token it is our run; without it nothing is taken over or ended."""
    first = opened(server).submit(APPLICATION, TOKEN)
    assert first == opened(server).submit(dataclasses.replace(APPLICATION, conf={}), TOKEN)
    file = server.applications.folder / NAME / "application.json"
    foreign = json.loads(file.read_text())
    foreign["metadata"]["labels"] = {LABEL: OTHER}
    file.write_text(json.dumps(foreign))
    with pytest.raises(SubmissionRefusedError, match=f"exists already, without the label {LABEL}"):
        opened(server).submit(APPLICATION, TOKEN)
    with pytest.raises(SubmissionRefusedError, match="is not ours"):
        opened(server).end(first)

    assert LaunchState.GONE is opened(server).poll(first).state
    assert file.exists()


def test_an_application_that_was_just_deleted_is_submitted_again(server: ApiServer) -> None:
    """A conflict with an object that has gone is no refusal."""
    server.answers["POST"] = refusal(409, "already exists", "AlreadyExists", name=NAME)
    with pytest.raises(LauncherAwayError, match="and was deleted; submit again"):
        opened(server).submit(APPLICATION, TOKEN)


@pytest.mark.parametrize(
    ("code", "error", "says"),
    [
        (400, SubmissionRefusedError, "answered 400: no"),
        (401, SubmissionRefusedError, "does not know the login of this process"),
        (403, SubmissionRefusedError, "needs the verbs create, get and delete"),
        (422, SubmissionRefusedError, "answered 422: no"),
        (429, LauncherAwayError, "answered 429: no"),
        (500, LauncherAwayError, "answered 500: no"),
        (503, LauncherAwayError, "answered 503: no"),
    ],
)
def test_a_refusal_is_told_from_an_outage(
    server: ApiServer, code: int, error: type[Exception], says: str
) -> None:
    """One line with the server's message; a poll knows nothing then."""
    launcher = opened(server)
    handle = launcher.submit(APPLICATION, TOKEN)
    for method in ("GET", "POST"):
        server.answers[f"{method} sparkapplications"] = refusal(code, "no\nmore")
    for act in (
        launcher.check,
        lambda: launcher.submit(APPLICATION, TOKEN),
        lambda: launcher.end(handle),
    ):
        with pytest.raises(error, match=says) as raised:
            act()
        assert 1 == len(str(raised.value).splitlines())
        assert SECRET not in str(raised.value)

    assert LaunchState.UNKNOWN is launcher.poll(handle).state


# --- states ---------------------------------------------------------------------------------------


def failed(code: int) -> dict[str, Any]:
    return {"containerStatuses": [container(terminated={"exitCode": code, "reason": "Error"})]}


@pytest.mark.parametrize(
    ("said", "pod", "state", "code"),
    [
        (None, None, LaunchState.QUEUED, None),
        ("", None, LaunchState.QUEUED, None),
        ("SUBMITTED", None, LaunchState.QUEUED, None),
        ("SUBMITTED", ("Pending", {}), LaunchState.QUEUED, None),
        (
            "SUBMITTED",
            ("Pending", {"conditions": scheduled(has_node=True)}),
            LaunchState.RUNNING,
            None,
        ),
        ("SUBMITTED", ("Failed", failed(2)), LaunchState.ENDED, 2),
        ("PENDING_RERUN", None, LaunchState.QUEUED, None),
        ("INVALIDATING", None, LaunchState.QUEUED, None),
        ("SUSPENDING", None, LaunchState.QUEUED, None),
        ("SUSPENDED", None, LaunchState.QUEUED, None),
        ("RESUMING", None, LaunchState.QUEUED, None),
        ("RUNNING", None, LaunchState.RUNNING, None),
        ("SUCCEEDING", None, LaunchState.RUNNING, None),
        ("FAILING", None, LaunchState.RUNNING, None),
        ("COMPLETED", None, LaunchState.ENDED, 0),
        ("FAILED", None, LaunchState.ENDED, None),
        ("FAILED", ("Failed", failed(3)), LaunchState.ENDED, 3),
        ("FAILED", ("Running", {}), LaunchState.RUNNING, None),
        ("FAILED", ("Unknown", {}), LaunchState.UNKNOWN, None),
        ("SUBMISSION_FAILED", None, LaunchState.ENDED, None),
        ("UNKNOWN", None, LaunchState.UNKNOWN, None),
        ("EXPLODED", None, LaunchState.UNKNOWN, None),
    ],
)
def test_states_of_kubeflow(
    server: ApiServer,
    said: str | None,
    pod: tuple[str, dict[str, Any]] | None,
    state: LaunchState,
    code: int | None,
) -> None:
    """
    Each published state; the driver's pod has the exit code, and says whether a driver runs whose
    submission the operator takes for failed.
    """
    launcher = opened(server)
    handle = launcher.submit(APPLICATION, TOKEN)
    app = {"state": said, "errorMessage": "a\nb"}
    put_status(server, **({} if said is None else {"applicationState": app}))
    if pod is not None:
        put_pod(server, pod[0], **pod[1])
    status = launcher.poll(handle)

    assert (state, code) == (status.state, status.exit_code)
    assert 1 == len(status.reason.splitlines())


def test_the_message_of_a_failed_application_has_its_exit_code(server: ApiServer) -> None:
    """When the driver's pod has been removed."""
    launcher = opened(server)
    handle = launcher.submit(APPLICATION, TOKEN)
    said = "driver container failed with ExitCode: 5, Reason: Error"
    put_status(server, applicationState={"state": "FAILED", "errorMessage": said})

    assert LaunchStatus(LaunchState.ENDED, 5, f"FAILED {said}") == launcher.poll(handle)


DRIVER_ENDED = {"lastObservedDriverStatus": failed(4)}


@pytest.mark.parametrize(
    ("states", "pod", "state", "code"),
    [
        ([], None, LaunchState.QUEUED, None),
        (["Submitted"], None, LaunchState.QUEUED, None),
        (["ScheduledToRestart"], None, LaunchState.QUEUED, None),
        (["RunningHealthy", "Suspended"], None, LaunchState.QUEUED, None),
        (["DriverRequested"], None, LaunchState.QUEUED, None),
        (
            ["DriverRequested"],
            ("Pending", {"conditions": scheduled(has_node=True)}),
            LaunchState.RUNNING,
            None,
        ),
        (["DriverStarted"], None, LaunchState.RUNNING, None),
        (["DriverReady"], None, LaunchState.RUNNING, None),
        (["InitializedBelowThresholdExecutors"], None, LaunchState.RUNNING, None),
        (["RunningHealthy"], None, LaunchState.RUNNING, None),
        (["RunningWithPartialCapacity"], None, LaunchState.RUNNING, None),
        (["RunningWithBelowThresholdExecutors"], None, LaunchState.RUNNING, None),
        (["DriverStartTimedOut"], None, LaunchState.RUNNING, None),
        (["ExecutorsStartTimedOut"], None, LaunchState.RUNNING, None),
        (["DriverReadyTimedOut"], None, LaunchState.RUNNING, None),
        (["Succeeded"], None, LaunchState.ENDED, 0),
        (["Succeeded", "ResourceReleased"], None, LaunchState.ENDED, 0),
        (["Failed"], None, LaunchState.ENDED, 4),
        (["Failed", "ResourceReleased"], None, LaunchState.ENDED, 4),
        (["Failed", "TerminatedWithoutReleaseResources"], None, LaunchState.ENDED, 4),
        (
            ["DriverReadyTimedOut", "TerminatedWithoutReleaseResources"],
            ("Running", {}),
            LaunchState.RUNNING,
            None,
        ),
        (["SchedulingFailure"], None, LaunchState.ENDED, None),
        (["SchedulingFailure", "ResourceReleased"], None, LaunchState.ENDED, None),
        (["DriverEvicted"], ("Failed", failed(137)), LaunchState.ENDED, 137),
        (["ResourceReleased"], None, LaunchState.ENDED, None),
        (["Exploded"], None, LaunchState.UNKNOWN, None),
    ],
)
def test_states_of_apache(
    server: ApiServer,
    states: list[str],
    pod: tuple[str, dict[str, Any]] | None,
    state: LaunchState,
    code: int | None,
) -> None:
    """Each published state; what has ended a driver is in the history, and its pod may be gone."""
    launcher = opened(server, "apache")
    handle = launcher.submit(APPLICATION, TOKEN)
    said = [
        {
            "currentStateSummary": each,
            "message": "a\nb",
            **(DRIVER_ENDED if each == "Failed" else {}),
        }
        for each in states
    ]
    history = {str(number + 8): each for number, each in enumerate(said)}
    put_status(
        server, **({"currentState": said[-1], "stateTransitionHistory": history} if said else {})
    )
    if pod is not None:
        put_pod(server, pod[0], **pod[1])
    status = launcher.poll(handle)

    assert (state, code) == (status.state, status.exit_code)
    assert 1 == len(status.reason.splitlines())


@BOTH
def test_an_application_that_was_deleted_is_gone(server: ApiServer, operator: str) -> None:
    """By an operator's time to live, or by a person; an end finds nothing to do."""
    launcher = opened(server, operator)
    handle = launcher.submit(APPLICATION, TOKEN)
    (server.applications.folder / NAME / "application.json").unlink()

    assert LaunchState.GONE is launcher.poll(handle).state
    launcher.end(handle)
    assert "DELETE" not in [method for method, _, _ in server.asked]


def test_pods_that_cannot_be_asked_leave_a_failure_open(server: ApiServer) -> None:
    """A failed application may have a driver that runs: an outage says nothing of it."""
    launcher = opened(server)
    handle = launcher.submit(APPLICATION, TOKEN)
    put_status(server, applicationState={"state": "FAILED"})
    server.answers["GET /pods"] = refusal(503, "starting")
    away = launcher.poll(handle)
    put_status(server, applicationState={"state": "SUBMITTED"})

    assert LaunchState.UNKNOWN is away.state
    assert "answered 503: starting" in away.reason
    assert LaunchState.QUEUED is launcher.poll(handle).state


# --- ends and logs --------------------------------------------------------------------------------


@BOTH
def test_an_end_deletes_the_application_and_its_pods(server: ApiServer, operator: str) -> None:
    """Only this object, after its pods; one that is over stays, as do its state and log."""
    launcher = opened(server, operator)
    handle = launcher.submit(APPLICATION, TOKEN)
    put_status(
        server,
        applicationState={"state": "COMPLETED"},
        currentState={"currentStateSummary": "Succeeded"},
    )
    launcher.end(handle)
    kept = (server.applications.folder / NAME / "application.json").exists()
    (server.applications.folder / NAME / "status.json").unlink()
    launcher.end(handle)

    assert kept
    assert "Foreground" == sent(server)["propagationPolicy"]
    assert {"uid"} == sent(server)["preconditions"].keys()
    assert LaunchState.GONE is launcher.poll(handle).state


@pytest.mark.parametrize("code", [404, 409])
def test_an_application_that_has_gone_meanwhile_is_ended(server: ApiServer, code: int) -> None:
    """It is no longer there, or another one has its name."""
    launcher = opened(server)
    handle = launcher.submit(APPLICATION, TOKEN)
    server.answers["DELETE"] = refusal(code, "too late")
    launcher.end(handle)

    assert "DELETE" == server.asked[-1][0]


def test_an_application_that_is_being_deleted_says_so(server: ApiServer) -> None:
    """It has its state until its pods are gone."""
    launcher = opened(server)
    handle = launcher.submit(APPLICATION, TOKEN)
    file = server.applications.folder / NAME / "application.json"
    found = json.loads(file.read_text())
    found["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    file.write_text(json.dumps(found))
    put_status(server, applicationState={"state": "RUNNING"})

    assert ["RUNNING", "(is", "being", "deleted)"] == launcher.poll(handle).reason.split()


def test_a_log_is_the_end_of_the_drivers_pod(server: ApiServer) -> None:
    """Of its last thousand lines those that are new; nothing before the driver has begun."""
    launcher = opened(server)
    handle = launcher.submit(APPLICATION, TOKEN)
    none = launcher.log(handle)
    put_pod(server, "Pending", containerStatuses=[container(waiting={})])
    waiting = launcher.log(handle)
    put_pod(server, "Running", containerStatuses=[container(running={}), container("sidecar")])
    file = server.applications.folder / NAME / "log"
    missing = launcher.log(handle)
    file.write_text("".join(f"line {n}\n" for n in range(1500)))
    first = launcher.log(handle)
    file.write_text(file.read_text() + "new\n")
    second = launcher.log(handle, first.offset)

    assert [0, 0, 0] == [len(each.lines) for each in (none, waiting, missing)]
    assert ("line 500", "line 1499", 1000) == (first.lines[0], first.lines[-1], len(first.lines))
    assert ("new",) == second.lines
    assert first.offset < second.offset
    (query,) = [query for _, path, query in server.asked if path.endswith("/log")][:1]
    assert ["spark-kubernetes-driver"] == query["container"]
    assert ["4194304"] == query["limitBytes"]


@pytest.mark.parametrize(
    ("text", "offset", "lines"),
    [
        (b"", 0, ()),
        (b"1970-01-01T00:00:01Z a\n1970-01-01T00:00:01.5Z b\n", 0, ("a", "b")),
        (b"1970-01-01T00:00:01Z a\n1970-01-01T00:00:01.5Z b\n", 1_000_000_000, ("b",)),
        (b"1970-01-01T01:00:01+01:00 a\n", 999_999_999, ("a",)),
        (b"1970-01-01T00:00:01Z a\n1970-01-01T00:00:02Z cut o", 0, ("a",)),
        (b"1970-01-01T00:00:01Z \xff\n", 0, ("\ufffd",)),
        (b"1970-01-01T00:00:01Z\n", 0, ("",)),
        (b"unable to retrieve container logs\n9999-99-99T00:00:00Z x\n", 0, ()),
    ],
)
def test_lines_have_times(text: bytes, offset: int, lines: tuple[str, ...]) -> None:
    """Half a line is left for the next read, and what has no time is not the driver's."""
    part = lines_after(text, offset)

    assert lines == part.lines
    assert part.offset >= offset
    assert () == lines_after(text, part.offset).lines


# --- logins and wrong answers ---------------------------------------------------------------------


def test_a_connection_without_a_login_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    """What is missing is said in one line, without what the kube config has."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    wrong: list[dict[str, Any]] = [
        {"kube_config": None},
        {"kube_config": "]"},
        {"kube_config": "{}"},
        {"in_cluster": True, "kube_config": None},
        {"in_cluster": True},
        {"kube_config_path": str(tmp_path / "nowhere"), "kube_config": None},
        {"cluster_context": "elsewhere"},
    ]
    for extra in wrong:
        with pytest.raises(ConfigError, match="conn_id 'kube': has no login") as raised:
            spark_application_launcher("http://127.0.0.1:9", SECRET, {}, extra)
        assert 1 == len(str(raised.value).splitlines())
        assert SECRET not in str(raised.value)


def test_a_kube_config_is_a_file_too(server: ApiServer, tmp_path: Path) -> None:
    """And a namespace of the connection counts unless an option names one."""
    file = tmp_path / "config"
    file.write_text(json.dumps(kube_config(server.url, SECRET)))
    extra = {"kube_config": None, "kube_config_path": str(file), "namespace": "other"}
    launcher = spark_application_launcher(server.url, "", {}, extra)

    with pytest.raises(ConfigError, match="has no namespace 'other'"):
        launcher.check()
    spark_application_launcher(server.url, "", {"namespace": "streams"}, extra).check()


def test_a_missing_library_names_the_extra(monkeypatch: Any) -> None:
    """Without the provider of Kubernetes the error says what to install."""
    monkeypatch.setitem(sys.modules, "airflow.providers.cncf.kubernetes", None)
    with pytest.raises(ConfigError, match=r"needs the extra 'kubernetes': pip install"):
        spark_application_launcher("http://127.0.0.1:9", SECRET, {})


KUBEFLOW_ANSWER = {
    "metadata": {"name": NAME, "uid": "u", "labels": {LABEL: "t"}, "deletionTimestamp": None},
    "status": {"applicationState": {"state": "FAILED", "errorMessage": "x"}},
}
APACHE_STATE = {"currentStateSummary": "Failed", "message": "x", **DRIVER_ENDED}
APACHE_ANSWER = {
    "metadata": KUBEFLOW_ANSWER["metadata"],
    "status": {"currentState": APACHE_STATE, "stateTransitionHistory": {"0": APACHE_STATE}},
}


@pytest.mark.parametrize(
    ("operator", "answer"), [("kubeflow", KUBEFLOW_ANSWER), ("apache", APACHE_ANSWER)]
)
def test_whatever_an_answer_has_is_one_line(
    server: ApiServer, operator: str, answer: dict[str, Any]
) -> None:
    """Each part of it replaced or left out: a result, or one line of ours."""
    handle = dataclasses.replace(opened(server, operator)._handle("t"))

    def answer_with(value: Any) -> None:
        for method in ("GET", "POST", "DELETE"):
            server.answers[f"{method} sparkapplications"] = 200, value

    check_wrong_answers(opened(server, operator), handle, answer, answer_with)


@pytest.mark.parametrize("body", [b"<html>", b"", b"[" * 100_000, b"{}" * (9 << 20)])
def test_an_answer_that_is_no_json_is_unknown(server: ApiServer, body: bytes) -> None:
    """Also a large one, of which no more than a part is read."""
    launcher = opened(server)
    handle = launcher.submit(APPLICATION, TOKEN)
    server.answers["GET sparkapplications"] = 200, body
    status = launcher.poll(handle)

    assert LaunchState.UNKNOWN is status.state
    assert "not an answer that is known" in status.reason


def test_an_answer_without_an_end_is_an_outage(server: ApiServer) -> None:
    """A server that sends a little for ever does not hold the task."""
    launcher = opened(server)
    handle = launcher.submit(APPLICATION, TOKEN)
    clock = FakeClock()
    slow = SparkApplicationLauncher(launcher._options, launcher._api.api_client, clock)
    server.answers["GET sparkapplications"] = 200, b" " * (1 << 20)
    monotonic = clock.monotonic

    def later() -> float:
        clock.sleep(10)
        return monotonic()

    clock.monotonic = later  # type: ignore[method-assign]
    status = slow.poll(handle)

    assert LaunchState.UNKNOWN is status.state
    assert "does not answer" in status.reason


def test_a_handle_of_another_launcher_is_unknown(server: ApiServer) -> None:
    """It says no operator."""
    handle = Handle(driver_id=TOKEN, launcher="livy", id="12")

    assert LaunchState.UNKNOWN is opened(server).poll(handle).state
