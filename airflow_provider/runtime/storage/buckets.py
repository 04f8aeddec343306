"""Buckets: S3, Google Cloud Storage and Azure Blob Storage by one interface of a few requests.

fsspec's filesystems are used for what they do in one request each: reading, writing, and writing
only where no object is. Listing and removing call the stores directly, through the same clients:
fsspec's own ``ls``, ``find``, ``exists`` and ``rm`` answer from a cache, ask twice, list siblings,
take ``*`` in a name for a pattern, or (s3fs) hide that objects could not be removed.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

from fsspec.asyn import sync
from fsspec.callbacks import Callback

from airflow_provider.runtime.storage.store_copies import (
    ObjectLocation,
    copy_blob,
    copy_blob_to_free,
    copy_by_upload,
    end_uploads,
    remove_blob,
    rewrite_to_free,
)
from airflow_provider.runtime.storage.store_errors import is_without_bytes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from airflow_provider.runtime.api.storages import GoOn

_DELETES_AT_ONCE = 32  # requests in flight; more only earns "slow down" from the store
_S3_DELETE_LIMIT = 1000  # objects that one DeleteObjects may name
_S3_PART_LIMIT = 10_000  # parts in which one object may be sent
_MIB = 2**20
_FROM_ENVIRONMENT = "the credentials"
_SENT_AT_ONCE_BYTES = 8 * _MIB  # held in memory for each file on its way


class Entry(NamedTuple):
    """An entry of a listing, with its whole key."""

    key: str
    size_bytes: int
    is_folder: bool  # a common prefix, or an empty object that represents a folder
    tag: str | None = None  # another one whenever the content is


class Bucket:
    """One bucket (Azure: container) of a store.

    Safe for threads: all requests run on fsspec's own event loop. Safe for forks: a child process
    gets a client of its own, because the parent's event loop does not run in it.

    Attributes:
        proven: the kinds of writes that the store was seen to refuse for their condition.
        parts_from_bytes: the size from which :meth:`create` sends an object in parts, whose last
            request has the condition.
        largest_copy_bytes: the largest object that the store copies by one request; None for no
            limit.
    """

    largest_copy_bytes: int | None = None
    parts_from_bytes: int

    def __init__(
        self, name: str, connect: Callable[[], Any], credentials: str = _FROM_ENVIRONMENT
    ) -> None:
        self.name = name
        self.credentials = credentials
        self.proven: set[str] = set()
        self._connect = connect
        self._filesystem = connect()
        self._pid = os.getpid()

    @property
    def filesystem(self) -> Any:
        if self._pid != os.getpid():
            self._filesystem, self._pid = self._connect(), os.getpid()
        return self._filesystem

    def read(self, key: str) -> bytes:
        """Return the object's bytes, of one version; one request."""
        return bytes(self.filesystem.cat_file(self._path(key)))

    def read_beginning(self, key: str, size_bytes: int) -> bytes:
        """Return the first bytes of the object, or all of a smaller one; one request."""
        try:
            return bytes(self.filesystem.cat_file(self._path(key), start=0, end=size_bytes))
        except Exception as error:
            if is_without_bytes(error):
                return b""
            raise

    def write(self, key: str, data: bytes) -> None:
        """Write or replace the object; one request."""
        self.filesystem.pipe_file(self._path(key), data)

    def create(self, key: str, data: bytes) -> None:
        """Write the object by the store's own condition; raise FileExistsError if there is one."""
        self.filesystem.pipe_file(self._path(key), data, mode="create")

    @property
    def store(self) -> str:
        """The name that is equal for buckets between which the store itself copies."""
        return type(self).__name__

    def copy_from(self, source: Bucket, source_key: str, key: str, *, go_on: GoOn) -> None:
        """Have the store copy an object of another bucket of it over a key; it appears whole."""
        raise NotImplementedError

    def copy_to_free(self, source_key: str, key: str, *, go_on: GoOn) -> None:
        """Have the store copy an object here to a key; FileExistsError if there is one."""
        raise NotImplementedError

    def end_copies(self, prefix: str, is_wanted: Callable[[str], bool]) -> None:
        """End other writers' :meth:`copy_to_free` to wanted keys with this prefix."""

    def withdraw(self, key: str) -> None:
        self._remove_each([key])

    def fetch(self, key: str, path: str, *, go_on: GoOn) -> None:
        """Write an object's bytes, of one version, to a local file."""
        self.filesystem.get_file(self._path(key), path, max_concurrency=1, callback=_watched(go_on))

    def send(self, path: str, key: str, *, size_bytes: int, go_on: GoOn) -> None:
        """Write or replace the object with a local file's bytes; it appears whole."""
        if size_bytes <= _SENT_AT_ONCE_BYTES:
            with open(path, "rb") as file:
                self.write(key, file.read())
        else:
            self._send_in_parts(path, key, size_bytes, go_on)

    def _send_in_parts(self, path: str, key: str, size_bytes: int, go_on: GoOn) -> None:
        raise NotImplementedError

    def entries(self, prefix: str, *, deep: bool) -> Iterator[Entry]:
        """List the keys that begin with *prefix*; one request per page.

        ``a`` finds ``a``, ``a/b`` and ``ab``: every object if *deep*, else names up to the next
        ``/``.
        """
        raise NotImplementedError

    def unlisted_folders(self, prefix: str, entries: Sequence[Entry]) -> Iterator[Entry]:
        """Return what a listing may still show of a prefix when *entries*, all in it, are gone."""
        return iter(())

    def remove(self, entries: Sequence[Entry]) -> None:
        """Remove objects, if present; after an OSError the removable ones are gone."""
        keys = [entry.key for entry in entries if not entry.is_folder]
        folders = [entry.key for entry in entries if entry.is_folder]
        self._remove_each(keys)
        for key in sorted(folders, reverse=True):  # a folder of a hierarchical store must be empty
            self._remove_each([key])

    def _remove_each(self, keys: Sequence[str]) -> None:
        filesystem = self.filesystem
        limit = asyncio.Semaphore(_DELETES_AT_ONCE)

        async def remove_one(key: str) -> None:
            async with limit:
                await filesystem._rm_file(self._path(key))

        async def remove_all() -> list[BaseException | None]:
            return await asyncio.gather(*map(remove_one, keys), return_exceptions=True)

        for error in sync(filesystem.loop, remove_all):
            if error is not None and not isinstance(error, FileNotFoundError):
                raise error

    def _path(self, key: str) -> str:
        if not key:  # to some of the libraries an empty key is the bucket itself
            raise ValueError(f"{self.name}: an object has a name")
        return f"{self.name}/{key}"


