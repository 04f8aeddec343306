"""Files brought to, from, between and inside of object stores."""

from __future__ import annotations

import os
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from adlfs import AzureBlobFileSystem

from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.storage import buckets as buckets_module
from airflow_provider.runtime.storage.buckets import AzureBucket, Bucket, S3Bucket
from airflow_provider.runtime.storage.copy_files import Copied, WrongSizeError, copy_files
from airflow_provider.runtime.storage.file_tree import files_under
from airflow_provider.runtime.storage.objects import ObjectStorage
from airflow_provider.runtime.storage.open import open_storage
from airflow_provider.runtime.storage.store_errors import GivenUpError
from tests.contract.conftest import ACCOUNT_KEY, BUCKET

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider.runtime.api.storages import Storage
    from tests.contract.conftest import StoreServer

LARGE = 120_000  # Google's little server rewrites it in three requests, Azure's is late with it
FILES = {
    "offsets/7": 30,
    "state/0/1/2.delta": 0,
    "state/0/1/a b%20c": 5,
    "state/0/1/[k]=é*+&": 9,
    "state/0/1/large.zip": LARGE,
}


def filled(storage: Storage, sizes: dict[str, int] = FILES) -> list[tuple[str, int]]:
    """Put an object of its size under each name, and return names and sizes."""
    for name, size in sizes.items():
        storage.put(name, os.urandom(size))
    return sorted(sizes.items())


def contents(storage: Storage) -> dict[str, bytes]:
    return {name: storage.read(name) for name, _ in files_under(storage.url)}


def is_copy(request: dict[str, Any]) -> bool:
    return bool(request["copy_source"]) or "/rewriteTo/" in request["path"]


def is_listing(request: dict[str, Any]) -> bool:
    return "prefix" in request["query"]


class CopyContract:
    """What is promised wherever the files are; a subclass gives the ``server``."""

    large_file = 600_000  # is sent in parts

    @pytest.fixture
    def storage(self, server: StoreServer) -> Iterator[Storage]:
        storage = open_storage(f"{server.url}/{uuid.uuid4().hex}")
        yield storage
        server.be_calm()

    @pytest.fixture
    def source(self, storage: Storage) -> Storage:
        return storage.at("source")

    @pytest.fixture
    def target(self, storage: Storage) -> Storage:
        return storage.at("target")

    @pytest.fixture
    def small_parts(self, monkeypatch):
        monkeypatch.setattr(buckets_module, "_SENT_AT_ONCE_BYTES", 2**18)

    @pytest.mark.slow
    def test_a_source_that_is_gone_is_named(self, source, target, tmp_path):
        """An object that was removed meanwhile is a missing file, by its address."""
        names = filled(source)
        source.delete("offsets/7")

        for location in (target.url, str(tmp_path)):
            with pytest.raises(FileNotFoundError) as raised:
                copy_files(source.url, location, names)
            assert f"{source.url}/offsets/7" == raised.value.filename
        assert not (tmp_path / "offsets/7").exists()

    @pytest.mark.slow
    def test_a_source_of_another_size_is_named(self, source, target, tmp_path):
        """An object that is shorter than was said is found out."""
        names = filled(source)
        source.put("offsets/7", b"short")

        is_found_at = target.url if target.is_beside(source) else source.url
        for location, at in ((target.url, is_found_at), (str(tmp_path / "t"), source.url)):
            with pytest.raises(WrongSizeError, match="has 5 bytes instead of 30") as raised:
                copy_files(source.url, location, names)
            assert f"{at}/offsets/7" == raised.value.filename
        assert [] == list((tmp_path / "t" / "offsets").iterdir())

    @pytest.mark.slow
    def test_there_and_back(self, source, target, tmp_path, small_parts):
        """
        Local files arrive in the store, and the store's in a folder, byte for byte, large ones too.
        """
        names = filled(source)
        here = tmp_path / "here"
        assert Copied(5, 0, 0, LARGE + 44) == copy_files(source.url, str(here), names)
        (here / "larger").write_bytes(os.urandom(self.large_file))
        names.append(("larger", self.large_file))

        sent = copy_files(str(here), target.url, names)
        fetched = copy_files(target.url, str(tmp_path / "back"), names)

        assert Copied(6, 0, 0, LARGE + 44 + self.large_file) == sent == fetched
        for name, _ in names:
            assert (here / name).read_bytes() == (tmp_path / "back" / name).read_bytes()
        assert sorted(names) == files_under(str(tmp_path / "back"))
        assert 6 == copy_files(str(here), target.url, names).kept_files
        assert 6 == copy_files(target.url, str(here), names).kept_files

    def test_local_sources_that_are_not_what_was_said(self, target, tmp_path):
        """A local file that is gone or has another size is named, and is not sent."""
        (tmp_path / "short").write_bytes(b"short")

        with pytest.raises(FileNotFoundError) as gone:
            copy_files(str(tmp_path), target.url, [("gone", 5)])
        with pytest.raises(WrongSizeError) as short:
            copy_files(str(tmp_path), target.url, [("short", 6)])

        assert [f"{tmp_path}/gone", f"{tmp_path}/short"] == [
            gone.value.filename,
            short.value.filename,
        ]
        assert {} == contents(target)


