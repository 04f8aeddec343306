"""A service whose answers a test writes, and every wrong form of a right answer."""

from __future__ import annotations

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from airflow_provider.runtime.api.launchers import Application
from airflow_provider.runtime.errors import ConfigError, LauncherAwayError

TOKEN, NAME, PASSWORD = "t", "spark-stream-t", "s3cr3t"
JUNK: list[Any] = [None, True, -1, 5, 1e300, "x", [], ["x"], {}, {"a": 1}, [[]] * 2]


class Service:
    """A service on a port of this machine, whose answers a test writes.

    Attributes:
        answers: by HTTP method, a value of JSON, bytes, or what makes one of the path.
        asked: method and path of each request.
        headers: of the last request.
        tag: of each answer.
        moved: where each answer redirects to; empty for nowhere.
    """

    def __init__(self):
        self.answers: dict[str, Any] = {}
        self.asked: list[tuple[str, str]] = []
        self.headers: dict[str, str] = {}
        self.tag, self.moved = '"1"', ""
        service = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def answer(self):
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                service.asked.append((self.command, self.path))
                service.headers = dict(self.headers)
                if self.headers.get("If-None-Match") == service.tag:
                    return self.send(304, b"")
                if service.moved:
                    return self.send(302, b"{}")
                found = service.answers[self.command]
                found = found(self.path) if callable(found) else found
                return self.send(
                    200, found if isinstance(found, bytes) else json.dumps(found).encode()
                )

            def send(self, status, body):
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("ETag", service.tag)
                if service.moved:
                    self.send_header("Location", service.moved)
                self.end_headers()
                with contextlib.suppress(OSError):  # a client may have heard enough
                    self.wfile.write(body)

        for method in ("GET", "POST", "DELETE"):
            setattr(Handler, f"do_{method}", Handler.answer)
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def forget(self):
        self.answers, self.asked[:], self.tag, self.moved = {}, [], '"1"', ""

    def stop(self):
        self.server.shutdown()
        self.server.server_close()


def changed(value):
    """Yield a value of JSON with one of its parts replaced or left out, for each part and junk."""
    yield from JUNK
    for key in (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    ):
        for part in changed(value[key]):
            other = value.copy()
            other[key] = part
            yield other
        if isinstance(value, dict):
            yield {name: each for name, each in value.items() if name != key}


def check_wrong_answers(launcher, handle, valid, answer_with):
    """Check that each call returns, or raises one line of ours, whatever a valid answer becomes."""
    tried, said = 0, []
    for answer in changed(valid):
        answer_with(answer)
        for act in (
            launcher.check,
            lambda: launcher.submit(Application(arguments=()), TOKEN),
            lambda: launcher.poll(handle),
            lambda: launcher.end(handle),
            lambda: launcher.log(handle),
        ):
            tried += 1
            try:
                act()
            except (ConfigError, LauncherAwayError) as error:
                said.append(str(error))

    assert 0 < len(said) < tried
    assert [] == [text for text in said if len(text.splitlines()) != 1]
