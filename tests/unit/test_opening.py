"""From an address to a storage, or a clear refusal."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider.runtime.errors import EXIT_USAGE, UnsupportedStorageError
from airflow_provider.runtime.storage import local_path_of, open_storage, supported_schemes
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.storage.memory import MemoryStorage


@pytest.mark.parametrize("url", ["{}", "{}/", "file://{}", "local://{}"])
def test_a_local_folder_is_opened(tmp_path, url):
    """
    A plain path and its URLs are the same folder, and opening makes nothing.
    """
    storage = open_storage(url.format(tmp_path / "job"))

    assert isinstance(storage, LocalStorage)
    assert str(tmp_path / "job") == storage.url
    assert not (tmp_path / "job").exists()


def test_a_relative_path_becomes_absolute(tmp_path, monkeypatch):
    """
    A driver in another working directory must find the same folder.
    """
    monkeypatch.chdir(tmp_path)

    assert str(tmp_path / "jobs" / "a") == open_storage("jobs/a").url


def test_the_home_folder_is_understood(tmp_path, monkeypatch):
    """
    A path that begins with a tilde lies in the user's home.
    """
    monkeypatch.setenv("HOME", str(tmp_path))

    assert str(tmp_path / "job") == open_storage("~/job").url


def test_memory_is_opened():
    """
    Memory is a storage of this process, for tests.
    """
    storage = open_storage("memory://opening/job")

    assert isinstance(storage, MemoryStorage)
    assert storage.url.endswith("opening/job")


@pytest.mark.parametrize(
    "url",
    ["s3://bucket/job", "s3a://bucket/job", "gs://bucket/job", "ftp://host/job", "hdfs://n/j"],
)
def test_a_filesystem_that_cannot_decide_between_two_writers_is_refused(url):
    """
    A scheme without a tested put-if-absent is refused by name, with those that have one.
    """
    with pytest.raises(UnsupportedStorageError) as raised:
        open_storage(url)

    assert str(raised.value).startswith(f"{url}: the scheme {url.partition(':')[0]!r} has no")
    assert "file, local, memory" in str(raised.value)
    assert EXIT_USAGE == raised.value.exit_code


def test_supported_schemes_can_be_listed():
    """
    The schemes that work are listed, sorted, for messages and documents.
    """
    assert ("file", "local", "memory") == supported_schemes()


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("/data/out", "/data/out"),
        ("file:///data/out", "/data/out"),
        ("local:///data/out/", "/data/out"),
        ("out", str(Path.cwd() / "out")),
        ("s3://bucket/out", None),
        ("memory://out", None),
    ],
)
def test_the_local_path_behind_a_url(url, path):
    """
    A URL of a local filesystem has a path, any other has none.
    """
    assert path == local_path_of(url)