def _watched(go_on: GoOn) -> Callback:
    return Callback(hooks={"go on": lambda *_: go_on()})


_KEEPS_FOLDERS: Final = "SeaweedFS"  # as such a server names itself in its answers


class S3Bucket(Bucket):
    """A bucket of Amazon S3 or of a store that speaks its protocol."""

    largest_copy_bytes = 5 * 2**30
    parts_from_bytes = 100 * _MIB  # twice what s3fs sends as a part
    _keeps_folders = False  # until a listing says so

    def read(self, key: str) -> bytes:
        # More than one at a time makes s3fs ask for the size first, and of a large object read
        # pieces that may be of different versions.
        return bytes(self.filesystem.cat_file(self._path(key), max_concurrency=1))

    def entries(self, prefix: str, *, deep: bool) -> Iterator[Entry]:
        options = {"Bucket": self.name, "Prefix": prefix}
        if not deep:
            options["Delimiter"] = "/"
        while True:
            page = self.filesystem.call_s3("list_objects_v2", **options)
            answered_by = page["ResponseMetadata"]["HTTPHeaders"].get("server", "")
            self._keeps_folders = answered_by.startswith(_KEEPS_FOLDERS)
            for found in page.get("Contents", ()):
                key, tag = found["Key"], found.get("ETag")
                yield Entry(key, found["Size"], key.endswith("/"), tag)
            for found in page.get("CommonPrefixes", ()):
                yield Entry(found["Prefix"], 0, is_folder=True)
            if not page.get("IsTruncated"):
                return
            options["ContinuationToken"] = page["NextContinuationToken"]

    def unlisted_folders(self, prefix: str, entries: Sequence[Entry]) -> Iterator[Entry]:
        """Return the folders of the prefix, deepest first, from a server that keeps them.

        SeaweedFS lists an empty folder for minutes, and removes it by its name with a slash. Other
        stores are not asked: a version of the bucket would mark each such name as deleted.
        """
        if not self._keeps_folders:
            return
        listed = {entry.key for entry in entries}
        folders = {prefix}
        for key in listed:
            parts = key[len(prefix) :].split("/")[:-1]
            folders.update(
                prefix + "/".join(parts[:depth]) + "/" for depth in range(1, 1 + len(parts))
            )
        for folder in sorted(folders - listed, key=len, reverse=True):
            yield Entry(folder, 0, is_folder=True)

    def remove(self, entries: Sequence[Entry]) -> None:
        # A folder is removed after what is in it.
        keys = [entry.key for entry in sorted(entries, key=lambda entry: entry.is_folder)]
        for start in range(0, len(keys), _S3_DELETE_LIMIT):
            named = [{"Key": key} for key in keys[start : start + _S3_DELETE_LIMIT]]
            answer = self.filesystem.call_s3(
                "delete_objects", Bucket=self.name, Delete={"Objects": named, "Quiet": True}
            )
            for refused in answer.get("Errors", ()):
                msg = f"{refused['Key']} was not removed: {refused.get('Code')}"
                kind = PermissionError if refused.get("Code") == "AccessDenied" else OSError
                raise kind(msg)

    def copy_from(self, source: Bucket, source_key: str, key: str, *, go_on: GoOn) -> None:
        go_on()
        origin = {"Bucket": source.name, "Key": source_key}
        self.filesystem.call_s3("copy_object", Bucket=self.name, Key=key, CopySource=origin)

    def copy_to_free(self, source_key: str, key: str, *, go_on: GoOn) -> None:
        """Copy with an upload of one part, whose end has the condition ``If-None-Match: *``."""
        source, target = ObjectLocation(self.name, source_key), ObjectLocation(self.name, key)
        copy_by_upload(self.filesystem, source, target, go_on=go_on)

    def end_copies(self, prefix: str, is_wanted: Callable[[str], bool]) -> None:
        end_uploads(self.filesystem, self.name, prefix, is_wanted)

    def withdraw(self, key: str) -> None:
        self.end_copies(key, lambda other: other == key)
        self.remove([Entry(key, 0, is_folder=False)])

    def _send_in_parts(self, path: str, key: str, size_bytes: int, go_on: GoOn) -> None:
        self.filesystem.put_file(
            path,
            self._path(key),
            chunksize=max(_SENT_AT_ONCE_BYTES, -(-size_bytes // _S3_PART_LIMIT)),
            max_concurrency=1,
            callback=_watched(go_on),
        )


class GcsBucket(Bucket):
    """A bucket of Google Cloud Storage."""

    parts_from_bytes = 50 * _MIB  # what gcsfs sends as a part

    def entries(self, prefix: str, *, deep: bool) -> Iterator[Entry]:
        options = {
            "prefix": prefix,
            "delimiter": None if deep else "/",
            "fields": "items(name,size,generation),prefixes,nextPageToken",
            "pageToken": None,
        }
        while True:
            page = self.filesystem.call("GET", "b/{}/o", self.name, json_out=True, **options)
            for found in page.get("items", ()):
                name, tag = found["name"], found.get("generation")
                yield Entry(name, int(found["size"]), name.endswith("/"), tag)
            for found in page.get("prefixes", ()):
                yield Entry(found, 0, is_folder=True)
            options["pageToken"] = page.get("nextPageToken")
            if options["pageToken"] is None:
                return

    def copy_from(self, source: Bucket, source_key: str, key: str, *, go_on: GoOn) -> None:
        """Copy with ``objects.rewrite``, which a large object needs several times."""
        go_on()
        self.filesystem.cp_file(source._path(source_key), self._path(key))

    def copy_to_free(self, source_key: str, key: str, *, go_on: GoOn) -> None:
        """Copy with ``objects.rewrite`` and the condition ``ifGenerationMatch=0``."""
        source, target = ObjectLocation(self.name, source_key), ObjectLocation(self.name, key)
        rewrite_to_free(self.filesystem, source, target, go_on=go_on)

    def fetch(self, key: str, path: str, *, go_on: GoOn) -> None:
        # What gcsfs offers for files asks for the size first, and holds many pieces in memory.
        filesystem = self.filesystem
        sync(
            filesystem.loop,
            filesystem._get_file_request,
            self._path(key),
            path,
            callback=_watched(go_on),
        )

    def _send_in_parts(self, path: str, key: str, size_bytes: int, go_on: GoOn) -> None:
        self.filesystem.put_file(
            path, self._path(key), chunksize=_SENT_AT_ONCE_BYTES, callback=_watched(go_on)
        )


class AzureBucket(Bucket):
    """A container of Azure Blob Storage, with or without a hierarchical namespace."""

    parts_from_bytes = 64 * _MIB  # what the SDK sends at once

    @property
    def store(self) -> str:
        return str(self.filesystem.service_client.primary_hostname)

    def entries(self, prefix: str, *, deep: bool) -> Iterator[Entry]:
        filesystem = self.filesystem

        async def ask() -> list[Entry]:
            options = {"name_starts_with": prefix or None, "include": ["metadata"]}
            async with filesystem.service_client.get_container_client(self.name) as container:
                listing = container.list_blobs if deep else container.walk_blobs
                return [_azure_entry(found) async for found in listing(**options)]

        yield from sync(filesystem.loop, ask)

    def copy_from(self, source: Bucket, source_key: str, key: str, *, go_on: GoOn) -> None:
        """Copy with Copy Blob, and wait; until the copy is done there is an empty blob."""
        self._copy(source, source_key, key, lambda old, new: copy_blob(old, new, go_on=go_on))

    def copy_to_free(self, source_key: str, key: str, *, go_on: GoOn) -> None:
        go_on()
        self._copy(self, source_key, key, copy_blob_to_free)

    def _copy(
        self, source: Bucket, source_key: str, key: str, copy: Callable[[str, Any], Awaitable[None]]
    ) -> None:
        client_of = self.filesystem.service_client.get_blob_client

        async def run() -> None:
            old, new = client_of(source.name, source_key), client_of(self.name, key)
            async with old, new:
                await copy(old.url, new)

        sync(self.filesystem.loop, run)

    def withdraw(self, key: str) -> None:
        blob = self.filesystem.service_client.get_blob_client(self.name, key)

        async def remove() -> None:
            async with blob:
                await remove_blob(blob)

        sync(self.filesystem.loop, remove)

    def _send_in_parts(self, path: str, key: str, size_bytes: int, go_on: GoOn) -> None:
        # Of a file the SDK would know the size, and take up to 64 MiB of it into memory.
        with open(path, "rb") as file:
            steps = _steps_of(file, go_on)
            self.filesystem.pipe_file(self._path(key), steps, max_concurrency=1)


def _steps_of(file: BinaryIO, go_on: GoOn) -> Iterator[bytes]:
    while data := file.read(_MIB):
        go_on()
        yield data


def _azure_entry(found: Any) -> Entry:
    metadata = {key.lower(): value for key, value in (found.get("metadata") or {}).items()}
    is_folder = found.name.endswith("/") or metadata.get("hdi_isfolder") == "true"
    return Entry(found.name, found.get("size") or 0, is_folder, found.get("etag"))


# --- From an address to a bucket ------------------------------------------------------------------


def open_s3(url: str, credentials: str = _FROM_ENVIRONMENT, **options: Any) -> tuple[Bucket, str]:
    """Return the bucket and key that *url* names; no request is made."""

    def connect() -> Any:
        from s3fs import S3FileSystem

        return S3FileSystem(use_listings_cache=False, **options)

    name, key, _ = connect().split_path(url)
    return S3Bucket(name, connect, credentials), key


def open_gcs(url: str) -> tuple[Bucket, str]:
    """Return the bucket and key that *url* names; no request is made."""

    def connect() -> Any:
        # The class that fsspec would choose asks by gRPC, before each write, what kind of bucket
        # it is; only zonal buckets need that, and they have no conditional write of this kind.
        from gcsfs.core import GCSFileSystem

        return GCSFileSystem(use_listings_cache=False)

    name, key, _ = connect().split_path(url)
    return GcsBucket(name, connect), key


def open_azure(url: str) -> tuple[Bucket, str]:
    """Return the container and key that *url* names; no request is made."""

    def connect() -> Any:
        from adlfs import AzureBlobFileSystem

        account = AzureBlobFileSystem._get_kwargs_from_urls(url)
        return _with_short_pauses(AzureBlobFileSystem(**account, use_listings_cache=False))

    name, key, _ = connect().split_path(url)
    return AzureBucket(name, connect), key


def _with_short_pauses(filesystem: Any) -> Any:
    """Let Azure's SDK repeat a request after 1, 3 and 5 s instead of 15, 18 and 24 s.

    A lease is lost after 20 s without a heartbeat, and a heartbeat waits for its request. adlfs
    has no argument for it; the policy is shared by all clients that it makes.
    """
    policy = getattr(getattr(filesystem.service_client, "_config", None), "retry_policy", None)
    if policy is not None:  # else a later SDK keeps it elsewhere, and pauses as it does
        policy.initial_backoff, policy.increment_base, policy.random_jitter_range = 1, 2, 0
    return filesystem
