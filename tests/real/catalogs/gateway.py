"""A stand-in for the proxy before a REST catalog: it refuses, loses answers, and gives tokens."""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import requests

from tests.extensions.iceberg.lending import SECRETS as LENT_SECRETS
from tests.extensions.iceberg.lending import lent_credentials

REFUSED = b'{"error": {"message": "no", "type": "NotAuthorizedException", "code": 401}}'


class Lender:
    """Tokens for a catalog, and credentials for the store of its tables; each ends after a while.

    Attributes:
        secrets: what may stand in no file, log or address.
        given: how many tokens it has given.
        refused: how many requests came without a token, or with one that had ended.
    """

    def __init__(self, life_s: float, store: Mapping[str, str]) -> None:
        self._life_s, self._store = life_s, store
        self._ends: dict[str, float] = {}
        self.credential = f"client:{secrets.token_hex(12)}"
        self.secrets = [self.credential.partition(":")[2], *LENT_SECRETS]
        self.given = self.refused = 0

    def token(self) -> bytes:
        made = secrets.token_hex(16)
        self.secrets.append(made)
        self._ends[made] = time.time() + self._life_s
        self.given += 1
        answer = {"access_token": made, "token_type": "bearer", "expires_in": int(self._life_s)}
        return json.dumps(answer).encode()

    def status_for(self, authorization: str) -> int | None:
        """Return how a request is refused: 401 and 419 in turn; None for one that may pass."""
        if self._ends.get(authorization.removeprefix("Bearer "), 0.0) >= time.time():
            return None
        self.refused += 1
        return (401, 419)[self.refused % 2]

    def with_credentials(self, content: bytes) -> bytes:
        """Return an answer that describes a table, with the store's credentials."""
        answer = json.loads(content) if content.startswith(b"{") else {}
        if "metadata-location" not in answer:
            return content
        answer["config"] = {
            **answer.get("config", {}),
            **self._store,
            **lent_credentials(self._life_s),
        }
        return json.dumps(answer).encode()


class Gateway:
    """Passes requests on to a catalog.

    Attributes:
        refusals: how many requests it answers with *status* before it passes on the next one.
        lose: called instead of passing on the answer to a commit, which is lost; once.
        loses_each: of so many commits the answer to one is lost; 0 for none.
        lender: refuses requests without a token, and lends the tables' store.
    """

    def __init__(self, target: str, lender: Lender | None = None, loses_each: int = 0) -> None:
        self.target = target
        self.lender, self.loses_each = lender, loses_each
        self.refusals, self.status = 0, 503
        self.lose: Callable[[], None] | None = None
        self.commits = 0
        self._lock = threading.Lock()

    def is_refused(self) -> bool:
        with self._lock:
            self.refusals -= 1
            return self.refusals >= 0

    def own_answer(self, path: str, body: bytes, authorization: str) -> tuple[int, bytes] | None:
        """Return the gateway's own answer to a request; None to pass it on."""
        if self.is_refused():
            return self.status, b""
        if self.lender is None:
            return None
        if path == "/v1/oauth/tokens":
            is_known = self.lender.secrets[0].encode() in body
            return (200, self.lender.token()) if is_known else (401, REFUSED)
        status = self.lender.status_for(authorization)
        return None if status is None else (status, REFUSED)

    def completed(self, content: bytes) -> bytes:
        """Return the catalog's answer with what the gateway adds."""
        return content if self.lender is None else self.lender.with_credentials(content)

    def loses(self) -> bool:
        """Count a commit; return whether its answer is lost."""
        with self._lock:
            self.commits += 1
            lose, self.lose = self.lose, None
            is_each = self.loses_each > 0 and self.commits % self.loses_each == 0
        if lose is not None:
            lose()
        return lose is not None or is_each


def _handler_of(gateway: Gateway) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def handle_request(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            own = gateway.own_answer(self.path, body, self.headers.get("Authorization", ""))
            if own is not None:
                self._answer(*own)
                return
            answer = requests.request(
                self.command,
                gateway.target + self.path,
                data=body,
                headers={"Content-Type": "application/json"},
                timeout=60,
            )
            if self.command == "POST" and b'"requirements"' in body and gateway.loses():
                self.close_connection = True
                return
            self._answer(answer.status_code, gateway.completed(answer.content))

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
def gateway_before(
    target: str, lender: Lender | None = None, loses_each: int = 0
) -> Iterator[tuple[Gateway, str]]:
    """Run a gateway for the block; yield it and its address."""
    gateway = Gateway(target, lender, loses_each)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(gateway))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield gateway, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
