"""Addresses, opened as storages or refused clearly."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import fsspec
import pytest

from airflow_provider.extensions.hdfs.storage import HdfsStorage
from airflow_provider.runtime.errors import EXIT_USAGE, ConfigError, UnsupportedStorageError
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.storage.objects import MemoryStorage, ObjectStorage
from airflow_provider.runtime.storage.open import (
    check_location,
    has_escapes,
    local_path_of,
    open_objects,
    open_storage,
    spark_url,
    supported_schemes,
)
from tests.contract.conftest import forget_clients

AZURE = "container@account.dfs.core.windows.net"


@pytest.mark.parametrize("url", ["{}", "{}/", "file://{}", "local://{}"])
def test_a_local_folder_is_opened(tmp_path, url):
    """A plain path and its URLs are the same folder, and opening makes nothing."""
    storage = open_storage(url.format(tmp_path / "job"))

    assert isinstance(storage, LocalStorage)
    assert str(tmp_path / "job") == storage.url
    assert not (tmp_path / "job").exists()


@pytest.mark.parametrize("name", ["a\nb", "a\tb", "\x7f"])
def test_a_job_directory_on_two_lines_is_refused(tmp_path, name):
    """Its documents name it on one line."""
    with pytest.raises(ConfigError, match="has an address on one line; use another path"):
        check_location(str(tmp_path / name))


def test_a_relative_path_becomes_absolute(tmp_path, monkeypatch):
    """A driver in another working directory must find the same folder."""
    monkeypatch.chdir(tmp_path)

    assert str(tmp_path / "jobs" / "a") == open_storage("jobs/a").url


def test_the_home_folder_is_understood(tmp_path, monkeypatch):
    """A path that begins with a tilde lies in the user's home."""
    monkeypatch.setenv("HOME", str(tmp_path))

    assert str(tmp_path / "job") == open_storage("~/job").url


def test_memory_is_opened():
    """Memory is a storage of this process, for tests."""
    storage = open_storage("memory://opening/job")

    assert isinstance(storage, MemoryStorage)
    assert storage.url.endswith("opening/job")


@pytest.mark.parametrize(
    "url",
    ["ftp://host/job", "http://host/job", "oss://bucket/job", "dbfs://x/job"],
)
def test_a_filesystem_that_cannot_decide_between_two_writers_is_refused(url):
    """A scheme without a tested put-if-absent is refused by name, with those that have one."""
    with pytest.raises(UnsupportedStorageError) as raised:
        open_storage(url)

    assert str(raised.value).startswith(f"{url}: the scheme {url.partition(':')[0]!r} has no")
    assert "abfs, abfss, az, file, gcs, gs, local, memory, s3, s3a, webhdfs" in str(raised.value)
    assert EXIT_USAGE == raised.value.exit_code


@pytest.mark.parametrize("scheme", ["hdfs", "viewfs", "swebhdfs"])
def test_other_addresses_of_hdfs_are_refused_with_the_right_one(scheme):
    """An address that only Hadoop understands is refused in one line that has the one to write."""
    with pytest.raises(
        UnsupportedStorageError, match="write webhdfs://namenode:9870/path"
    ) as raised:
        open_storage(f"{scheme}://cluster/job")

    assert str(raised.value).startswith(f"{scheme}://cluster/job: no job can lie at an address")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("path", ["/a/job", "/a//job/", "/a/job/"])
def test_a_folder_of_hdfs_is_opened(path):
    """A folder in HDFS is opened without asking for it."""
    storage = open_storage(f"webhdfs://namenode.example:9870{path}")

    assert isinstance(storage, HdfsStorage)
    assert storage.shared is True
    assert "webhdfs://namenode.example:9870/a/job" == storage.url
    assert f"{storage.url}/runs/r1" == storage.at("runs/r1").url
    assert None is local_path_of(storage.url)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("webhdfs://namenode/job", "names no port; write webhdfs://namenode:9870/path"),
        ("webhdfs:///job", "names no port"),
        ("webhdfs://namenode:http/job", "names no port"),
        ("webhdfs://n:9870/a:b", "HDFS has no name 'a:b'"),
        ("webhdfs://n:9870/a/../b", "HDFS has no name '..'"),
    ],
)
def test_an_address_that_hdfs_cannot_have(url, said):
    """What is missing or impossible in an address of HDFS is said before anything is asked."""
    with pytest.raises(ConfigError, match=re.escape(said)) as raised:
        open_storage(url)

    assert str(raised.value).startswith(url)


