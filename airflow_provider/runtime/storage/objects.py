"""Documents in an object store (S3, Google Cloud Storage, Azure Blob Storage), or in memory."""

from __future__ import annotations

import errno
import threading
import uuid
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.base.clock import Clock, SystemClock
from airflow_provider.runtime.base.retry import Retries, RetryPolicy
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.storage.buckets import Entry
from airflow_provider.runtime.storage.store_errors import (
    ConflictError,
    checked_size,
    explained,
    without_conditions,
)

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Sequence

    from airflow_provider.runtime.api.storages import GoOn, RemoteStorage
    from airflow_provider.runtime.storage.buckets import Bucket


# A store that says "conflict" has another conditional write under way, which takes milliseconds.
_IN_THE_WAY = RetryPolicy(first_s=0.05, longest_s=1.0, failures=8)

_Found = list[tuple[str, int]]  # relative paths and bytes
_Names = list[tuple[str, bool]]  # names, and whether they are folders


class ObjectStorage:
    """A prefix of one bucket. Safe for threads and for forks, as :class:`Bucket` is.

    The three stores give all promises but one by themselves: an object appears whole, replaces
    another in one step, and every later read and listing shows it. The exception is put-if-absent,
    a write with a condition that the store decides: ``If-None-Match: *`` (S3, Azure) or
    ``ifGenerationMatch=0`` (Google). No listing is cached.
    """

    shared = True

    def __init__(
        self, bucket: Bucket, root: str, address: str, *, clock: Clock | None = None
    ) -> None:
        self._bucket = bucket
        self._root = root.strip("/")
        self._address = address
        self._clock = clock or SystemClock()

    @property
    def url(self) -> str:
        return self._where("")

    def at(self, path: str) -> ObjectStorage:
        return ObjectStorage(self._bucket, self._key(path), self._address, clock=self._clock)

    def read(self, path: str) -> bytes:
        """Return the whole object; one request."""
        with self._explained(path, "read"):
            return self._bucket.read(self._key(path))

    def read_small(self, path: str, *, at_most_bytes: int) -> bytes:
        """Return the whole object; one request, limited to the largest readable size."""
        with self._explained(path, "read"):
            data = self._bucket.read_beginning(self._key(path), at_most_bytes + 1)
        return checked_size(data, at_most_bytes, self._where(path))

    def put(self, path: str, data: bytes) -> None:
        """Write or replace the object; one request."""
        with self._explained(path, "write"):
            self._bucket.write(self._key(path), data)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Write the object on the condition that there is none.

        One request when it wins, and one more the first time in a bucket (see :meth:`_prove`); two
        when it loses: the answer "there is one" does not mean a loss. The library repeats a request
        whose answer got lost, and then finds its own object. So a refused writer reads the object.
        Equal bytes are its own, since racing writers write different ones.

        Raises:
            UnsupportedStorageError: the store ignores the condition.
            OSError: the store did not decide; the object exists or not.
        """
        retries = Retries(_IN_THE_WAY, self._clock)
        while True:
            try:
                self._create(path, data)
            except FileExistsError:
                try:
                    return self.read(path) == data
                except FileNotFoundError:
                    pass  # removed in between: absent again
            except ConflictError:
                pass
            else:
                self._prove(path, data)
                return True
            if not retries.failed():
                where = self._where(path)
                raise OSError(errno.EBUSY, "other writes interfered all the time", where)
            retries.pause()

    def exists(self, path: str) -> bool:
        """List the names that begin with this one; one request per 1000 of them."""
        key = self._key(path)
        if not key:
            return bool(self.list(""))
        with self._explained(path, "list"):
            return any(
                entry.key in {key, f"{key}/"} for entry in self._bucket.entries(key, deep=False)
            )

    def list(self, path: str) -> list[str]:
        """Return the names directly under the prefix; one request per 1000."""
        return sorted({name for name, _ in self._children(path)})

    def delete(self, path: str) -> None:
        """Remove the object and all under it."""
        key = self._key(path)
        if not key:
            raise ConfigError(f"{self.url}: this is a whole bucket, which is not removed")
        with self._explained(path, "remove"):
            found = {entry.key: entry for entry in self._bucket.entries(key, deep=False)}
            doomed = [found[key]] if key in found else []
            if f"{key}/" in found:
                under = self._bucket.entries(f"{key}/", deep=True)
                doomed.extend(entry for entry in under if entry.key.startswith(f"{key}/"))
                doomed.extend(self._bucket.unlisted_folders(f"{key}/", doomed))
            self._bucket.remove(doomed)

    def delete_all(self, paths: Sequence[str]) -> None:
        with self._explained("", "remove"):
            self._bucket.remove([Entry(self._key(path), 0, is_folder=False) for path in paths])

    def files(self) -> _Found:
        return sorted((path, size_bytes) for path, (size_bytes, _) in self.tags().items())

    def tags(self) -> dict[str, tuple[int, str | None]]:
        start = len(self._prefix(""))
        return {
            entry.key[start:]: (entry.size_bytes, entry.tag)
            for entry in self._entries("", deep=True)
            if not entry.is_folder
        }

    def folders(self) -> Sequence[str]:
        return sorted({name for name, is_folder in self._children("") if is_folder})

    def remove_if_empty(self) -> None:
        """Remove what a store lists of a prefix without objects; most list nothing of it."""
        prefix = self._prefix("")
        if not prefix or not self.exists(""):
            return
        with self._explained("", "remove"):
            found = list(self._bucket.entries(prefix, deep=True))
            if all(entry.is_folder for entry in found):
                self._bucket.remove([*found, *self._bucket.unlisted_folders(prefix, found)])

    def is_beside(self, other: RemoteStorage) -> bool:
        return isinstance(other, ObjectStorage) and self._bucket.store == other._bucket.store

    @property
    def largest_copy_bytes(self) -> int | None:
        """The size of the largest object that :meth:`copy_from` takes; None for no limit."""
        return self._bucket.largest_copy_bytes

    def copy_from(self, source: RemoteStorage, path: str, *, go_on: GoOn) -> None:
        """Have the store copy an object of the same path from a location with :meth:`is_beside`."""
        if not isinstance(source, ObjectStorage):
            raise TypeError(f"{source.url}/{path}: no object store has this, so none copies it")
        with source._explained(path, "copy"):
            self._bucket.copy_from(source._bucket, source._key(path), self._key(path), go_on=go_on)

    def copy_if_absent(self, source: str, path: str, *, go_on: GoOn) -> bool:
        """Have the store copy an object of at most 5 GiB to a free path; return whether it did.

        If not, look at the path: the object may be this call's as well, whose answer got lost.
        After an OSError the object exists or not.

        Crash safety: the whole object or none; Azure may show an empty one until the copy is done.
        Idempotent: by path; :meth:`end_copies` removes what a death has left unseen.
        """
        retries = Retries(_IN_THE_WAY, self._clock)
        while True:
            try:
                with self._explained(source, "copy"):
                    self._bucket.copy_to_free(self._key(source), self._key(path), go_on=go_on)
            except FileExistsError:
                return False
            except ConflictError as error:
                if not retries.failed():
                    where = self._where(path)
                    raise OSError(errno.EBUSY, "other writes interfered", where) from error
                retries.pause()
            else:
                return True

    def prove_writes(self, folder: str) -> None:
        """Check in *folder*, which has no readers, that the store heeds put-if-absent's condition.

        It raises UnsupportedStorageError if not, and removes what it has made. Crash safety: an
        object of a few bytes with a name of its own.
        """
        path = f"{folder}/trial-{uuid.uuid4().hex}"
        try:
            self.put_if_absent(path, b"trial of a write")
        finally:
            self.delete_all([path])

    def prove_copies(self, folder: str) -> None:
        """Try whether the store refuses :meth:`copy_if_absent` over an object."""
        source = f"{folder}/trial-{uuid.uuid4().hex}"
        target = f"{source}.copy"
        self.put(source, b"trial of a copy")
        try:
            self.copy_if_absent(source, target, go_on=lambda: None)  # an answer may be lost
            if self.copy_if_absent(source, target, go_on=lambda: None):
                raise without_conditions(self._where(target), "a copy")
        finally:
            self.delete_all([source, target])

    def withdraw(self, path: str) -> None:
        """Remove the object, and end pending copies to it.

        If their sources were removed before, no copy brings it back. Idempotent.
        """
        with self._explained(path, "remove"):
            self._bucket.withdraw(self._key(path))

    def end_copies(self, is_wanted: Callable[[str], bool]) -> None:
        """End other writers' unseen copies to wanted paths; a live writer begins its copy again."""
        start = self._prefix("")
        with self._explained("", "list uploads and abort them"):
            self._bucket.end_copies(start, lambda key: is_wanted(key[len(start) :]))

    def size_of(self, path: str) -> int | None:
        """Return the object's bytes; None when there is none. One request."""
        key = self._key(path)
        with self._explained(path, "list"):
            found = (e for e in self._bucket.entries(key, deep=True) if e.key == key)
            return next((entry.size_bytes for entry in found), None)

    def fetch(self, path: str, file: str, *, go_on: GoOn) -> None:
        with self._explained(path, "read"):
            self._bucket.fetch(self._key(path), file, go_on=go_on)

    def send(self, path: str, file: str, *, size_bytes: int, go_on: GoOn) -> None:
        """Write or replace the object with a local file's bytes, which are read bit by bit.

        Crash safety: the old object or the new one, never a part. Parts that were sent stay unseen
        in the store until its rule for unfinished uploads removes them. Idempotent: by path and
        bytes.
        """
        with self._explained(path, "write"):
            self._bucket.send(file, self._key(path), size_bytes=size_bytes, go_on=go_on)

    def _children(self, path: str) -> _Names:
        start = len(self._prefix(path))
        found = [(e.key[start:].rstrip("/"), e.is_folder) for e in self._entries(path, deep=False)]
        return [(name, is_folder) for name, is_folder in found if name]  # not the folder's own mark

    def _entries(self, path: str, *, deep: bool) -> Sequence[Entry]:
        with self._explained(path, "list"):
            return list(self._bucket.entries(self._prefix(path), deep=deep))

    def _create(self, path: str, data: bytes) -> None:
        with self._explained(path, "create"):
            self._bucket.create(self._key(path), data)

    def _prove(self, path: str, data: bytes) -> None:
        """Repeat a put that has won, to check that the store refuses it; once per bucket and kind.

        Some stores that speak S3's protocol ignore the condition and let every writer win, perhaps
        only of an object that is sent in parts.
        """
        kind = "in parts" if len(data) >= self._bucket.parts_from_bytes else "at once"
        if kind in self._bucket.proven:
            return
        try:
            self._create(path, data)
        except (FileExistsError, ConflictError):
            self._bucket.proven.add(kind)
        else:
            raise without_conditions(self._where(path))

    def _explained(self, path: str, doing: str) -> contextlib.AbstractContextManager[None]:
        return explained(self._where(path), doing, credentials=self._bucket.credentials)

    def _key(self, path: str) -> str:
        return "/".join(part for part in (self._root, path.strip("/")) if part)

    def _prefix(self, path: str) -> str:
        key = self._key(path)
        return f"{key}/" if key else ""

    def _where(self, path: str) -> str:
        return "/".join(part for part in (self._address, self._key(path)) if part)