class StoreCopyContract(CopyContract):
    """What is added where the store itself copies."""

    def test_a_store_copies_by_itself(self, source, target, server: StoreServer):
        """Within a store no byte of an object comes to this machine or leaves it."""
        names = filled(source)
        server.requests()

        copied = copy_files(source.url, target.url, names)
        asked = server.requests()

        assert Copied(5, 0, 0, LARGE + 44) == copied
        assert contents(source) == contents(target)
        moved = [request for request in asked if not is_listing(request)]
        assert 0 == sum(request["sent_bytes"] for request in moved)
        assert sum(request["answered_bytes"] for request in moved) < 2000
        assert all(is_copy(r) or r["method"] == "HEAD" for r in moved)

    @pytest.mark.slow
    def test_a_second_call_keeps_what_is_there(self, source, target, server: StoreServer):
        """What has arrived is not copied again; what is missing or of another size is."""
        names = filled(source)
        copy_files(source.url, target.url, names)
        server.requests()

        again = copy_files(source.url, target.url, names)
        assert Copied(5, 5, 0, 0) == again
        assert all(map(is_listing, server.requests()))

        target.put("offsets/7", b"wrong")
        target.delete("state/0/1/a b%20c")
        completed = copy_files(source.url, target.url, names)
        assert Copied(5, 3, 0, 35) == completed
        assert 2 == sum(map(is_copy, server.requests()))
        assert contents(source) == contents(target)

    def test_a_local_source_that_goes_while_it_is_sent(self, target, tmp_path, monkeypatch):
        """A file that is removed at the last moment is sent whole: it was opened before."""
        (tmp_path / "file").write_bytes(b"12345")
        send = Bucket.send

        def remove_and_send(self, path, key, **options):
            (tmp_path / "file").unlink()
            send(self, path, key, **options)

        monkeypatch.setattr(Bucket, "send", remove_and_send)
        copy_files(str(tmp_path), target.url, [("file", 5)])

        assert b"12345" == target.read("file")

    @pytest.mark.slow
    def test_a_refused_copy_ends_the_rest(self, source, target, server: StoreServer):
        """When the store forbids a copy, no further one begins, and the error names the object."""
        names = [(f"{number}", 1) for number in range(80)]
        source.put("79", b"1")
        server.requests()
        server.disturb("denied", methods="PUT POST", times=99)

        with pytest.raises(PermissionError, match="may not copy here") as raised:
            copy_files(source.url, target.url, names)

        assert raised.value.filename.startswith(f"{source.url}/")
        assert sum(map(is_copy, server.requests())) < len(names)


