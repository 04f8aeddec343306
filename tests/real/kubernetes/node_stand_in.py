"""A stand-in for a node: pods that are scheduled to it are processes of this machine.

It does what a kubelet does for a driver: it starts its program, writes the pod's status, serves its
log to the API server, and ends what was deleted. A real node needs root and the machine for itself.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import signal
import ssl
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kubernetes import client
from urllib3.exceptions import HTTPError

NAME = "node-stand-in"
POLL_S, BEAT_EACH = 0.1, 20
OUTAGES = (client.ApiException, HTTPError, OSError)


class Driver:
    """The process of a pod's only container.

    Attributes:
        lines: what it has written, each with its time.
    """

    def __init__(self, arguments: list[str]) -> None:
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environ,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None, self.process.args
        with self.process.stdout as output:
            for number, line in enumerate(output):
                at = dt.datetime.now(dt.timezone.utc)
                self.lines.append(f"{at:%Y-%m-%dT%H:%M:%S.%f}{number % 1000:03}Z {line}")

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class NodeStandIn:
    """A node of a cluster.

    Args:
        api: a client that may do all.
        folder: has ``server.crt`` and ``server.key``.
    """

    def __init__(self, api: client.ApiClient, folder: Path) -> None:
        self._pods = client.CoreV1Api(api)
        self._drivers: dict[str, Driver] = {}
        self._names: dict[str, str] = {}
        self._reported: dict[str, int | None] = {}
        self._ends = threading.Event()
        node = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                status, body = node.log(self.path)
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.crt", folder / "server.key")
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._threads = [
            threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True),
            threading.Thread(target=self._work, daemon=True),
        ]

    def start(self) -> None:
        self._pods.create_node({"metadata": {"name": NAME}})
        self._beat()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._ends.set()
        self._threads[1].join()
        self._server.shutdown()
        self._server.server_close()
        for driver in self._drivers.values():
            driver.kill()

    def log(self, path: str) -> tuple[int, bytes]:
        """Return what a kubelet answers to ``/containerLogs/NAMESPACE/POD/CONTAINER``."""
        url = urlsplit(path)
        uid = self._names.get(url.path.split("/")[3])
        if uid is None:
            return 404, b"no such pod"
        query = parse_qs(url.query)
        lines = self._drivers[uid].lines[-int(query["tailLines"][0]) :]
        return 200, "".join(lines).encode()[: int(query["limitBytes"][0])]

    def _beat(self) -> None:
        now = dt.datetime.now(dt.timezone.utc).isoformat()
        ready = {"type": "Ready", "status": "True", "reason": "Tests", "message": "it works"}
        resources = {"cpu": "64", "memory": "64Gi", "pods": "200"}
        status = {
            "conditions": [{**ready, "lastHeartbeatTime": now, "lastTransitionTime": now}],
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._server.server_port}},
            "capacity": resources,
            "allocatable": resources,
        }
        self._pods.patch_node_status(NAME, {"status": status})

    def _work(self) -> None:
        count = 0
        while not self._ends.wait(POLL_S):
            count += 1
            with contextlib.suppress(*OUTAGES):  # an API server that a test has killed
                if count % BEAT_EACH == 0:
                    self._beat()
                mine = f"spec.nodeName={NAME}"
                for pod in self._pods.list_pod_for_all_namespaces(field_selector=mine).items:
                    self._sync(pod)

    def _sync(self, pod: Any) -> None:
        uid, name, namespace = pod.metadata.uid, pod.metadata.name, pod.metadata.namespace
        driver = self._drivers.get(uid)
        if pod.metadata.deletion_timestamp is not None:
            if driver is not None:
                driver.kill()
            self._pods.delete_namespaced_pod(name, namespace, grace_period_seconds=0)
            return
        if driver is None:
            driver = self._drivers[uid] = Driver(pod.spec.containers[0].args[1:])
            self._names[name] = uid
        code = driver.process.poll()
        if uid in self._reported and self._reported[uid] == code:
            return
        state: dict[str, Any] = {"running": {}}
        if code is not None:
            state = {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed"}}
        phase = {None: "Running", 0: "Succeeded"}.get(code, "Failed")
        container = {"name": pod.spec.containers[0].name, "image": "x", "imageID": "x"}
        statuses = [{**container, "ready": code is None, "restartCount": 0, "state": state}]
        status = {"phase": phase, "containerStatuses": statuses}
        self._pods.patch_namespaced_pod_status(name, namespace, {"status": status})
        self._reported[uid] = code
