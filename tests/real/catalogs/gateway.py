"""A stand-in for the proxy before a REST catalog, which can refuse requests and lose answers."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import requests


class Gateway:
    """Passes requests on to a catalog.

    Attributes:
        refusals: how many requests it answers with *status* before it passes on the next one.
        lose: called instead of passing on the answer to a commit, which is lost; once.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self.refusals, self.status = 0, 503
        self.lose: Callable[[], None] | None = None
        self.commits = 0
        self._lock = threading.Lock()

    def is_refused(self) -> bool:
        with self._lock:
            self.refusals -= 1
            return self.refusals >= 0


def _handler_of(gateway: Gateway) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def handle_request(self) -> None:
            if gateway.is_refused():
                self._answer(gateway.status, b"")
                return
            size = int(self.headers.get("Content-Length", 0))
            body = self.rfile.read(size)
            answer = requests.request(
                self.command,
                gateway.target + self.path,
                data=body,
                headers={"Content-Type": "application/json"},
                timeout=60,
            )
            if self.command == "POST" and b'"requirements"' in body:
                gateway.commits += 1
                lose, gateway.lose = gateway.lose, None
                if lose is not None:
                    lose()
                    self.close_connection = True
                    return
            self._answer(answer.status_code, answer.content)

        def _answer(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_POST = do_HEAD = do_DELETE = handle_request  # noqa: N815 - names of the base

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    return Handler


@contextlib.contextmanager
def gateway_before(target: str) -> Iterator[tuple[Gateway, str]]:
    """Run a gateway for the block; yield it and its address."""
    gateway = Gateway(target)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(gateway))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield gateway, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
