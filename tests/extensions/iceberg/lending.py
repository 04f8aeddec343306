"""A catalog that lends credentials for a store, and a door before the store that ends them.

Both are stand-ins: moto gives any credentials to anybody, and no catalog that pip installs lends.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import requests
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from pyiceberg.catalog.sql import SqlCatalog

from tests.extensions.iceberg.served import served

BUCKET = "tables"
SECRETS = ("AKq9sVxM4tTzL0bW", "FwoGZXIvYXdzEPn7QmYtKc2J")
"""What stands in every lent credential, and may stand nowhere else."""

_ENDS = re.compile(r"Credential=LENT(\d+)/")
_ENDED = (
    b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
)


def lent_credentials(life_s: float) -> dict[str, str]:
    """Return a table's properties with credentials that end after *life_s* seconds."""
    ends_ms = int((time.time() + life_s) * 1000)
    return {
        "s3.access-key-id": f"LENT{ends_ms}",
        "s3.secret-access-key": SECRETS[0],
        "s3.session-token": SECRETS[1],
        "s3.session-token-expires-at-ms": str(ends_ms),
    }


class LendingCatalog(SqlCatalog):
    """A SQL catalog that lends each table's store for ``life-s`` seconds."""

    @property
    def properties(self) -> dict[str, str]:
        """Return the properties by which the catalog opens stores, lent now."""
        return {**self._own, **lent_credentials(float(self._own["life-s"]))}

    @properties.setter
    def properties(self, own: dict[str, str]) -> None:
        self._own = own


class Door:
    """Passes on requests to moto whose credentials have not ended.

    Attributes:
        address: of the store.
        refused: how many requests came with ended credentials, or without lent ones.
        passed: how many passed.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._turn = threading.Lock()
        self.address = ""
        self.refused = self.passed = 0

    def __call__(self, environ: Any, start_response: Any) -> Any:
        found = _ENDS.search(environ.get("HTTP_AUTHORIZATION", ""))
        if found is None or int(found[1]) < time.time() * 1000:
            self.refused += 1
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start_response("400 Bad Request", [("Content-Length", str(len(_ENDED)))])
            return [_ENDED]
        with self._turn:
            self.passed += 1
            return list(self._app(environ, start_response))


@contextlib.contextmanager
def lending_store() -> Iterator[Door]:
    """Run a store with a bucket for the block."""
    door = Door(DomainDispatcherApplication(create_backend_app))
    with served(door) as door.address:
        ends_ms = int((time.time() + 60) * 1000)
        scope = f"LENT{ends_ms}/20260101/us-east-1/s3/aws4_request"
        login = {"Authorization": f"AWS4-HMAC-SHA256 Credential={scope}"}
        requests.put(f"{door.address}/{BUCKET}", headers=login, timeout=10).raise_for_status()
        yield door


def lending_properties(root: Any, door: Door, life_s: float) -> dict[str, str]:
    """Make a catalog with one namespace, and return its properties."""
    properties = {
        "name": "test",
        "py-catalog-impl": f"{__name__}.LendingCatalog",
        "uri": f"sqlite:///{root}/catalog.db",
        "warehouse": f"s3://{BUCKET}/warehouse",
        "s3.endpoint": door.address,
        "s3.region": "us-east-1",
        "life-s": str(life_s),
    }
    rest = {key: value for key, value in properties.items() if key != "name"}
    catalog = LendingCatalog("test", **rest)
    catalog.create_namespace("ns")
    catalog.close()
    return properties
