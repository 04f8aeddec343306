"""A stand-in for the API server of Kubernetes: lists of pods and their deletion, as documented."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

LABEL = "spark-stream-driver-id"


def a_pod(name: str, token: str, phase: str = "Running", **status: Any) -> dict[str, Any]:
    """Return a driver's pod, with what the documentation says that a status may have."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "uid": f"uid-of-{name}",
            "labels": {LABEL: token, "spark-role": "driver"},
        },
        "spec": {"containers": [{"name": "spark-kubernetes-driver"}]},
        "status": {"phase": phase, **status},
    }


def scheduled(*, has_node: bool, message: str = "") -> list[dict[str, str]]:
    status = "True" if has_node else "False"
    return [{"type": "PodScheduled", "status": status, "message": message}]


def container(name: str = "spark-kubernetes-driver", **state: Any) -> dict[str, Any]:
    required = {"image": "spark", "imageID": "", "ready": False, "restartCount": 0}
    return {"name": name, **required, "state": state}


def _has_process(pod: dict[str, Any]) -> bool:
    """Whether a node has the pod, so that it stays until that node has ended it."""
    phase, conditions = pod["status"].get("phase"), pod["status"].get("conditions") or []
    has_node = any(
        each["type"] == "PodScheduled" and each["status"] == "True" for each in conditions
    )
    return phase == "Running" or (phase == "Pending" and has_node)


class ApiServerStandIn:
    """A server on a port of this machine that answers as an API server would.

    Attributes:
        pods: by namespace; a selector is obeyed unless ``ignores_selector``.
        answer: status and body of each answer; None to behave.
        asked: method, path and query of each request.
        bodies: what was sent with each DELETE.
        token: what a client has to log in with.
    """

    def __init__(self) -> None:
        self.pods: dict[str, list[dict[str, Any]]] = {}
        self.ignores_selector = False
        self.answer: tuple[int, bytes] | None = None
        self.cut = 0
        self.asked: list[tuple[str, str, dict[str, list[str]]]] = []
        self.bodies: list[Any] = []
        self.token = "s3cr3t"  # noqa: S105 - of the stand-in
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

            def answer(self) -> None:
                url = urlsplit(self.path)
                query = parse_qs(url.query)
                stand_in.asked.append((self.command, url.path, query))
                sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                scheme, _, token = self.headers.get("Authorization", "").partition(" ")
                is_known = (scheme.lower(), token) == ("bearer", stand_in.token)
                status, body = stand_in.answer or (
                    stand_in.act(self.command, url.path, query, sent)
                    if is_known
                    else stand_in.refusal(401, "Unauthorized")
                )
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: len(body) - stand_in.cut])

            do_GET = do_DELETE = answer  # noqa: N815

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def refusal(self, code: int, reason: str) -> tuple[int, bytes]:
        status = {"kind": "Status", "apiVersion": "v1", "code": code, "message": reason}
        return code, json.dumps(status).encode()

    def act(
        self, method: str, path: str, query: dict[str, list[str]], sent: bytes
    ) -> tuple[int, bytes]:
        """Answer a client that has logged in."""
        namespace, _, name = path.removeprefix("/api/v1/namespaces/").partition("/pods")
        pods = self.pods.setdefault(namespace, [])
        if method == "GET":
            wanted = dict(part.split("=") for part in query["labelSelector"][0].split(","))
            found = [
                pod
                for pod in pods
                if self.ignores_selector or wanted.items() <= pod["metadata"]["labels"].items()
            ]
            return 200, json.dumps({"kind": "PodList", "apiVersion": "v1", "items": found}).encode()
        self.bodies.append(json.loads(sent))
        gone = [pod for pod in pods if pod["metadata"]["name"] == name.strip("/")]
        if not gone:
            return self.refusal(404, "pods not found")
        if gone[0]["metadata"]["uid"] != self.bodies[-1]["preconditions"]["uid"]:
            return self.refusal(409, "the UID in the precondition does not match the UID in record")
        if _has_process(gone[0]):
            gone[0]["metadata"].setdefault("deletionTimestamp", "2026-01-01T00:00:30Z")
        else:
            pods.remove(gone[0])
        return 200, json.dumps(gone[0]).encode()

    def end_deleted(self) -> None:
        """Let nodes end the pods that were deleted, as they do within the time that a pod has."""
        for pods in self.pods.values():
            pods[:] = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def write_config(self, folder: Path) -> Path:
        """Write a kube config with the stand-in's token, and return its path."""
        file = folder / "kube.config"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
            "users": [{"name": "u", "user": {"token": self.token}}],
            "contexts": [
                {"name": "here", "context": {"cluster": "c", "user": "u"}},
                {"name": "other", "context": {"cluster": "c", "user": "nobody"}},
            ],
        }
        file.write_text(json.dumps(config))
        return file

    def deleted(self) -> list[str]:
        return [path.rpartition("/")[2] for method, path, _ in self.asked if method == "DELETE"]

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
