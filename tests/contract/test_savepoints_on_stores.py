"""Savepoints in object stores: copied by the store, shared with older ones, moved, disposed of."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.driver.restore_job import restore_job
from airflow_provider.runtime.errors import ConfigError, SavepointBusyError
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.savepoints.catalog import (
    open_savepoint,
    verify_savepoint,
)
from airflow_provider.runtime.savepoints.checkpoint_source import checkpoint_source
from airflow_provider.runtime.savepoints.retention import (
    Retention,
    collect_garbage,
    dispose,
    pinned_savepoint,
    retain,
)
from airflow_provider.runtime.savepoints.take import take_savepoint
from airflow_provider.runtime.storage.buckets import S3Bucket
from airflow_provider.runtime.storage.copy_files import copy_files
from airflow_provider.runtime.storage.file_tree import files_under
from airflow_provider.runtime.storage.open import open_storage
from tests.unit.support import FakeClock

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from airflow_provider.runtime.api.storages import Storage
    from tests.contract.conftest import StoreServer

BIG = 100_000


# How each store copies: test_copies.py.
WHOLE = [pytest.param(store, marks=pytest.mark.whole) for store in ("gcs", "azure", "azurite")]


@pytest.fixture(params=["s3", *WHOLE, pytest.param("hdfs", marks=pytest.mark.whole)])
def server(request) -> StoreServer:
    return request.getfixturevalue(request.param)


@pytest.fixture(params=["s3", *WHOLE])
def copying_server(request) -> StoreServer:
    """A store that copies by itself."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def location(server) -> Storage:
    return open_storage(f"{server.url}/{uuid.uuid4().hex}")


def write(checkpoint: Storage, *batches: int) -> None:
    """Write what Spark writes of a query without state, and a large file that never changes."""
    checkpoint.put("metadata", b'{"id":"7d0f2a34-5f5e-4c0e-9f0a-1f4f2f1c9b11"}')
    checkpoint.put("other/large", b"x" * BIG)
    write_batches(checkpoint, *batches)


def write_batches(checkpoint: Storage, *batches: int) -> None:
    for batch in batches:
        offsets = f'v1\n{{"batchWatermarkMs":0,"conf":{{}}}}\n{{"rows":{batch}}}'
        checkpoint.put(f"offsets/{batch}", offsets.encode())
        checkpoint.put(f"commits/{batch}", b'v1\n{"nextBatchWatermarkMs":0}')


def take(checkpoint: Storage, url: str):
    return take_savepoint(checkpoint_source(checkpoint.url), url, clock=FakeClock())


def bytes_in(url: str) -> int:
    return sum(size for name, size in files_under(url) if not name.endswith("savepoint.json"))


def test_a_second_savepoint_copies_only_what_changed(location, server):
    """What the first one holds is named and not copied; none of it passes through this machine."""
    checkpoint = location.at("checkpoint")
    write(checkpoint, 0, 1)
    first = take(checkpoint, f"{location.url}/savepoints/first")
    write_batches(checkpoint, 2, 3)
    server.requests()

    second = take(checkpoint, f"{location.url}/savepoints/second")

    asked = server.requests()
    assert first.record.bytes > BIG < second.record.bytes
    assert bytes_in(f"{location.url}/savepoints/first/queries") > BIG
    assert bytes_in(f"{location.url}/savepoints/second/queries") < 1_000
    assert sum(request["sent_bytes"] for request in asked) < 10_000  # documents
    assert [] == verify_savepoint(second)
    shared = {file.path for _, file in second.record.files() if file.holder == "first"}
    assert {"metadata", "other/large"} == shared


@pytest.mark.long
def test_what_others_share_outlives_its_savepoint(location):
    """Disposing of the first leaves what the second needs; disposing of that leaves nothing."""
    checkpoint = location.at("checkpoint")
    write(checkpoint, 0)
    root = location.at("savepoints")
    take(checkpoint, f"{root.url}/first")
    second = take(checkpoint, f"{root.url}/second")

    dispose(f"{root.url}/first", clock=FakeClock())
    assert [] == verify_savepoint(open_savepoint(second.url))
    assert {"first", "second"} == set(root.list(""))

    dispose(second.url, clock=FakeClock())
    collect_garbage(root.url, clock=FakeClock())
    assert [] == root.list("")


@pytest.mark.long
def test_what_is_no_savepoint_stays_in_a_store(location):
    """Job directories, files and folders of others beside savepoints are as they were."""
    checkpoint = location.at("checkpoint")
    write(checkpoint, 0)
    take(checkpoint, f"{location.url}/first")
    location.put("job/queries/q/checkpoint/metadata", b"{}")
    location.put("job/job.json", b"{}")
    location.put("job/writer.1.json", b"{}")
    location.put("folder/queries/q/precious", b"mine")
    location.put("notes.txt", b"mine")
    before = set(files_under(location.url))

    retain(location.url, Retention(keep=1, origins=("manual",)), clock=FakeClock())
    assert before == set(files_under(location.url))

    dispose(f"{location.url}/first", clock=FakeClock())
    left = {file for file in before if not file[0].startswith("first/")}
    assert left == set(files_under(location.url))


