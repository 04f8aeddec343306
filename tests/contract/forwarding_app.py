"""An app that passes requests on to another server, and answers what that answers."""

from __future__ import annotations

import os
from http.client import HTTPConnection

from werkzeug.wrappers import Request, Response

OF_ONE_CONNECTION = frozenset({"connection", "keep-alive", "transfer-encoding"})
AWAY_S = 60.0


class Forwarding:
    """The way to a server on this machine.

    Attributes:
        decides: whether racing writers may be let through at once.
        left_out: headers of a request that the server does not get; it gets the host, which a
            signature may cover.
        port: the server's.
    """

    decides = True
    left_out = OF_ONE_CONNECTION

    def __init__(self, port: int) -> None:
        self.port = port

    def __call__(self, environ, start_response):
        request = Request(environ)
        sent = environ["storage.headers"]
        headers = {name: value for name, value in sent if name.lower() not in self.left_out}
        # A signature covers the path as it was sent.
        path, _, _ = environ["RAW_URI"].partition("?")
        query = environ["QUERY_STRING"]
        connection = HTTPConnection("127.0.0.1", self.port, timeout=AWAY_S)
        try:
            where = f"{path}?{query}" if query else path
            connection.request(request.method, where, request.get_data(), headers)
            answer = connection.getresponse()
            told = [
                pair for pair in answer.getheaders() if pair[0].lower() not in OF_ONE_CONNECTION
            ]
            # Text would get a length of its own, which the answer to HEAD has of the object.
            passed_on = Response([answer.read()], answer.status, told)
        except OSError:
            passed_on = Response("", 502)
        finally:
            connection.close()
        return passed_on(environ, start_response)


class App(Forwarding):
    """The way to the server whose port the environment names."""

    def __init__(self) -> None:
        super().__init__(int(os.environ["FORWARD_TO"]))