class TestS3Copies(StoreCopyContract):
    """Amazon S3, as moto imitates it."""

    @pytest.fixture
    def server(self, s3: StoreServer) -> StoreServer:
        return s3

    def test_a_small_object_is_one_request(self, source, target, server: StoreServer):
        """An object is copied by one request, without a look at it first."""
        filled(source)
        server.requests()

        copy_files(source.url, target.url, [("offsets/7", 30)])

        assert ["GET", "PUT", "GET"] == [request["method"] for request in server.requests()]

    def test_more_than_5_gib_is_refused(self, source, target, server: StoreServer):
        """
        What is too large for one CopyObject is named, with its size, before anything is copied.
        """
        names = filled(source)
        server.requests()

        with pytest.raises(ConfigError, match="has 5368709121 bytes") as raised:
            copy_files(source.url, target.url, [*names, ("state/0/1/9.snapshot", 5 * 2**30 + 1)])

        assert str(raised.value).startswith(f"{source.url}/state/0/1/9.snapshot: ")
        assert all(map(is_listing, server.requests()))

    def test_5_gib_are_asked_for(self, source, target, server: StoreServer):
        """The largest object that S3 copies by one request is not refused here."""
        source.put("state/0/1/9.snapshot", b"in truth it is small")
        server.requests()

        with pytest.raises(WrongSizeError, match="instead of 5368709120 bytes"):
            copy_files(source.url, target.url, [("state/0/1/9.snapshot", 5 * 2**30)])

        assert 1 == sum(map(is_copy, server.requests()))

    @pytest.mark.slow
    def test_the_way_out_for_large_files(self, source, target, gcs, tmp_path, monkeypatch):
        """What the store does not copy itself arrives by way of a folder, and in another store."""
        monkeypatch.setattr(S3Bucket, "largest_copy_bytes", LARGE - 1)
        names = filled(source)
        other = open_storage(f"{gcs.url}/{uuid.uuid4().hex}")

        with pytest.raises(ConfigError, match="by way of a local folder or another store"):
            copy_files(source.url, target.url, names)
        assert {} == contents(target)
        copy_files(source.url, str(tmp_path), names)
        copy_files(str(tmp_path), target.url, names)
        copy_files(source.url, other.url, names)

        assert contents(source) == contents(target) == contents(other)

    @pytest.mark.slow
    def test_from_bucket_to_bucket(self, source, server: StoreServer):
        """The store copies from one of its buckets to another, which has its own name."""
        server.ask("PUT", "/other-bucket")
        other = open_storage(source.url.replace(BUCKET, "other-bucket"))
        names = filled(source)
        server.requests()

        copy_files(source.url, other.url.replace("s3://", "s3a://"), names)

        assert 5 == sum(map(is_copy, server.requests()))
        assert contents(source) == contents(other)


class TestGcsCopies(StoreCopyContract):
    """Google Cloud Storage, by the documents of its API."""

    large_file = 5 * 2**20 + 2**19  # gcsfs sends less than 5 MiB in one piece

    @pytest.fixture
    def server(self, gcs: StoreServer) -> StoreServer:
        return gcs

    @pytest.fixture
    def small_parts(self, monkeypatch):
        monkeypatch.setattr(buckets_module, "_SENT_AT_ONCE_BYTES", 2**20)

    def test_a_large_object_is_rewritten_until_it_is_done(self, source, target, server):
        """The store is asked again, with what it answered, until it has rewritten all."""
        filled(source)
        server.requests()

        copy_files(source.url, target.url, [("state/0/1/large.zip", LARGE)])

        copies = [request for request in server.requests() if is_copy(request)]
        assert [False, True, True] == ["rewriteToken" in copy["query"] for copy in copies]