@pytest.mark.long
def test_files_stay_while_it_is_not_known_who_shares_them(location):
    """A damaged savepoint may name them; when it can be read again, they go with the next call."""
    checkpoint, root = location.at("checkpoint"), location.at("savepoints")
    write(checkpoint, 0)
    take(checkpoint, f"{root.url}/first")
    second = take(checkpoint, f"{root.url}/second")
    third = take(checkpoint, f"{root.url}/third")
    whole = root.read("second/savepoint.json")
    root.put("second/savepoint.json", b"{")

    retain(root.url, Retention(keep=1, origins=("manual",), just_taken=third), clock=FakeClock())
    dispose(third.url, clock=FakeClock())
    assert b"x" * BIG == root.read("first/queries/query/other/large")

    root.put("second/savepoint.json", whole)
    assert [] == verify_savepoint(open_savepoint(second.url))
    dispose(second.url, clock=FakeClock())
    assert ["first", "third"] == collect_garbage(root.url, clock=FakeClock())
    assert [] == root.list("")


def test_a_name_whose_files_others_need_is_not_taken_again(location):
    """A new savepoint of the old name would remove them."""
    checkpoint, root = location.at("checkpoint"), location.at("savepoints")
    write(checkpoint, 0)
    take(checkpoint, f"{root.url}/first")
    second = take(checkpoint, f"{root.url}/second")
    dispose(f"{root.url}/first", clock=FakeClock())

    with pytest.raises(ConfigError, match="others may need its files; choose another name"):
        take(checkpoint, f"{root.url}/first")
    assert [] == verify_savepoint(second)


def test_a_reader_holds_what_lies_in_a_store(location):
    """While a savepoint is restored nobody removes it."""
    checkpoint = location.at("checkpoint")
    write(checkpoint, 0)
    saved = take(checkpoint, f"{location.url}/savepoints/first")

    with (
        pinned_savepoint(saved.url, FakeClock()),
        pytest.raises(SavepointBusyError, match="being restored"),
    ):
        dispose(saved.url, clock=FakeClock())
    dispose(saved.url, clock=FakeClock())
    assert [] == location.list("savepoints")


def test_moved_from_a_disk_to_a_store_and_back(location, tmp_path):
    """A savepoint restores from wherever its folder was copied to, when all before it is gone."""
    checkpoint = open_storage(str(tmp_path / "checkpoint"))
    write(checkpoint, 0, 1)
    taken = take(checkpoint, str(tmp_path / "savepoint"))
    for source, target in [
        (taken.url, f"{location.url}/moved"),
        (f"{location.url}/moved", str(tmp_path / "back")),
    ]:
        copy_files(source, target, files_under(source))
        open_storage(source.rpartition("/")[0]).delete(source.rpartition("/")[2])
    checkpoint.delete("")

    restore_job(str(tmp_path / "job"), str(tmp_path / "back"), clock=FakeClock())

    restored = JobDirectory(open_storage(str(tmp_path / "job"))).checkpoint("query")
    assert 1 == CheckpointLogs(restored).position().last_commit
    assert b"x" * BIG == restored.read("other/large")


def test_a_file_too_large_for_s3_goes_by_way_of_a_folder(s3, tmp_path, monkeypatch):
    """
    A savepoint inside S3 is refused for a file that S3 does not copy, and leaves nothing; one in a
    folder is taken, and restored to S3.
    """
    monkeypatch.setattr(S3Bucket, "largest_copy_bytes", BIG - 1)
    location = open_storage(f"{s3.url}/{uuid.uuid4().hex}")
    checkpoint = location.at("checkpoint")
    write(checkpoint, 0, 1)

    with pytest.raises(ConfigError, match="/other/large: has 100000 bytes, and the store itself"):
        take(checkpoint, f"{location.url}/savepoint")
    assert ["checkpoint"] == location.list("")
    taken = take(checkpoint, str(tmp_path / "savepoint"))
    restore_job(f"{location.url}/job", taken.url, clock=FakeClock())

    restored = JobDirectory(location.at("job")).checkpoint("query")
    assert b"x" * BIG == restored.read("other/large")


@pytest.mark.long
def test_restored_inside_the_store(copying_server):
    """A job directory in the store is set to a savepoint there by the store's own copies."""
    server = copying_server
    location = open_storage(f"{server.url}/{uuid.uuid4().hex}")
    checkpoint = location.at("checkpoint")
    write(checkpoint, 0, 1)
    take(checkpoint, f"{location.url}/savepoints/first")
    savepoint = take(checkpoint, f"{location.url}/savepoints/second")
    server.requests()

    restore_job(f"{location.url}/job", savepoint.url, clock=FakeClock())

    assert sum(request["sent_bytes"] for request in server.requests()) < 20_000
    restored = JobDirectory(location.at("job")).checkpoint("query")
    assert 1 == CheckpointLogs(restored).position().last_commit
    assert {"metadata", "offsets/0", "offsets/1", "commits/0", "commits/1", "other/large"} == {
        name for name, _ in files_under(restored.url)
    }
