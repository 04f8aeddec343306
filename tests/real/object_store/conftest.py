"""SeaweedFS for the session, and the locations of jobs in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fsspec
import pytest
from streams import Location
from upath import UPath

from airflow_provider.runtime.storage.file_tree import files_under
from tests.contract.conftest import StoreServer, forget_clients
from tests.real.object_store.seaweedfs import BUCKET, SeaweedFS, environment_of, spark_conf


@dataclasses.dataclass(frozen=True)
class StoreLocation(Location):
    """A job whose directory and output are in the bucket; its input is a folder of the test.

    Attributes:
        prefix: in the bucket.
    """

    prefix: str

    @property
    def conf(self) -> Mapping[str, str]:
        return spark_conf()

    @property
    def job_dir(self) -> Any:
        return UPath(f"s3a://{BUCKET}/{self.prefix}/job")

    @property
    def output(self) -> Any:
        return UPath(f"s3://{BUCKET}/{self.prefix}/output")

    def left_of_staging(self, folder: Any) -> list[Any]:
        """Return the files alone: the server lists an empty folder for some minutes."""
        return [path for path, _ in files_under(str(folder)) if ".staging/" in path]


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    server = SeaweedFS(tmp_path_factory.mktemp("seaweedfs"))
    try:
        server.start()
        server.create_bucket(BUCKET)
        yield server
    finally:
        server.kill()


@pytest.fixture
def direct(seaweedfs: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> Iterator[SeaweedFS]:
    """The server, to which the environment points."""
    for name, value in environment_of(seaweedfs.address).items():
        monkeypatch.setenv(name, value)
    # Readers of the tests are to see what is there now.
    monkeypatch.setitem(fsspec.config.conf, "s3", {"use_listings_cache": False})
    forget_clients()
    yield seaweedfs
    seaweedfs.resume()
    forget_clients()


@pytest.fixture(scope="module")
def s3_server(seaweedfs: SeaweedFS) -> Iterator[StoreServer]:
    """The way to the server on which requests are counted and disturbed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORWARD_TO", str(seaweedfs.port))
        server = StoreServer("forwarding", f"s3://{BUCKET}/jobs")
        for name, value in environment_of(server.address).items():
            patch.setenv(name, value)
        forget_clients()
        yield server
        forget_clients()
    server.stop()


@pytest.fixture
def location(tmp_path: Path, direct: SeaweedFS) -> Location:
    return StoreLocation(tmp_path, tmp_path.name)
