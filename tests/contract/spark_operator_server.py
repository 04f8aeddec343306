"""A stand-in for Kubernetes' API server with an operator for Spark, which starts real processes.

``python -m tests.contract.spark_operator_server FOLDER PORT TOKEN`` prints its port and serves until
it is killed. It keeps SparkApplications of both operators' CRDs in *FOLDER*, so that they outlive it
as those of a real one do; each that is not suspended is a process, and a pod for those who ask.

``/-/`` is the way to disturb it (``lose``) and to see what it has started (``started``).
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psutil

KUBEFLOW, APACHE = "sparkoperator.k8s.io/v1beta2", "spark.apache.org/v1"
NAMESPACE = "streams"
RUN = '"$@" >log 2>&1; echo $? >code.tmp; mv code.tmp code'
_LABEL_CONF = "spark.kubernetes.driver.label."
_PATH = re.compile(r"/apis/([^/]+/[^/]+)/namespaces/([^/]+)/sparkapplications(?:/([^/]+))?")
_PODS = re.compile(r"/api/v1/namespaces/([^/]+)/pods(?:/([^/]+)/log)?")
_COMMON = {"sparkConf", "suspend", "proxyUser"}
# Of the real CRDs, which tests/real/kubernetes has.
FIELDS = {
    KUBEFLOW: _COMMON
    | {"type", "mode", "mainApplicationFile", "mainClass", "arguments", "deps", "driver"}
    | {"executor", "restartPolicy", "sparkVersion", "image", "volumes", "timeToLiveSeconds"},
    APACHE: _COMMON
    | {"mainClass", "pyFiles", "jars", "driverArgs", "deploymentMode", "applicationTolerations"}
    | {"runtimeVersions", "driverSpec", "executorSpec"},
}
NEEDED = {KUBEFLOW: {"driver", "executor", "sparkVersion", "type"}, APACHE: {"runtimeVersions"}}


def refusal(code: int, message: str, reason: str = "", **details: str) -> tuple[int, Any]:
    status = {"kind": "Status", "apiVersion": "v1", "code": code, "message": message}
    return code, {**status, "status": "Failure", "reason": reason, "details": details}


class Applications:
    """The applications, each a folder: ``application.json``, and what its process has left.

    Args:
        folder: where they are.

    Attributes:
        fields: by CRD that is installed, the fields of its spec.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = threading.Lock()
        self.losing = 0
        self.fields = {name: set(fields) for name, fields in FIELDS.items()}

    def started(self) -> int:
        return len(list(self.folder.glob("*/pid")))

    def create(self, sent: dict[str, Any], *, is_dry: bool, is_strict: bool) -> tuple[int, Any]:
        version, spec, name = sent["apiVersion"], sent["spec"], sent["metadata"]["name"]
        unknown = sorted(spec.keys() - self.fields[version])
        if unknown and is_strict:
            said = f'strict decoding error: unknown field "spec.{unknown[0]}"'
            return refusal(400, f"SparkApplication cannot be handled: {said}", "BadRequest")
        if missing := sorted(NEEDED[version] - spec.keys()):
            return refusal(422, f"spec.{missing[0]}: Required value", "Invalid")
        location = self.folder / name
        if (location / "application.json").exists():
            said = f'sparkapplications "{name}" already exists'
            return refusal(409, said, "AlreadyExists", name=name, kind="sparkapplications")
        made = {**sent, "metadata": {**sent["metadata"], "uid": str(uuid.uuid4())}}
        if not is_dry:
            location.mkdir(exist_ok=True)
            (location / "application.json").write_text(json.dumps(made))
            if not spec.get("suspend"):
                self.start(location, spec)
        return 201, made

    def start(self, location: Path, spec: dict[str, Any]) -> None:
        """Do what an operator does: start the driver."""
        file = spec.get("mainApplicationFile") or spec["pyFiles"]
        arguments = spec.get("arguments", []) + spec.get("driverArgs", [])
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        command = ["sh", "-c", RUN, "sh", sys.executable, file, *arguments]
        process = subprocess.Popen(command, cwd=location, env=environment, start_new_session=True)
        threading.Thread(target=process.wait, daemon=True).start()
        (location / "pid").write_text(str(process.pid))

    def read(self, version: str, name: str) -> dict[str, Any] | None:
        file = self.folder / name / "application.json"
        if not file.exists():
            return None
        found: dict[str, Any] = json.loads(file.read_text())
        if found["apiVersion"] != version:
            return None
        status = file.with_name("status.json")  # of a test, or the operator's
        found["status"] = json.loads(status.read_text()) if status.exists() else self.status(found)
        return found

    def status(self, found: dict[str, Any]) -> dict[str, Any]:
        code = self.exit_code(found["metadata"]["name"])
        if found["apiVersion"] == KUBEFLOW:
            state = {None: "RUNNING", 0: "COMPLETED"}.get(code, "FAILED")
            state = "SUSPENDED" if found["spec"].get("suspend") else state
            said = f"driver container failed with ExitCode: {code}, Reason: Error" if code else ""
            return {"applicationState": {"state": state, "errorMessage": said}, "driverInfo": {}}
        if code is None:
            return {"currentState": {"currentStateSummary": "RunningHealthy", "message": "runs"}}
        last = "Failed" if code else "Succeeded"
        ended: dict[str, Any] = {"currentStateSummary": last, "message": "ended"}
        terminated = {
            "name": "spark-kubernetes-driver",
            "state": {"terminated": {"exitCode": code}},
        }
        ended["lastObservedDriverStatus"] = {"containerStatuses": [terminated]}
        is_kept = code and found["spec"]["applicationTolerations"].get("resourceRetainPolicy")
        last = "TerminatedWithoutReleaseResources" if is_kept else "ResourceReleased"
        released = {"currentStateSummary": last, "message": "released"}
        return {"currentState": released, "stateTransitionHistory": {"8": ended, "9": released}}

    def exit_code(self, name: str) -> int | None:
        location = self.folder / name
        code, pid = location / "code", location / "pid"
        deadline = time.monotonic() + 2
        while pid.exists() and not (code.exists() or _is_at_work(int(pid.read_text()))):
            if time.monotonic() > deadline:
                return 137
            time.sleep(0.01)  # its shell has yet to start it, or to write how it has ended
        return int(code.read_text()) if code.exists() else None

    def delete(self, version: str, name: str, options: dict[str, Any]) -> tuple[int, Any]:
        found = self.read(version, name)
        if found is None:
            return missing(name)
        if options.get("preconditions", {}).get("uid") != found["metadata"]["uid"]:
            return refusal(409, "Precondition failed: UID in precondition", "Conflict")
        pid = self.folder / name / "pid"
        if pid.exists() and self.exit_code(name) is None:
            os.killpg(int(pid.read_text()), signal.SIGKILL)
        (self.folder / name / "application.json").unlink()
        return 200, found

    def pods(self, selector: dict[str, str]) -> list[dict[str, Any]]:
        found = [self.pod(file) for file in sorted(self.folder.glob("*/application.json"))]
        pods = [pod for pod in found if pod is not None]
        return [pod for pod in pods if selector.items() <= pod["metadata"]["labels"].items()]

    def pod(self, file: Path) -> dict[str, Any] | None:
        own = file.with_name("pod.json")
        if own.exists():
            made: dict[str, Any] = json.loads(own.read_text())
            return made
        if not file.with_name("pid").exists():
            return None
        found = json.loads(file.read_text())
        name, spec = found["metadata"]["name"], found["spec"]
        labels = {"spark-role": "driver", **spec.get("driver", {}).get("labels", {})}
        for key, value in spec["sparkConf"].items():
            if key.startswith(_LABEL_CONF):
                labels[key.removeprefix(_LABEL_CONF)] = value
        code = self.exit_code(name)
        state: dict[str, Any] = {"running": {}}
        if code is not None:
            state = {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed"}}
        container: dict[str, Any] = {"name": "spark-kubernetes-driver", "image": "spark"}
        container |= {"imageID": "", "ready": False, "restartCount": 0, "state": state}
        phase = {None: "Running", 0: "Succeeded"}.get(code, "Failed")
        return {
            "metadata": {"name": f"{name}-driver", "uid": f"pod-of-{name}", "labels": labels},
            "spec": {"containers": [{"name": "spark-kubernetes-driver"}]},
            "status": {"phase": phase, "containerStatuses": [container]},
        }

    def log(self, pod: str, query: dict[str, list[str]]) -> bytes | None:
        """Return the last lines of a pod, each with a time that stays its own."""
        file = self.folder / pod.removesuffix("-driver") / "log"
        if not file.exists():
            return None
        lines = file.read_text(errors="replace").splitlines()
        began = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
        times = (began + dt.timedelta(microseconds=n) for n in range(len(lines)))
        stamped = [
            f"{at:%Y-%m-%dT%H:%M:%S.%f}001Z {line}\n" for at, line in zip(times, lines, strict=True)
        ]
        text = "".join(stamped[-int(query["tailLines"][0]) :]).encode()
        return text[: int(query["limitBytes"][0])]


def missing(name: str) -> tuple[int, Any]:
    said = f'sparkapplications.sparkoperator.k8s.io "{name}" not found'
    return refusal(404, said, "NotFound", name=name, kind="sparkapplications")


def _is_at_work(pid: int) -> bool:
    try:
        children = psutil.Process(pid).children()
        return any(child.status() != psutil.STATUS_ZOMBIE for child in children)
    except psutil.NoSuchProcess:
        return False


class ApiServer(ThreadingHTTPServer):
    """Answers for the applications of a folder.

    Args:
        folder: where they are.
        port: 0 for a free one.
        token: what a client has to log in with.

    Attributes:
        answers: by method, or by method and a part of the path, status and body of an answer.
        asked: method, path and query of each request.
        bodies: what was sent with each request that has a body.
    """

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0, token: str = "t0ken") -> None:  # noqa: S107
        super().__init__(("127.0.0.1", port), Handler)
        self.applications, self.token = Applications(folder), token
        self.answers: dict[str, tuple[int, Any]] = {}
        self.asked: list[tuple[str, str, dict[str, list[str]]]] = []
        self.bodies: list[Any] = []

    def handle_error(self, *_: Any) -> None:
        """Say nothing of a client that has heard enough of a long answer."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet: the second one would wait for a delayed answer
    server: ApiServer

    def answer(self) -> None:
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        self.server.asked.append((self.command, url.path, query))
        self.server.bodies += [body] if body is not None else []
        applications = self.server.applications
        with applications.lock:
            status, answer = self.found(url.path, query, body)
            is_kept = self.command == "POST" and "dryRun" not in query
            if is_kept and applications.losing:
                applications.losing -= 1
                self.close_connection = True
                return
        text = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        kind = "text/plain" if url.path.endswith("/log") else "application/json"
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_DELETE = answer  # noqa: N815

    def found(self, path: str, query: dict[str, list[str]], body: Any) -> tuple[int, Any]:
        if path.startswith("/-/"):
            self.server.applications.losing += path == "/-/lose"
            return 200, {"started": self.server.applications.started()}
        if self.headers.get("Authorization") != f"Bearer {self.server.token}":
            return refusal(401, "Unauthorized", "Unauthorized")
        for key, made in self.server.answers.items():
            method, _, part = key.partition(" ")
            if self.command == method and part in path:
                return made
        if (found := _PODS.fullmatch(path)) is not None:
            return self.pods(found[2], query)
        if (found := _PATH.fullmatch(path)) is not None and found[
            1
        ] in self.server.applications.fields:
            return self.application(found[1], found[2], found[3], query, body)
        return 404, b"404 page not found\n"

    def pods(self, name: str | None, query: dict[str, list[str]]) -> tuple[int, Any]:
        if name is not None:
            log = self.server.applications.log(name, query)
            return (200, log) if log is not None else refusal(404, f'pods "{name}" not found')
        selector = dict(part.split("=") for part in query["labelSelector"][0].split(","))
        items = self.server.applications.pods(selector)
        return 200, {"kind": "PodList", "apiVersion": "v1", "items": items}

    def application(
        self, version: str, namespace: str, name: str | None, query: dict[str, list[str]], body: Any
    ) -> tuple[int, Any]:
        applications = self.server.applications
        if self.command == "POST":
            if namespace != NAMESPACE:
                said = f'namespaces "{namespace}" not found'
                return refusal(404, said, "NotFound", name=namespace, kind="namespaces")
            is_strict = query.get("fieldValidation") == ["Strict"]
            return applications.create(body, is_dry="dryRun" in query, is_strict=is_strict)
        assert name is not None, path_of(self)
        if self.command == "DELETE":
            return applications.delete(version, name, body)
        found = applications.read(version, name) if namespace == NAMESPACE else None
        return (200, found) if found is not None else missing(name)

    def log_message(self, *_args: Any) -> None:
        pass


def path_of(handler: Handler) -> str:
    return f"{handler.command} {handler.path}"


def main() -> None:
    folder, port, token = sys.argv[1:]
    server = ApiServer(Path(folder), int(port), token)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