# --- memory -------------------------------------------------------------------------------------


class MemoryStorage:
    """A prefix of fsspec's in-memory filesystem, which is one per process; for tests."""

    shared = False
    _lock = threading.Lock()  # fsspec's ``mode="create"`` looks and then writes; this makes it one

    def __init__(self, filesystem: Any, root: str) -> None:
        self._fs = filesystem
        self._root = root.rstrip("/")

    @property
    def url(self) -> str:
        return f"memory://{self._root}"

    def at(self, path: str) -> MemoryStorage:
        return MemoryStorage(self._fs, f"{self._root}/{path}")

    def read(self, path: str) -> bytes:
        return bytes(self._fs.cat_file(self._full(path)))

    def read_small(self, path: str, *, at_most_bytes: int) -> bytes:
        return checked_size(self.read(path), at_most_bytes, f"{self.url}/{path}")

    def put(self, path: str, data: bytes) -> None:
        with self._lock:
            self._fs.pipe_file(self._full(path), data)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        with self._lock:
            if self._fs.exists(self._full(path)):
                return False
            self._fs.pipe_file(self._full(path), data)
            return True

    def exists(self, path: str) -> bool:
        return bool(self._fs.exists(self._full(path)))

    def list(self, path: str) -> list[str]:
        try:
            found = self._fs.ls(self._full(path), detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(name.rstrip("/").rsplit("/", 1)[-1] for name in found)

    def delete(self, path: str) -> None:
        with self._lock:
            for found in self._fs.find(self._full(path)):  # ``rm`` takes ``*`` for a pattern
                self._fs.rm_file(found)

    def delete_all(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.delete(path)

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root
