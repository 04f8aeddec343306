"""The contract of storages, for a disk and for memory."""

from __future__ import annotations

import errno
import os
import uuid
from typing import TYPE_CHECKING

import fsspec
import pytest

from airflow_provider.runtime.errors import UnsupportedStorageError
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.storage.objects import MemoryStorage
from airflow_provider.runtime.testing.storages import SharedStorageContract, StorageContract

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider.runtime.api.storages import Storage


class TestLocalStorage(SharedStorageContract):
    """A folder of this machine."""

    racing_processes = 4

    @pytest.fixture
    def storage(self, tmp_path) -> Storage:
        return LocalStorage(str(tmp_path / "new" / "root"))

    def test_what_a_crash_left_half_written_is_not_listed(self, storage: LocalStorage, tmp_path):
        """The temporary file of a writer that died is not among the names."""
        storage.put("d/whole", b"1")
        (tmp_path / "new" / "root" / "d" / f".tmp-{uuid.uuid4().hex}").write_bytes(b"hal")

        assert ["whole"] == storage.list("d")

    def test_no_temporary_file_stays(self, storage: LocalStorage, tmp_path):
        """After puts, won and lost, the folder holds nothing but the object."""
        storage.put("d/a", b"1")
        storage.put_if_absent("d/a", b"2")
        storage.put_if_absent("d/b", b"2")

        assert ["a", "b"] == sorted(p.name for p in (tmp_path / "new" / "root" / "d").iterdir())

    @pytest.mark.parametrize(
        ("number", "expected"), [(errno.EPERM, UnsupportedStorageError), (errno.ENOSPC, OSError)]
    )
    def test_a_full_disk_is_not_one_without_links(self, storage, monkeypatch, number, expected):
        """
        Only a filesystem that never links is refused as such; one that is full may have space again.
        """

        def refuse(*_, **__):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "link", refuse)
        with pytest.raises(expected):
            storage.put_if_absent("a", b"1")

        assert [] == storage.list("")

    def test_deleting_a_link_leaves_what_it_points_to(self, storage: LocalStorage, tmp_path):
        """A symbolic link to a folder is removed as a link."""
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        (elsewhere / "data").write_bytes(b"1")
        storage.put("d/a", b"1")
        (tmp_path / "new" / "root" / "d" / "link").symlink_to(elsewhere)
        storage.delete("d/link")

        assert ["a"] == storage.list("d")
        assert (elsewhere / "data").exists()


class TestMemoryStorage(StorageContract):
    """A prefix of this process's memory."""

    @pytest.fixture
    def storage(self) -> Iterator[Storage]:
        filesystem = fsspec.filesystem("memory")
        root = f"/contract-{uuid.uuid4().hex}"
        yield MemoryStorage(filesystem, root)
        if filesystem.exists(root):
            filesystem.rm(root, recursive=True)

    def test_other_processes_do_not_see_it(self, storage: MemoryStorage):
        """Memory is not shared, so no job can run on it."""
        assert storage.shared is False
