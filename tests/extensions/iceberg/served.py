"""Apps of this process as servers on loopback, in threads of its own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from werkzeug.serving import WSGIRequestHandler, make_server


class _Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, *_: Any, **__: Any) -> None:
        """Write nothing."""


@contextlib.contextmanager
def served(app: Any) -> Iterator[str]:
    """Serve *app* for the block; yield its address."""
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=_Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
