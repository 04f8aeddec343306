"""Drivers in pods, asked of a stand-in for the API server with the real Python client."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kubernetes.config import incluster_config

from airflow_provider.hooks.kubernetes_pods import pods_client
from airflow_provider.runtime.api.launchers import LaunchState, LaunchStatus
from airflow_provider.runtime.base.kubernetes_pods import PodsClient, pod_handle
from airflow_provider.runtime.errors import (
    ConfigError,
    LauncherAwayError,
    SubmissionRefusedError,
)
from tests.unit.api_server import ApiServerStandIn, a_pod, container, scheduled

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow
TOKEN = "7f" * 16
HANDLE = pod_handle(TOKEN, "streams")
PODS = "/api/v1/namespaces/streams/pods"


@pytest.fixture
def server() -> Iterator[ApiServerStandIn]:
    stand_in = ApiServerStandIn()
    yield stand_in
    stand_in.stop()


@pytest.fixture
def client(server: ApiServerStandIn, tmp_path: Path) -> PodsClient:
    return opened(server, {"KUBECONFIG": str(server.write_config(tmp_path))})


def opened(server: ApiServerStandIn, environ: dict[str, str]) -> PodsClient:
    found = pods_client(f"k8s://{server.url}", None, environ)
    assert isinstance(found, PodsClient), found
    return found


NODE = scheduled(has_node=True)
# As Kubernetes 1.34 says it.
REFUSED = b'{"kind": "Status", "status": "Failure", "message": "%s"}'
FORBIDDEN = (
    b'pods is forbidden: User \\"asker\\" cannot list resource \\"pods\\" in API group \\"\\"'
)
OOM = {"exitCode": 137, "reason": "OOMKilled"}


@pytest.mark.parametrize(
    ("phase", "status", "state", "code", "says"),
    [
        ("Pending", {}, LaunchState.QUEUED, None, ""),
        (
            "Pending",
            {"conditions": scheduled(has_node=False, message="0/3 nodes are available")},
            LaunchState.QUEUED,
            None,
            "0/3 nodes are available",
        ),
        (
            "Pending",
            {
                "conditions": NODE,
                "containerStatuses": [
                    container(waiting={"reason": "ImagePullBackOff", "message": "no image\nx"})
                ],
            },
            LaunchState.RUNNING,
            None,
            "ImagePullBackOff no image",
        ),
        ("Running", {"containerStatuses": [container(running={})]}, LaunchState.RUNNING, None, ""),
        ("Succeeded", {}, LaunchState.ENDED, 0, ""),
        (
            "Failed",
            {
                "containerStatuses": [
                    container("sidecar", terminated={"exitCode": 0}),
                    container(terminated=OOM),
                ]
            },
            LaunchState.ENDED,
            137,
            "OOMKilled",
        ),
        (
            "Failed",
            {"containerStatuses": [container("of-a-template", terminated={"exitCode": 2})]},
            LaunchState.ENDED,
            2,
            "",
        ),
        (
            "Failed",
            {"message": "The node was low on memory", "containerStatuses": []},
            LaunchState.ENDED,
            None,
            "The node was low on memory",
        ),
        ("Unknown", {}, LaunchState.UNKNOWN, None, ""),
    ],
)
def test_a_phase_is_a_state(
    server: ApiServerStandIn,
    client: PodsClient,
    *,
    phase: str,
    status: dict[str, Any],
    state: LaunchState,
    code: int | None,
    says: str,
) -> None:
    """
    A pod without a node is queued, for as long as it takes; one that has a node has to come up. The
    exit code is the driver's, and not that of a container beside it.
    """
    server.pods["streams"] = [a_pod("daily-driver", TOKEN, phase, **status)]
    found = client.poll(HANDLE)

    assert LaunchStatus(state, code, f"pod daily-driver {phase} {says}".strip()) == found
    ((method, path, query),) = server.asked
    assert ("GET", PODS) == (method, path)
    assert [f"spark-stream-driver-id={TOKEN},spark-role=driver"] == query["labelSelector"]


def test_a_pod_that_is_not_there_is_gone(server: ApiServerStandIn, client: PodsClient) -> None:
    """Pods of other drivers, or of another namespace, are none of this driver."""
    server.pods = {"streams": [a_pod("a", "8" * 32)], "default": [a_pod("b", TOKEN)]}
    status = client.poll(HANDLE)

    assert LaunchState.GONE is status.state
    assert "streams has no pod with the label spark-stream-driver-id" == status.reason


def test_of_several_pods_the_living_one_counts(
    server: ApiServerStandIn, client: PodsClient
) -> None:
    """An earlier start that has failed says nothing."""
    server.pods["streams"] = [a_pod("a", TOKEN, "Failed"), a_pod("b", TOKEN)]

    assert LaunchState.RUNNING is client.poll(HANDLE).state


def test_a_deleted_pod_stays_until_its_node_has_ended_it(
    server: ApiServerStandIn, client: PodsClient
) -> None:
    """It is no end yet, and says so; another pod with the label comes before it."""
    server.pods["streams"] = [a_pod("a", TOKEN)]
    client.end(HANDLE)
    deleted = client.poll(HANDLE)
    server.pods["streams"].append(a_pod("b", TOKEN, "Pending"))
    again = client.poll(HANDLE)
    server.end_deleted()
    client.end(HANDLE)

    assert LaunchStatus(LaunchState.RUNNING, None, "pod a Running, deleted") == deleted
    assert LaunchStatus(LaunchState.QUEUED, None, "pod b Pending") == again
    assert LaunchState.GONE is client.poll(HANDLE).state


def test_a_pod_that_was_bound_to_a_node_by_hand_has_one(
    server: ApiServerStandIn, client: PodsClient
) -> None:
    """No scheduler has said so."""
    bound = a_pod("a", TOKEN, "Pending")
    bound["spec"]["nodeName"] = "node-1"
    server.pods["streams"] = [bound]

    assert LaunchState.RUNNING is client.poll(HANDLE).state


def test_only_a_pod_with_the_label_is_deleted(server: ApiServerStandIn, client: PodsClient) -> None:
    """Whatever a server lists; and only if it is still the same pod. Twice is as once."""
    server.ignores_selector = True
    bare = a_pod("c", TOKEN)
    bare["metadata"].pop("labels")
    server.pods["streams"] = [
        a_pod("a", TOKEN),
        a_pod("b", f"{TOKEN}0"),
        bare,
        a_pod("d", TOKEN, "Succeeded"),
    ]
    client.end(HANDLE)
    client.end(HANDLE)

    assert ["a"] == server.deleted()
    assert [{"preconditions": {"uid": "uid-of-a"}}] == server.bodies


@pytest.mark.parametrize("code", [404, 409])
def test_a_pod_that_has_gone_meanwhile_is_ended(
    server: ApiServerStandIn, client: PodsClient, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """It is no longer there, or another one has its name."""
    server.pods["streams"] = [a_pod("a", TOKEN)]
    act = server.act

    def late(method: str, *more: Any) -> tuple[int, bytes]:
        return act(method, *more) if method == "GET" else server.refusal(code, "too late")

    monkeypatch.setattr(server, "act", late)
    client.end(HANDLE)

    assert ["a"] == server.deleted()


@pytest.mark.parametrize(
    ("status", "body", "error", "says"),
    [
        (
            401,
            REFUSED % b"Unauthorized",
            SubmissionRefusedError,
            "401: Unauthorized; it does not know",
        ),
        (403, REFUSED % FORBIDDEN, SubmissionRefusedError, 'User "asker" cannot list resource'),
        (403, b"no", SubmissionRefusedError, "answered 403: no; this process's account needs the"),
        (404, b"not here", SubmissionRefusedError, "answered 404: not here"),
        (429, b"slow down", LauncherAwayError, "answered 429: slow down"),
        (503, b"starting", LauncherAwayError, "answered 503: starting"),
        (200, b"<html>a login page", LauncherAwayError, "not an answer that is known"),
        (200, b"[]", LauncherAwayError, "not an answer that is known"),
        (200, b'{"items": null}', LauncherAwayError, "not an answer that is known"),
    ],
)
def test_an_answer_of_another_kind_is_unknown(
    server: ApiServerStandIn,
    client: PodsClient,
    *,
    status: int,
    body: bytes,
    error: type[Exception],
    says: str,
) -> None:
    """Nothing follows from it; the reason is one line, and an end fails likewise."""
    server.answer = (status, body)
    found = client.poll(HANDLE)
    with pytest.raises(error, match=says):
        client.check(HANDLE)

    assert LaunchState.UNKNOWN is found.state
    assert says in found.reason
    assert 1 == len(found.reason.splitlines())
    assert server.token not in found.reason


@pytest.mark.parametrize("status", [{}, None, {"phase": "Exploded"}, {"phase": 7}])
def test_a_pod_that_is_not_understood_is_unknown(
    server: ApiServerStandIn, client: PodsClient, status: Any
) -> None:
    """A status without a phase, or with a new one, is no end."""
    server.pods["streams"] = [{**a_pod("a", TOKEN), "status": status}]
    found = client.poll(HANDLE)

    assert (LaunchState.UNKNOWN, 1) == (found.state, len(found.reason.splitlines()))


def test_a_server_that_is_away_says_nothing(server: ApiServerStandIn, client: PodsClient) -> None:
    """Neither does an answer that breaks off; the address is named."""
    server.pods["streams"], server.cut = [a_pod("a", TOKEN)], 5
    cut = client.poll(HANDLE)
    server.stop()
    away = client.poll(HANDLE)

    for status in (cut, away):
        assert LaunchState.UNKNOWN is status.state
        assert f"kubernetes {server.url}: does not answer" in status.reason
    with pytest.raises(LauncherAwayError):
        client.end(HANDLE)


def test_a_wrong_token_is_refused(server: ApiServerStandIn, client: PodsClient) -> None:
    """Nothing is deleted with it, and it is not shown."""
    server.pods["streams"], server.token = [a_pod("a", TOKEN)], "another"
    with pytest.raises(ConfigError, match="401") as raised:
        client.end(HANDLE)

    assert "s3cr3t" not in str(raised.value)
    assert 1 == len(server.pods["streams"])


# --- logins -------------------------------------------------------------------------------------


def test_a_service_account_logs_in(
    server: ApiServerStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a pod without a kube config, at the address of Spark's master."""
    token, authority = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text(server.token)
    authority.write_text("a certificate")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(authority))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "9")
    client = opened(server, {"KUBECONFIG": str(tmp_path / "nowhere")})

    assert "pods of streams can be listed" == client.check(HANDLE)


def test_without_a_login_nothing_can_be_asked(
    server: ApiServerStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is missing is said: a file, a context, or the package."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    environ = {"KUBECONFIG": str(server.write_config(tmp_path))}
    master = f"k8s://{server.url}"
    no_file = pods_client(master, None, {"KUBECONFIG": str(tmp_path / "nowhere")})
    no_context = pods_client(master, "elsewhere", environ)
    Path(environ["KUBECONFIG"]).write_text("]")
    broken = pods_client(master, None, environ)
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    no_package = pods_client(master, None, environ)

    for found in (no_file, no_context, broken):
        assert str(found).startswith("set KUBECONFIG to a file with a login, or give the pod")
        assert 1 == len(str(found).splitlines())
    assert "elsewhere" in str(no_context)
    assert "install the package kubernetes" == no_package


def test_an_address_without_a_scheme_is_https(server: ApiServerStandIn, tmp_path: Path) -> None:
    """As Spark takes it."""
    environ = {"KUBECONFIG": str(server.write_config(tmp_path))}
    client = pods_client("k8s://127.0.0.1:9", None, environ)

    assert isinstance(client, PodsClient)
    assert "kubernetes https://127.0.0.1:9: does not answer" in client.poll(HANDLE).reason