@pytest.mark.parametrize(
    "url",
    [
        "s3:/key:hidden@bucket/job",
        "s3://key:hidden@bucket/job",
        "s3://key:hid/hidden@bucket/job",
        "ftp://me:hidden@server/job",
        "hdfs://me:hidden@namenode/job",
        "webhdfs://me:hid/hidden@namenode:9870/job",
    ],
)
def test_no_refusal_shows_the_credentials_of_an_address(url):
    """Whatever else is wrong with an address, what lets somebody in is left out of the message."""
    with pytest.raises(ConfigError) as raised:
        open_storage(url)

    assert "hid" not in str(raised.value)


def test_a_user_in_an_address_of_hdfs_is_refused():
    """
    An address is logged and stored; the user and his password are not part of it, nor repeated.
    """
    with pytest.raises(ConfigError, match="set HADOOP_USER_NAME") as raised:
        open_storage("webhdfs://me:hidden@namenode:9870/job")

    assert "hidden" not in str(raised.value)


@pytest.mark.parametrize(
    "url", ["dbfs:/x", "hdfs:/x", "s3:/bucket/x", "S3:/x", "gs:/x", "abfss:/x", "memory:/x"]
)
def test_a_scheme_with_one_slash_is_no_folder(url, tmp_path, monkeypatch):
    """What Hadoop takes for another filesystem is not made as a folder beside the driver."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as raised:
        open_storage(url)

    scheme = url.partition(":")[0].lower()
    assert str(raised.value).startswith(f"{url}: one slash after the scheme {scheme!r}; write ")
    assert "\n" not in str(raised.value)
    assert None is local_path_of(url)


@pytest.mark.parametrize(
    ("url", "folder"),
    [
        ("file:/srv/job", "/srv/job"),
        ("./dbfs:/x", "{}/dbfs:/x"),
        ("jobs:daily", "{}/jobs:daily"),
        ("jobs/a:/b", "{}/jobs/a:/b"),
        ("2026-01-01T00:00", "{}/2026-01-01T00:00"),
        ("c:/jobs", "{}/c:/jobs"),
    ],
)
def test_a_colon_alone_makes_no_scheme(url, folder, tmp_path, monkeypatch):
    """A folder's name may have a colon; a letter before one is a drive where there are drives."""
    monkeypatch.chdir(tmp_path)

    assert folder.format(tmp_path) == open_storage(url).url == local_path_of(url)


def test_a_bucket_with_one_slash_is_refused_everywhere():
    """A sink's or a savepoint's address is looked at as the job directory's is."""
    with pytest.raises(ConfigError, match="s3:/bucket/x: "):
        open_objects("s3:/bucket/x")


def test_supported_schemes_can_be_listed():
    """The schemes that work are listed, sorted, for messages and documents."""
    stores = ("abfs", "abfss", "az", "gcs", "gs", "s3", "s3a")

    assert tuple(sorted([*stores, "file", "local", "memory", "webhdfs"])) == supported_schemes()


@pytest.fixture
def account(monkeypatch):
    """Half a configuration, enough to make the clients, which ask nobody for anything."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ANON", "true")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "127.0.0.1:1")
    monkeypatch.setitem(fsspec.config.conf, "gcs", {"token": "anon"})
    forget_clients()
    yield
    forget_clients()


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket/a/job",
        "s3a://bucket/a/job",
        "gs://bucket/a/job",
        "gcs://bucket/a/job",
        "az://container/a/job",
        f"abfss://{AZURE}/a/job",
    ],
)
def test_an_object_store_is_opened(account, url):
    """
    A prefix of a bucket is opened without asking the store, and keeps the address it was given.
    """
    storage = open_storage(f"{url}/")

    assert isinstance(storage, ObjectStorage)
    assert storage.shared is True
    assert url == storage.url
    assert f"{url}/runs/r1" == storage.at("runs/r1").url


def test_azure_is_asked_again_while_a_lease_lasts(account):
    """
    All tries of one request, with the SDK's pauses between them, fit into the 20 s of a lease.
    """
    storage = open_storage(f"abfss://{AZURE}/a/job")
    assert isinstance(storage, ObjectStorage)
    policy = storage._bucket.filesystem.service_client._config.retry_policy
    pauses = [policy.get_backoff_time({"count": count}) for count in range(policy.total_retries)]

    assert 3 == len(pauses)
    assert 10 > sum(pauses)


@pytest.mark.parametrize(
    ("url", "package", "extra"),
    [
        ("s3://bucket/job", "s3fs", "s3"),
        ("gs://bucket/job", "gcsfs.core", "gcs"),
        ("az://container/job", "adlfs", "azure"),
        ("webhdfs://without:9870/job", "requests.adapters", "hdfs"),
    ],
)
def test_a_missing_package_is_named_by_its_extra(monkeypatch, url, package, extra):
    """Without the store's package the error says what to install."""
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(ConfigError, match=f"needs the extra '{extra}'") as raised:
        open_storage(url)

    assert f"pip install 'airflow-provider-spark-streaming[{extra}]'" in str(raised.value)


