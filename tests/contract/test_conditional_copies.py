"""Copies inside a store to where nothing is, and what ends them for good."""

from __future__ import annotations

import contextlib
import os
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from azure.storage.blob import BlobServiceClient

from airflow_provider.runtime.errors import LeaseLostError, UnsupportedStorageError
from airflow_provider.runtime.storage.objects import ObjectStorage
from airflow_provider.runtime.storage.open import open_objects
from tests.contract.conftest import BUCKET, azure_connection
from tests.unit.support import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.contract.conftest import StoreServer

LARGE = 120_000  # Google's little server rewrites it in three requests, Azure's is late with it


def go_on() -> None:
    pass


class ConditionalCopyContract:
    """What a store's copy to an absent name promises; a subclass gives the ``server``.

    Attributes:
        copies: what is in the query of the request that makes a copy visible.
    """

    copies = ""

    @pytest.fixture
    def storage(self, server: StoreServer) -> Iterator[ObjectStorage]:
        storage = open_objects(f"{server.url}/{uuid.uuid4().hex}")
        assert storage is not None
        yield storage
        server.be_calm()

    def test_it_copies_to_where_nothing_is(self, storage: ObjectStorage):
        """
        The bytes arrive under any name, what is there stays as it is, and a source that is gone is a
        missing file.
        """
        for name in ("k=a b%2Fc/[x]é+&", "large"):
            data = os.urandom(LARGE if name == "large" else 9)
            storage.put(f"from/{name}", data)
            assert storage.copy_if_absent(f"from/{name}", f"to/{name}", go_on=go_on)
            assert data == storage.read(f"to/{name}")
            assert len(data) == storage.size_of(f"to/{name}")
        storage.put("from/other", b"other")
        assert not storage.copy_if_absent("from/other", "to/large", go_on=go_on)
        assert LARGE == storage.size_of("to/large")
        assert storage.size_of("to/larg") is None
        storage.delete("from")
        with pytest.raises(FileNotFoundError):
            storage.copy_if_absent("from/other", "to/new", go_on=go_on)
        with contextlib.suppress(FileNotFoundError):  # whichever a store looks at first
            assert not storage.copy_if_absent("from/other", "to/large", go_on=go_on)
        assert storage.size_of("to/new") is None

    def test_one_of_racing_copies_wins(self, storage: ObjectStorage):
        """Of copies to one name at the same moment one is made, and the object is whole."""
        sources = [f"from/{number}" for number in range(4)]
        for source in sources:
            storage.put(source, source.encode())
        with ThreadPoolExecutor(4) as pool:
            won = list(pool.map(lambda s: storage.copy_if_absent(s, "to", go_on=go_on), sources))

        assert 1 == sum(won)
        assert sources[won.index(True)].encode() == storage.read("to")

    def test_a_caller_that_may_not_go_on_shows_nothing(self, storage: ObjectStorage):
        """A lease that is lost before the visible step ends the copy without a trace."""

        def lost() -> None:
            raise LeaseLostError

        storage.put("from", b"1")
        with pytest.raises(LeaseLostError):
            storage.copy_if_absent("from", "to", go_on=lost)

        assert ["from"] == storage.list("")

    @pytest.mark.long
    def test_a_lost_answer_is_no_second_copy(self, storage: ObjectStorage, server: StoreServer):
        """
        The store has done it and the caller is not told: the bytes are there, whatever is answered.
        """
        for lost in (1, 2):
            storage.put(f"from{lost}", b"123")
            server.disturb("lost", times=lost, methods="POST PUT")
            storage.copy_if_absent(f"from{lost}", f"to{lost}", go_on=go_on)
            server.be_calm()
            assert b"123" == storage.read(f"to{lost}")

    def test_a_copy_that_was_overtaken_does_not_bring_back_what_was_withdrawn(
        self, storage: ObjectStorage
    ):
        """
        A writer stopped just before its object appears finds, when it goes on, that source and
        target are withdrawn; it makes no object.
        """
        storage.put("from", b"1")
        storage.put("from 2", b"2")

        def overtaken() -> None:
            if storage.size_of("from") is not None:
                assert storage.copy_if_absent("from", "to", go_on=go_on)
                storage.delete("from")
                storage.withdraw("to")
                storage.withdraw("to")

        with pytest.raises(FileNotFoundError):
            storage.copy_if_absent("from", "to", go_on=overtaken)
        assert ["from 2"] == storage.list("")

    def test_withdrawing_ends_what_is_on_its_way_to_this_name_alone(self, storage: ObjectStorage):
        """A copy to a name that begins with the withdrawn one goes on."""
        storage.put("from", b"1")

        def beside() -> None:
            storage.withdraw("to")
            storage.end_copies(lambda path: path == "to")

        assert storage.copy_if_absent("from", "to 2", go_on=beside)
        assert b"1" == storage.read("to 2")

    def test_a_store_that_ignores_the_condition_of_a_copy_is_refused(
        self, storage: ObjectStorage, server: StoreServer
    ):
        """
        A trial copy finds it out, also where a write's condition is heeded; nothing is left of it.
        """
        assert storage.put_if_absent("document", b"1")
        storage.prove_copies("trials")
        server.disturb("careless", times=99, methods="POST PUT", query=self.copies)

        with pytest.raises(UnsupportedStorageError, match="the condition of a copy") as raised:
            storage.prove_copies("trials")

        assert storage.url in str(raised.value)
        assert ["document"] == storage.list("")