class TestAzureCopies(StoreCopyContract):
    """Azure Blob Storage, by the documents of its API."""

    large = "state/0/1/large.zip"

    @pytest.fixture
    def server(self, azure: StoreServer) -> StoreServer:
        return azure

    @pytest.fixture
    def copy_large(self, source, target):
        filled(source)
        return partial(target.copy_from, source, self.large)

    @pytest.mark.slow
    def test_a_copy_that_takes_time_is_waited_for(self, source, target, server: StoreServer):
        """Until the store has ended a copy there is an empty blob; the call returns after that."""
        filled(source)
        server.requests()

        copy_files(source.url, target.url, [(self.large, LARGE)])

        methods = [request["method"] for request in server.requests()]
        assert ["GET", "PUT", "HEAD", "HEAD", "GET"] == methods
        assert source.read(self.large) == target.read(self.large)

    @pytest.mark.slow
    def test_a_source_that_goes_while_it_is_copied(self, source, target, server, copy_large):
        """A copy that the store had begun and could not end names the source that is gone."""
        path = f"/account/{BUCKET}/{source._key(self.large)}"

        with pytest.raises(FileNotFoundError) as raised:
            copy_large(go_on=lambda: server.ask("DELETE", path))

        assert f"{source.url}/{self.large}" == raised.value.filename

    @pytest.mark.slow
    def test_a_copy_that_is_given_up_is_aborted(self, target, server, copy_large):
        """
        When another file has failed, the store is told to stop, so that the target can be removed.
        """

        def give_up():
            raise GivenUpError

        with pytest.raises(GivenUpError):
            copy_large(go_on=give_up)

        assert "copy" == server.requests()[-1]["query"]["comp"]
        assert b"" == target.read(self.large)

    @pytest.mark.slow
    def test_a_copy_that_a_dead_caller_began_is_waited_for(self, source, target, copy_large):
        """
        A copy that is under way already is not begun twice, and its end is the end of this one.
        """

        def die():
            raise LookupError("not the way to give up")

        with pytest.raises(LookupError):
            copy_large(go_on=die)

        copy_files(source.url, target.url, [(self.large, LARGE)])

        assert source.read(self.large) == target.read(self.large)

    def test_another_account_is_another_store(self, source, target):
        """Blobs of another account are not the store's to copy, since it may not read them."""
        another = "AccountName=another;AccountKey={};BlobEndpoint=http://127.0.0.1/another;"
        bucket = AzureBucket(
            BUCKET, lambda: AzureBlobFileSystem(connection_string=another.format(ACCOUNT_KEY))
        )

        assert target.is_beside(source)
        assert not target.is_beside(ObjectStorage(bucket, "", f"abfss://{BUCKET}@another"))


@pytest.mark.slow
@pytest.mark.parametrize(("there", "here"), [("s3", "gcs"), ("gcs", "azure"), ("azure", "s3")])
def test_from_store_to_store(request, there, here):
    """Between stores the files pass this machine, and arrive whole or not at all."""
    source, target = (
        open_storage(f"{request.getfixturevalue(name).url}/{uuid.uuid4().hex}")
        for name in (there, here)
    )
    names = filled(source)

    copied = copy_files(source.url, target.url, names)

    assert Copied(5, 0, 0, LARGE + 44) == copied
    assert contents(source) == contents(target)
    with pytest.raises(FileNotFoundError, match="no such object") as gone:
        copy_files(source.url, target.url, [("gone", 3)])
    with pytest.raises(WrongSizeError) as wrong:
        copy_files(source.url, target.url, [("offsets/7", 3)])
    assert [f"{source.url}/gone", f"{source.url}/offsets/7"] == [
        gone.value.filename,
        wrong.value.filename,
    ]
    assert contents(source) == contents(target)


class TestHdfsCopies(CopyContract):
    """HDFS, by the documents of WebHDFS; it copies nothing by itself."""

    @pytest.fixture
    def server(self, hdfs: StoreServer) -> StoreServer:
        return hdfs

    def test_files_come_by_way_of_this_machine(self, source, target, server: StoreServer):
        """
        Within HDFS each file is read and written once, and nothing unfinished is left; a second call
        brings only what is missing or of another size.
        """
        names = filled(source)
        server.requests()

        copied = copy_files(source.url, target.url, names)
        asked = server.requests()

        assert Copied(5, 0, 0, LARGE + 44) == copied
        assert contents(source) == contents(target)
        assert LARGE + 44 == sum(request["sent_bytes"] for request in asked)
        assert sorted(names) == target.files()
        target.put("offsets/7", b"wrong")
        assert Copied(5, 4, 0, 30) == copy_files(source.url, target.url, names)

    @pytest.mark.slow
    def test_a_writer_that_breaks_off_leaves_no_part(self, target, server, tmp_path):
        """
        Half a file that a datanode got is not the file; the next try is written under another name.
        """
        (tmp_path / "file").write_bytes(b"0123456789")
        server.disturb("cut", query="namenoderpcaddress")

        copy_files(str(tmp_path), target.url, [("file", 10)])

        assert b"0123456789" == target.read("file")
        assert [("file", 10)] == target.files()


@pytest.mark.whole
class TestAzuriteCopies(StoreCopyContract):
    """Azure Blob Storage, as Microsoft's own emulator has it."""

    @pytest.fixture
    def server(self, azurite: StoreServer) -> StoreServer:
        return azurite