@pytest.mark.parametrize(
    "url",
    ["s3://id:hidden@bucket/job", "gs://hidden@bucket/job", "az://c:hidden@account/job"],
)
def test_credentials_in_an_address_are_refused(url):
    """An address is logged and stored, so a secret in it is refused, and not repeated."""
    with pytest.raises(ConfigError, match="credentials do not belong in an address") as raised:
        open_storage(url)

    assert "hidden" not in str(raised.value)


def test_an_address_without_a_bucket_is_refused():
    """A store's address names at least a bucket."""
    with pytest.raises(ConfigError, match="names no bucket or container; write s3://bucket/path"):
        open_storage("s3:///job")


def test_a_client_that_cannot_be_made_is_named(account, monkeypatch):
    """What a store's library lacks, here Azure's account, is said with the address."""
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME")
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING", raising=False)

    with pytest.raises(ConfigError, match="az://c/job: the store's client cannot be made"):
        open_storage("az://c/job")


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("/data/out", "file:///data/out"),
        ("file:///data/out", "file:///data/out"),
        ("local:///data/out", "file:///data/out"),
        ("/data/a b/é%20", "file:///data/a b/é%20"),
        ("s3://bucket/job", "s3a://bucket/job"),
        ("s3a://bucket/job", "s3a://bucket/job"),
        ("gs://bucket/job", "gs://bucket/job"),
        ("gcs://bucket/job", "gs://bucket/job"),
        (f"abfs://{AZURE}/job", f"abfs://{AZURE}/job"),
        (f"abfss://{AZURE}/job", f"abfss://{AZURE}/job"),
        (f"az://{AZURE}/job", f"abfss://{AZURE}/job"),
        ("hdfs://namenode/out", "hdfs://namenode/out"),
        ("webhdfs://namenode:9870/a/out", "hdfs://namenode/a/out"),
    ],
)
def test_the_address_for_spark(url, address):
    """Spark knows the same locations, some by another scheme."""
    assert address == spark_url(url)


@pytest.mark.parametrize("own", ["hdfs://nameservice1", "hdfs://nameservice1/"])
def test_sparks_address_of_hdfs_can_be_given(monkeypatch, own):
    """Which nameservice a namenode serves only Hadoop's configuration knows."""
    monkeypatch.setenv("SPARK_STREAM_HDFS", own)

    assert "hdfs://nameservice1/a/out" == spark_url("webhdfs://namenode:9870/a/out")


def test_spark_needs_the_storage_account():
    """An address in Azure without the account means nothing to Spark."""
    with pytest.raises(ConfigError, match="abfss://container@account.dfs.core.windows.net/path"):
        spark_url("az://container/job")


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
    """A URL of a local filesystem has a path, any other has none."""
    assert path == local_path_of(url)


@pytest.mark.parametrize(
    ("url", "escapes"),
    [
        ("/data/jobs/daily_2026-01-01.v2+x=1", False),
        ("/data/Zürich", False),
        ("s3://bucket/a job", True),
        ("/data/50%", True),
        ("/data/[1]", True),
        ("/data/what?#", True),
    ],
)
def test_letters_that_a_uri_must_escape(url, escapes):
    """As Java's ``URI`` does, which leaves other alphabets as they are."""
    assert escapes is has_escapes(url)
