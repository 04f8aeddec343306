"""The contracts of a storage on SeaweedFS, which decides between racing writers."""

from __future__ import annotations

import pytest

from airflow_provider.runtime.storage import buckets
from airflow_provider.runtime.storage.file_tree import files_under, remove_tree
from tests.contract.conftest import StoreServer
from tests.contract.test_conditional_copies import UploadedCopyContract
from tests.contract.test_copies import StoreCopyContract
from tests.contract.test_object_storage import DriversContract, ObjectStoreContract

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

PAGE = 1000  # objects that a listing answers at most


class TestStorage(DriversContract, ObjectStoreContract):
    """Documents of a job."""

    condition = "*"

    @pytest.fixture
    def server(self, s3_server: StoreServer) -> StoreServer:
        return s3_server

    def test_a_store_that_ignores_the_condition_is_refused(self, storage, server: StoreServer):
        """Here nobody on the way can take the condition from a request: the signature covers it."""
        server.disturb("careless", times=9)

        with pytest.raises(PermissionError, match="SignatureDoesNotMatch"):
            storage.put_if_absent("lease", b"mine")
        assert [] == storage.list("")

    def test_real_pages_are_turned(self, storage):
        """More objects than one answer of the store has are listed and removed."""
        names = [f"{number:04}" for number in range(PAGE + 5)]
        for name in names:
            storage.put(f"d/{name}", b"1")

        assert names == storage.list("d")
        assert len(names) == len(files_under(storage.url))
        remove_tree(f"{storage.url}/d")
        assert [] == storage.list("")


class TestConditionalCopies(UploadedCopyContract):
    """Files of an epoch that become visible."""

    @pytest.fixture
    def server(self, s3_server: StoreServer) -> StoreServer:
        return s3_server

    def test_a_store_that_ignores_the_condition_of_a_copy_is_refused(
        self, storage, server: StoreServer
    ):
        """It heeds the condition, and its trial leaves nothing; no request can be without it."""
        storage.prove_copies("trials")
        assert [] == files_under(storage.url)


class TestCopies(StoreCopyContract):
    """Files of a savepoint."""

    large_file = 12_000_000  # no part but the last may have less than 5 MiB

    @pytest.fixture
    def small_parts(self, monkeypatch):
        monkeypatch.setattr(buckets, "_SENT_AT_ONCE_BYTES", 5 * 2**20)

    @pytest.fixture
    def server(self, s3_server: StoreServer) -> StoreServer:
        return s3_server
