"""Object stores that run for the session: S3 as moto, Google's and Azure's as apps of our own."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any

import fsspec
import pytest
from adlfs import AzureBlobFileSystem
from gcsfs.core import GCSFileSystem
from s3fs import S3FileSystem

from tests.pipes import stdin_of, stdout_of

if TYPE_CHECKING:
    from collections.abc import Iterator

BUCKET = "bucket"
# So that listings have pages, and small objects parts.
SMALL = {"MOTO_S3_DEFAULT_MAX_KEYS": "3", "S3_UPLOAD_PART_MIN_SIZE": "1000"}
ACCOUNT_KEY = base64.b64encode(b"a key").decode()


def forget_clients() -> None:
    """Make the libraries read the environment again: fsspec keeps one client per process."""
    for kind in (S3FileSystem, GCSFileSystem, AzureBlobFileSystem):
        kind.clear_instance_cache()


class StoreServer:
    """A store in a process of its own, and what it was asked.

    Args:
        store: ``s3``, ``gcs`` or ``azure``.
        url: where a job may lie in it.
    """

    def __init__(self, store: str, url: str) -> None:
        self.url = url
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.contract.store_server", store],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **SMALL},
        )
        self.address = f"http://127.0.0.1:{int(stdout_of(self._process).readline())}"

    def requests(self) -> list[dict[str, Any]]:
        """Return what was asked since this was called last."""
        return json.loads(self.ask("GET", "/-/requests"))

    def disturb(self, kind: str, times: int = 1, methods: str = "PUT POST") -> None:
        """Make the next requests of these methods meet a fault, see ``store_server.Recorder``."""
        fault = {"kind": kind, "times": times, "methods": methods.split()}
        self.ask("POST", "/-/faults", json.dumps([fault]))

    def be_calm(self) -> None:
        """Revert what is left of the faults."""
        self.ask("POST", "/-/faults", "[]")

    def stop(self) -> None:
        stdin_of(self._process).close()
        self._process.wait(timeout=10)
        stdout_of(self._process).close()

    def ask(self, method: str, path: str, body: str | None = None) -> bytes:
        """Send one request of our own, and return the answer."""
        connection = HTTPConnection(self.address.removeprefix("http://"), timeout=10)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            return connection.getresponse().read()
        finally:
            connection.close()


def _served(store: str, url: str, environment: dict[str, str]) -> Iterator[StoreServer]:
    server = StoreServer(store, url)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value.format(server.address))
        forget_clients()
        yield server
        forget_clients()
    server.stop()


def serve_s3() -> Iterator[StoreServer]:
    """Yield an S3 server with a bucket; the environment meanwhile points to it."""
    environment = {
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": "{}",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    for server in _served("s3", f"s3://{BUCKET}/jobs", environment):
        server.ask("PUT", f"/{BUCKET}")
        yield server


s3 = pytest.fixture(scope="session")(serve_s3)


@pytest.fixture(scope="session")
def gcs() -> Iterator[StoreServer]:
    environment = {"STORAGE_EMULATOR_HOST": "{}", "FSSPEC_GCS_TOKEN": "anon"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(fsspec.config.conf, "gcs", {"token": "anon"})
        yield from _served("gcs", f"gs://{BUCKET}/jobs", environment)


@pytest.fixture(scope="session")
def azure() -> Iterator[StoreServer]:
    connection = (
        f"DefaultEndpointsProtocol=http;AccountName=account;AccountKey={ACCOUNT_KEY};"
        "BlobEndpoint={}/account;"
    )
    url = f"abfss://{BUCKET}@account.dfs.core.windows.net/jobs"
    yield from _served("azure", url, {"AZURE_STORAGE_CONNECTION_STRING": connection})
