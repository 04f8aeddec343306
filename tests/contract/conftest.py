"""Stores that run for the session: S3 as moto, Google's, Azure's and HDFS as apps of our own."""

from __future__ import annotations

import base64
import functools
import json
import os
import subprocess
import sys
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any

import fsspec
import pytest
from adlfs import AzureBlobFileSystem
from azure.storage.blob import BlobServiceClient
from botocore.loaders import JSONFileLoader
from gcsfs.core import GCSFileSystem
from s3fs import S3FileSystem

from tests.contract.azurite_app import NoAzuriteError
from tests.contract.azurite_app import install as install_azurite
from tests.pipes import stdin_of, stdout_of

if TYPE_CHECKING:
    from collections.abc import Iterator

BUCKET = "bucket"
# So that listings have pages, and small objects parts.
SMALL = {"MOTO_S3_DEFAULT_MAX_KEYS": "3", "S3_UPLOAD_PART_MIN_SIZE": "1000"}
ACCOUNT_KEY = base64.b64encode(b"a key").decode()

# Megabytes of JSON that never change, and that each new client of AWS parses again.
_load_description = functools.cache(JSONFileLoader().load_file)
setattr(JSONFileLoader, "load_file", lambda _, path: _load_description(path))  # noqa: B010 - it has no types


def forget_clients() -> None:
    """Make the libraries read the environment again: fsspec keeps one client per process."""
    for kind in (S3FileSystem, GCSFileSystem, AzureBlobFileSystem):
        kind.clear_instance_cache()


class StoreServer:
    """A store in a process of its own, and what it was asked.

    Args:
        store: ``s3``, ``s3folders``, ``gcs``, ``azure``, ``azurite``, ``hdfs`` or ``httpfs``.
        url: where a job may lie in it; ``{}`` stands for its host and port.
    """

    def __init__(self, store: str, url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.contract.store_server", store],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **SMALL, "AZURITE_KEY": ACCOUNT_KEY},
        )
        self.address = f"http://127.0.0.1:{int(stdout_of(self._process).readline())}"
        self.url = url.replace("{}", self.address.removeprefix("http://"))

    def requests(self) -> list[dict[str, Any]]:
        """Return what was asked since this was called last."""
        return json.loads(self.ask("GET", "/-/requests"))

    def disturb(
        self, kind: str, times: int = 1, methods: str = "PUT POST", *, query: str = ""
    ) -> None:
        """Make the next requests of these methods meet a fault, see ``store_server.Recorder``."""
        fault = {"kind": kind, "times": times, "methods": methods.split(), "query": query}
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


def serve_s3(store: str = "s3") -> Iterator[StoreServer]:
    """Yield an S3 server with a bucket; the environment meanwhile points to it."""
    environment = {
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": "{}",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    for server in _served(store, f"s3://{BUCKET}/jobs", environment):
        server.ask("PUT", f"/{BUCKET}")
        yield server


def serve_gcs() -> Iterator[StoreServer]:
    environment = {"STORAGE_EMULATOR_HOST": "{}", "FSSPEC_GCS_TOKEN": "anon"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(fsspec.config.conf, "gcs", {"token": "anon"})
        yield from _served("gcs", f"gs://{BUCKET}/jobs", environment)


def azure_connection(server: StoreServer) -> str:
    return (
        f"DefaultEndpointsProtocol=http;AccountName=account;AccountKey={ACCOUNT_KEY};"
        f"BlobEndpoint={server.address}/account;"
    )


def serve_azure() -> Iterator[StoreServer]:
    url = f"abfss://{BUCKET}@account.dfs.core.windows.net/jobs"
    connection = (
        f"DefaultEndpointsProtocol=http;AccountName=account;AccountKey={ACCOUNT_KEY};"
        "BlobEndpoint={}/account;"
    )
    yield from _served("azure", url, {"AZURE_STORAGE_CONNECTION_STRING": connection})


def serve_azurite() -> Iterator[StoreServer]:
    try:
        install_azurite()
    except NoAzuriteError as error:
        pytest.fail(str(error))  # whoever asks for these tests is told that they have not run
    server = StoreServer("azurite", f"abfss://{BUCKET}@account.dfs.core.windows.net/jobs")
    with BlobServiceClient.from_connection_string(azure_connection(server)) as client:
        client.create_container(BUCKET)
    yield server
    server.stop()


def use_azurite(azurite_server: StoreServer) -> Iterator[StoreServer]:
    """Azurite, to which the environment points for one test: Azure's other server has its name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AZURE_STORAGE_CONNECTION_STRING", azure_connection(azurite_server))
        forget_clients()
        yield azurite_server
    forget_clients()


def serve_hdfs(folder: str | None = None) -> Iterator[StoreServer]:
    """Yield an HDFS server; the environment meanwhile names its user.

    Args:
        folder: what it serves; None for one of its own.
    """
    with pytest.MonkeyPatch.context() as patch:
        if folder is not None:
            patch.setenv("HDFS_FOLDER", folder)
        yield from _served("hdfs", "webhdfs://{}/jobs", {"HADOOP_USER_NAME": "airflow"})


def serve_httpfs() -> Iterator[StoreServer]:
    yield from _served("httpfs", "webhdfs://{}/jobs", {"HADOOP_USER_NAME": "airflow"})
