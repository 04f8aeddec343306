"""Object stores as real HTTP servers, in a process of their own.

``python -m tests.contract.store_server STORE`` prints its port and serves until its standard input
ends. STORE is ``s3``, ``gcs``, ``azure``, ``azurite``, ``hdfs``, ``httpfs`` or ``emr``. S3 and EMR are
moto, and Azure is Azurite for who has npm; Google's and Azure's stores and HDFS have no emulator that
pip installs and that knows their conditions, so ``gcs_app``, ``azure_app`` and ``hdfs_app`` answer the
documented requests. ``s3folders`` is S3 whose folders stay, and ``forwarding`` stands before a server
that was started elsewhere.

Requests are handled one at a time, since moto looks and writes in two steps: the real store decides
between racing writers, and only a store that does can be tested against. Azurite does, and gets them
as they come. ``/-/`` is the way to see
what was asked (``requests``) and to disturb what comes (``faults``).
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import socket
import sys
import threading
from typing import Any
from urllib.parse import parse_qsl

from werkzeug.serving import WSGIRequestHandler, make_server
from werkzeug.wrappers import Request, Response

CONFLICT = (
    "<Error><Code>ConditionalRequestConflict</Code><Message>in the way</Message>"
    "<Resource>x</Resource></Error>"
)
CONDITIONS = (("ifGenerationMatch=0", ""), ("renameoptions=NONE", "renameoptions=OVERWRITE"))
COPY_SOURCES = ("x-amz-copy-source", "x-ms-copy-source")
DENIED = "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"


class Recorder:
    """Counts, serializes and disturbs the requests to an app.

    A fault is ``{"kind", "times", "methods", "query"}``, the last a part of the request's query:
    ``conflict``, ``denied``, ``throttled`` and ``unavailable`` answer instead of the app, ``lost``
    lets the app work and drops the answer, ``cut`` lets it take half of the bytes and drops the answer, ``short``
    answers half of the bytes, ``careless`` takes the condition away from the request, ``no datanode``
    lets a namenode have none.
    """

    def __init__(self, app) -> None:
        self.app = app
        decides = getattr(app, "decides", False)
        self.turn = contextlib.nullcontext() if decides else threading.Lock()
        self.seen: list[dict[str, Any]] = []
        self.faults: list[dict[str, Any]] = []

    def __call__(self, environ, start_response):
        request = Request(environ)
        with self.turn:
            if request.path.startswith("/-/"):
                return self.control(request)(environ, start_response)
            # What is left unread would be taken for the connection's next request.
            environ["wsgi.input"] = io.BytesIO(request.get_data())
            seen = {
                "method": request.method,
                "path": request.path,
                "query": dict(parse_qsl(environ["QUERY_STRING"], keep_blank_values=True)),
                "agent": request.headers.get("User-Agent", ""),
                "if_none_match": request.headers.get("If-None-Match"),
                "copy_source": next(filter(None, map(request.headers.get, COPY_SOURCES)), None),
                "sent_bytes": len(request.get_data()),
                "answered_bytes": 0,
            }
            self.seen.append(seen)
            fault = self.next_fault(request.method, environ["QUERY_STRING"])
            body = list(self.answer(fault, environ, start_response))
            seen["answered_bytes"] = sum(map(len, body))
            return body

    def answer(self, fault, environ, start_response):
        if fault in {"conflict", "denied", "throttled", "unavailable"}:
            status = {"conflict": 409, "denied": 403, "throttled": 429, "unavailable": 503}[fault]
            body = {"conflict": CONFLICT, "denied": DENIED}.get(fault, "")
            return Response(body, status, mimetype="application/xml")(environ, start_response)
        if fault == "careless":
            environ.pop("HTTP_IF_NONE_MATCH", None)
            sent = environ["storage.headers"]
            environ["storage.headers"] = [h for h in sent if h[0].lower() != "if-none-match"]
            for condition, none in CONDITIONS:
                environ["QUERY_STRING"] = environ["QUERY_STRING"].replace(condition, none)
        if fault == "cut":
            environ["storage.cut"] = True
        if fault == "no datanode":
            environ["storage.no_datanode"] = True
        environ = {key: value for key, value in environ.items() if key != "werkzeug.request"}
        answered = Response.from_app(self.app, environ, buffered=True)
        if fault == "short":
            whole = answered.get_data()
            answered.response = [whole[: len(whole) // 2]]
            answered.headers.update({"Content-Length": str(len(whole)), "Connection": "close"})
        if fault in {"lost", "cut"}:
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        return answered(environ, start_response)

    def next_fault(self, method: str, query: str) -> str | None:
        for fault in self.faults:
            if fault["times"] > 0 and method in fault["methods"] and fault["query"] in query:
                fault["times"] -= 1
                return fault["kind"]
        return None

    def control(self, request: Request) -> Response:
        if request.path == "/-/faults":
            self.faults = request.get_json()
            return Response("{}")
        seen, self.seen = self.seen, []
        return Response(json.dumps(seen))


class _Handler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else an answer with a body waits 40 ms for an acknowledgement

    def log_request(self, *_args) -> None:
        pass

    def handle_expect_100(self) -> bool:
        return (
            True  # werkzeug says "continue", too, and a client may take a second one for the answer
        )

    def make_environ(self):
        # WSGI knows no header with an underscore, which names of metadata have.
        return {**super().make_environ(), "storage.headers": self.headers.items()}


def _s3():
    """Return moto, which does not know of itself that an upload which was aborted has no end."""
    from moto.s3.exceptions import NoSuchUpload
    from moto.s3.models import S3Backend
    from moto.server import DomainDispatcherApplication, create_backend_app

    complete = S3Backend.complete_multipart_upload

    def complete_known(self, bucket_name, multipart_id, body):
        if multipart_id not in self.get_bucket(bucket_name).multiparts:
            raise NoSuchUpload(upload_id=multipart_id)
        return complete(self, bucket_name, multipart_id, body)

    S3Backend.complete_multipart_upload = complete_known  # type: ignore[method-assign]
    return DomainDispatcherApplication(create_backend_app)


def _app(store: str):
    if store == "s3":
        return _s3()
    if store == "emr":  # with S3, too
        return importlib.import_module("tests.contract.emr_app").app()
    if store == "httpfs":
        from tests.contract.hdfs_app import App

        return App(httpfs=True)
    return importlib.import_module(f"tests.contract.{store}_app").App()


def main() -> None:
    app = _app(sys.argv[1])
    server = make_server("127.0.0.1", 0, Recorder(app), threaded=True, request_handler=_Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()
    getattr(app, "close", lambda: None)()


if __name__ == "__main__":
    main()
