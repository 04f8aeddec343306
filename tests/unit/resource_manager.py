"""A stand-in for YARN's ResourceManager: the answers that its documentation has, and wrong ones."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


def an_app(number: int, tag: str, state: str = "RUNNING", **more: Any) -> dict[str, Any]:
    """Return an application as the documentation's example has it, without what nobody reads here."""
    return {
        "id": f"application_1476912658570_{number:04}",
        "user": "streams",
        "name": "spark-stream",
        "queue": "default",
        "state": state,
        "finalStatus": "UNDEFINED",
        "progress": 10.0,
        "trackingUI": "ApplicationMaster",
        "diagnostics": "",
        "clusterId": 1476912658570,
        "applicationType": "SPARK",
        "applicationTags": tag,
        "startedTime": 1476913457320 + number,
        **more,
    }


class ResourceManagerStandIn:
    """A server on a port of this machine that answers as a ResourceManager would.

    Attributes:
        apps: what it has, whatever it is asked for.
        answer: status, headers and body of each answer; None to be the active one.
        cut: bytes that are left out at the end of each answer.
        asked: method, path and query of each request.
        bodies: what was sent with each PUT.
        users: who may end an application; any name if empty.
    """

    def __init__(self) -> None:
        self.apps: list[dict[str, Any]] = []
        self.answer: tuple[int, dict[str, str], bytes] | None = None
        self.cut = 0
        self.asked: list[tuple[str, str, dict[str, list[str]]]] = []
        self.bodies: list[Any] = []
        self.headers: dict[str, str] = {}
        self.users: set[str] = set()
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

            def answer(self) -> None:
                url = urlsplit(self.path)
                query = parse_qs(url.query)
                stand_in.asked.append((self.command, url.path, query))
                stand_in.headers = dict(self.headers)
                sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, headers, body = stand_in.answer or stand_in.act(
                    self.command, url.path, query, sent
                )
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: len(body) - stand_in.cut])

            do_GET = do_PUT = answer  # noqa: N815

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def act(
        self, method: str, path: str, query: dict[str, list[str]], sent: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        """Answer as the active ResourceManager."""
        as_json = {"Content-Type": "application/json;charset=utf-8"}
        if path == "/ws/v1/cluster/apps" and method == "GET":
            apps = {"app": self.apps} if self.apps else None
            return 200, as_json, json.dumps({"apps": apps}).encode()
        found = [each for each in self.apps if path == f"/ws/v1/cluster/apps/{each['id']}/state"]
        if not found or method != "PUT":
            return 404, as_json, b'{"RemoteException": {"exception": "NotFoundException"}}'
        self.bodies.append(json.loads(sent))
        user = query.get("user.name", [""])[0]
        if self.users and user not in self.users:
            return 403, {}, f"User {user} cannot perform operation MODIFY_APP".encode()
        found[0].update(state="KILLED", finalStatus="KILLED", diagnostics="Application killed.")
        return 202, as_json, b'{"state": "ACCEPTED"}'

    def be_standby_of(self, active: str) -> None:
        path = "/ws/v1/cluster/apps"
        said = f"This is standby RM. The redirect url is: {path}\n".encode()
        self.answer = (307, {"Location": f"{active}{path}"}, said)

    def be_without_active(self) -> None:
        said = b"Can not find any active RM. Will retry in next 5 seconds.\n"
        self.answer = (307, {"Refresh": f"5;url={self.url}/ws/v1/cluster/apps"}, said)

    def kills(self) -> list[str]:
        return [path.split("/")[-2] for method, path, _ in self.asked if method == "PUT"]

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