class UploadedCopyContract(ConditionalCopyContract):
    """What is added by S3's protocol, where the object appears with the end of an upload."""

    copies = "uploadId"

    def test_what_a_dead_writer_leaves_is_ended(self, storage: ObjectStorage):
        """Uploads that a death has left are aborted: those that are asked for, and no others."""
        client = storage._bucket.filesystem
        for name in ("mine", "theirs"):
            key = storage._key(f"out/{name}")
            client.call_s3("create_multipart_upload", Bucket=BUCKET, Key=key)
        storage.at("out").end_copies(lambda path: path == "mine")
        left = client.call_s3("list_multipart_uploads", Bucket=BUCKET, Prefix=storage._key(""))

        assert [storage._key("out/theirs")] == [upload["Key"] for upload in left["Uploads"]]
        storage.withdraw("out/theirs")
        assert "Uploads" not in client.call_s3(
            "list_multipart_uploads", Bucket=BUCKET, Prefix=storage._key("")
        )

    def test_a_store_that_is_always_in_the_way_is_named(
        self, storage: ObjectStorage, server: StoreServer
    ):
        """
        After some tries the caller is told, in one line with the address, and nothing is left.
        """
        storage = ObjectStorage(storage._bucket, storage._root, "s3://bucket", clock=FakeClock())
        storage.put("from", b"1")
        server.disturb("conflict", times=1000, methods="POST", query="uploadId")
        with pytest.raises(OSError, match="other writes interfered") as raised:
            storage.copy_if_absent("from", "to", go_on=go_on)
        server.be_calm()

        assert f"{storage.url}/to" == raised.value.filename
        assert ["from"] == storage.list("")
        left = storage._bucket.filesystem.call_s3(
            "list_multipart_uploads", Bucket=BUCKET, Prefix=storage._key("")
        )
        assert "Uploads" not in left


class TestS3(UploadedCopyContract):
    """Amazon S3, as moto imitates it."""

    @pytest.fixture
    def server(self, s3: StoreServer) -> StoreServer:
        return s3


class TestGoogle(ConditionalCopyContract):
    """Google Cloud Storage, where a rewrite has a condition."""

    @pytest.fixture
    def server(self, gcs: StoreServer) -> StoreServer:
        return gcs


class TestAzure(ConditionalCopyContract):
    """Azure Blob Storage, where a copy may be pending."""

    @pytest.fixture
    def server(self, azure: StoreServer) -> StoreServer:
        return azure

    def begin(self, server: StoreServer, storage: ObjectStorage) -> None:
        """Begin a large copy as a writer does that dies at once."""
        storage.put("from", os.urandom(LARGE))
        with BlobServiceClient.from_connection_string(azure_connection(server)) as service:
            source = service.get_blob_client(BUCKET, storage._key("from"))
            target = service.get_blob_client(BUCKET, storage._key("to"))
            assert "pending" == target.start_copy_from_url(source.url)["copy_status"]

    def test_a_pending_copy_is_waited_for(self, storage: ObjectStorage, server: StoreServer):
        """A copy that a dead writer has begun is not taken for done before it is."""
        self.begin(server, storage)
        storage.copy_if_absent("from", "to", go_on=go_on)

        assert LARGE == storage.size_of("to")

    def test_a_pending_copy_is_withdrawn(self, storage: ObjectStorage, server: StoreServer):
        """A blob to which a copy is pending is removed, and stays so."""
        self.begin(server, storage)
        storage.withdraw("to")

        assert ["from"] == storage.list("")

    def test_a_copy_that_has_failed_is_made_again(
        self, storage: ObjectStorage, server: StoreServer
    ):
        """
        The empty blob of a failed copy is no file that is there: the next copy takes its place.
        """
        self.begin(server, storage)
        data = storage.read("from")
        storage.delete("from")
        with pytest.raises(FileNotFoundError):
            storage.copy_if_absent("from", "to", go_on=go_on)
        assert 0 == storage.size_of("to")
        storage.put("from", data)
        storage.copy_if_absent("from", "to", go_on=go_on)

        assert data == storage.read("to")


@pytest.mark.whole
class TestAzurite(ConditionalCopyContract):
    """Microsoft's own emulator."""

    @pytest.fixture
    def server(self, azurite: StoreServer) -> StoreServer:
        return azurite

    def test_a_store_that_ignores_the_condition_of_a_copy_is_refused(
        self, storage: ObjectStorage, server: StoreServer
    ):
        """
        It heeds the condition, and its trial leaves nothing; nobody can take it from a request.
        """
        storage.prove_copies("trials")
        assert [] == storage.list("")
