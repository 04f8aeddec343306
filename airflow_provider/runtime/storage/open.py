"""Opens the storage of an address, by a table of the filesystems that are safe.

Credentials for S3 that replace those of the environment hold for a block of code, in its thread or
task: one process, such as Airflow's triggerer, opens the jobs of many people. They are never part
of an address, which is logged and stored.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import errno
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow_provider.runtime.api.storages import STORAGES as STORAGE_KINDS
from airflow_provider.runtime.base.extensions import (
    STORAGES,
    load_extension,
    load_known,
    names_in,
)
from airflow_provider.runtime.base.names import CONTROLS
from airflow_provider.runtime.errors import ConfigError, UnsupportedStorageError
from airflow_provider.runtime.errors.fixes import PACKAGES, set_conf
from airflow_provider.runtime.errors.redaction import shown_address
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.storage.local_folder import LocalFolder
from airflow_provider.runtime.storage.mounts import check_folder, full_disk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from airflow_provider.runtime.api.storages import RemoteStorage, Storage, StorageKind
    from airflow_provider.runtime.storage.objects import ObjectStorage


class _Store(NamedTuple):
    open_bucket: str  # a function of the module buckets, which takes long to import
    extra: str
    hadoop_scheme: str  # what Spark calls it
    hadoop_client: str  # with which Spark reaches it


_S3 = _Store("open_s3", "s3", "s3a", "org.apache.hadoop:hadoop-aws of its Hadoop's version")
_GCS = _Store("open_gcs", "gcs", "gs", "com.google.cloud.bigdataoss:gcs-connector")
_AZURE = _Store(
    "open_azure", "azure", "abfss", "org.apache.hadoop:hadoop-azure of its Hadoop's version"
)

_STORES: Final[dict[str, _Store]] = {
    "abfs": _AZURE._replace(hadoop_scheme="abfs"),
    "abfss": _AZURE,
    "az": _AZURE,
    "gcs": _GCS,
    "gs": _GCS,
    "s3": _S3,
    "s3a": _S3,
}


_HDFS_ADDRESS: Final = (
    "write webhdfs://namenode:9870/path, with the port of the namenode's HTTP server"
)
# Hadoop's names of filesystems that have another address here.
_INSTEAD: Final = {
    "hdfs": f"Python reaches HDFS by WebHDFS; {_HDFS_ADDRESS}",
    "swebhdfs": f"WebHDFS by TLS was not tested here; {_HDFS_ADDRESS}",
    "viewfs": f"only Hadoop's clients know where a view leads; {_HDFS_ADDRESS} for HDFS",
}

_FILES: Final = frozenset({"file", "local"})
_ONE_SLASH: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(?!/)")


def _local(url: str) -> Storage:
    return LocalStorage(_path_of(url))


def _path_of(url: str) -> str:
    if url.startswith("/"):  # then there is no need for fsspec, which takes long to import
        return url.rstrip("/") or "/"
    import fsspec

    return str(fsspec.filesystem("file")._strip_protocol(url))


def _memory(url: str) -> Storage:
    import fsspec

    from airflow_provider.runtime.storage.objects import MemoryStorage

    filesystem = fsspec.filesystem("memory")
    return MemoryStorage(filesystem, filesystem._strip_protocol(url))


def _objects(url: str) -> ObjectStorage:
    scheme, rest = scheme_of(url), url.partition("://")[2]
    authority = rest.partition("/")[0]
    account = authority.rpartition("@")[0]
    of_bucket = _STORES[scheme] is _S3 or _STORES[scheme] is _GCS
    if (account and of_bucket) or ":" in (account or authority):
        raise ConfigError(
            f"{shown_address(url)}: credentials do not belong in an address, "
            "which is logged and stored; give them to the environment, as docs/storage.md says"
        )
    if not authority:
        raise ConfigError(f"{url}: names no bucket or container; write {scheme}://bucket/path")
    try:
        from airflow_provider.runtime.storage import buckets
        from airflow_provider.runtime.storage.objects import ObjectStorage

        credentials = credentials_in_use() if is_in_s3(url) else None
        options = {}
        if credentials is not None:
            options = {"credentials": credentials.named, **credentials.options()}
        bucket, key = getattr(buckets, _STORES[scheme].open_bucket)(url, **options)
    except ImportError as error:
        extra = _STORES[scheme].extra
        raise ConfigError(
            f"{url}: the scheme {scheme!r} needs the extra {extra!r}: "
            f"pip install 'airflow-provider-spark-streaming[{extra}]'"
        ) from error
    except Exception as error:  # each library has errors of its own for half a configuration
        raise ConfigError(f"{url}: the store's client cannot be made: {error}") from error
    return ObjectStorage(bucket, key, f"{scheme}://{authority}")


def storage_kind(url: str) -> StorageKind | None:
    """Return the extension that opens the address; None for one of the kernel's own schemes."""
    scheme = scheme_of(url)
    if scheme in _OPENERS:
        return None
    if scheme in STORAGES:
        kind: StorageKind = load_known(STORAGES, scheme)
        return kind
    found = scheme in names_in(STORAGE_KINDS)
    return load_extension(STORAGE_KINDS, scheme) if found else None


def _open_by_kind(kind: StorageKind, url: str) -> RemoteStorage:
    try:
        return kind.open(url)
    except ImportError as error:
        scheme = scheme_of(url)
        needs = f"the module {error.name!r}"
        if scheme in STORAGES:
            extra = STORAGES[scheme].split(".")[2]
            needs = f"the extra {extra!r}: pip install 'airflow-provider-spark-streaming[{extra}]'"
        raise ConfigError(f"{url}: the scheme {scheme!r} needs {needs}") from error


# Put-if-absent is a capability of a filesystem and not of fsspec, whose base class looks first and
# writes afterwards. Only what passes tests/contract/test_storage.py is here.
_OPENERS: Final[dict[str, Callable[[str], Storage]]] = {
    "file": _local,
    "local": _local,
    "memory": _memory,
    **dict.fromkeys(_STORES, _objects),
}


def supported_schemes() -> tuple[str, ...]:
    """Return the URL schemes a job directory can have, sorted."""
    return tuple(sorted({*_OPENERS, *STORAGES, *names_in(STORAGE_KINDS)}))


def scheme_of(url: str) -> str:
    """Return the URL's scheme, also with one slash as in Hadoop; ``file`` for a plain path."""
    protocol = None
    if not url.startswith("/"):
        from fsspec.core import split_protocol

        protocol, _ = split_protocol(url)
    hadoop = _ONE_SLASH.match(url)
    return protocol or (hadoop[1].lower() if hadoop else "file")


def is_in_s3(url: str) -> bool:
    """Whether *url* is in S3, or a store with its protocol."""
    return _STORES.get(scheme_of(url)) is _S3


def is_in_bucket(url: str) -> bool:
    """Whether *url* is in an object store."""
    return scheme_of(url) in _STORES


def how_spark_reaches(url: str) -> str | None:
    """Return what to do if Spark does not reach *url*; None if it reaches what Python reaches."""
    kind = storage_kind(url)
    if kind is not None:
        return kind.spark_url_setting
    store = _STORES.get(scheme_of(url))
    return store and (
        f"run with {set_conf(PACKAGES, store.hadoop_client)}, and give Spark the store's address "
        "and credentials as docs/storage.md says"
    )


def open_storage(url: str) -> Storage:
    """Open the location at *url*; nothing is read or written.

    Raises:
        UnsupportedStorageError: the scheme is not known to decide between two writers.
        ConfigError: the scheme's package is missing, or the address is incomplete, holds
            credentials, or has one slash after its scheme.
    """
    scheme, shown = scheme_of(url), shown_address(url)
    if _ONE_SLASH.match(url) and scheme not in _FILES:
        raise ConfigError(
            f"{shown}: one slash after the scheme {scheme!r}; write {scheme}://…, or ./{shown} for "
            "a folder of that name"
        )
    kind = storage_kind(url)
    if kind is not None:
        return _open_by_kind(kind, url)
    opener = _OPENERS.get(scheme)
    if opener is None and scheme in _INSTEAD:
        why = _INSTEAD[scheme]
        raise UnsupportedStorageError(
            f"{shown}: no job can lie at an address with the scheme {scheme!r}: {why}"
        )
    if opener is None:
        raise UnsupportedStorageError(
            f"{shown}: the scheme {scheme!r} has no tested atomic put-if-absent here, which the "
            f"lease and the final checkpoint need; use one of: {', '.join(supported_schemes())}"
        )
    return opener(url)


def check_location(url: str) -> None:
    """Refuse a location that cannot decide between two drivers, as far as known before writing."""
    if CONTROLS.search(url):
        raise ConfigError(f"{url!r}: a job directory has an address on one line; use another path")
    local = local_path_of(url)
    if local is not None:
        for location in (Path(local), *Path(local).parents):
            if location.is_file():
                what = "is" if location == Path(local) else f"{location} is"
                raise ConfigError(
                    f"{url}: {what} a file, and a job directory is a folder; use another path"
                )
        check_folder(Path(local))


def open_objects(url: str) -> ObjectStorage | None:
    """Open the location at *url* if it is in an object store, else return None."""
    return _objects(url) if scheme_of(url) in _STORES else None


def open_remote(url: str) -> RemoteStorage | None:
    """Open the location at *url* if this machine reaches it by requests, else return None."""
    kind = storage_kind(url)
    return _open_by_kind(kind, url) if kind is not None else open_objects(url)


def local_path_of(url: str) -> str | None:
    """Return the absolute path of *url*, or None when it is not on a local filesystem."""
    if scheme_of(url) not in _FILES:
        return None
    return _path_of(url)


def local_folder_of(location: str | Storage) -> LocalFolder | None:
    """Return the folder of an address or a storage; None when it is not on this machine."""
    if isinstance(location, LocalStorage):
        return location.folder
    local = local_path_of(location if isinstance(location, str) else location.url)
    return LocalFolder(local) if local is not None else None


def check_room(url: str) -> None:
    """Raise an OSError if the address is on a disk of this machine without room for a record."""
    folder = local_path_of(url)
    if folder is not None and full_disk([folder]) is not None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), folder)


def has_escapes(url: str) -> bool:
    """Whether an address has letters that a URI must escape."""
    return re.search(r"""[\s%"<>{}|\\^`\[\]#?]""", url) is not None


def spark_url(url: str) -> str:
    """Return the address by which Spark (Hadoop) knows the same location.

    ``s3://`` becomes ``s3a://``, ``gcs://`` becomes ``gs://``, ``az://`` becomes ``abfss://``, a
    local path ``file://``; an extension answers for its own scheme; any other address stays as it
    is. Nothing is escaped: Hadoop takes ``%20`` for three letters of a name.

    Raises:
        ConfigError: an address in Azure does not name the storage account, which Spark needs.
    """
    local = local_path_of(url)
    if local is not None:
        return f"file://{local}"
    scheme, _, rest = url.partition("://")
    kind = storage_kind(url)
    if kind is not None:
        return kind.spark_url(url)
    store = _STORES.get(scheme)
    if store is None:
        return url
    if store.extra == "azure" and not re.match(r"[^/@]+@[^/@]+", rest):
        raise ConfigError(
            f"{url}: Spark has to know the storage account: write "
            "abfss://container@account.dfs.core.windows.net/path"
        )
    return f"{store.hadoop_scheme}://{rest}"


# --- credentials --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoreCredentials:
    """Keys for S3, and its region and endpoint; None for those of the environment."""

    named: str
    key: str
    secret: str = dataclasses.field(repr=False)
    token: str | None = dataclasses.field(default=None, repr=False)
    region: str | None = None
    endpoint: str | None = None

    def options(self) -> dict[str, Any]:
        given = {"key": self.key, "secret": self.secret, "token": self.token}
        location = {"region_name": self.region, "endpoint_url": self.endpoint}
        return {
            **given,
            "client_kwargs": {name: value for name, value in location.items() if value},
        }

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return *environ* with these credentials, as boto, Spark and Hadoop read them there."""
        given = {
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_SESSION_TOKEN": self.token,
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ENDPOINT_URL_S3": self.endpoint,
        }
        # The token of another key would make this one invalid.
        others = {name: value for name, value in environ.items() if name != "AWS_SESSION_TOKEN"}
        return {**others, **{name: value for name, value in given.items() if value}}


_in_use: Final[contextvars.ContextVar[StoreCredentials | None]] = contextvars.ContextVar(
    "spark_stream_credentials", default=None
)


def credentials_in_use() -> StoreCredentials | None:
    """Return the credentials with which S3 is opened here; None for the environment's."""
    return _in_use.get()


@contextlib.contextmanager
def using(credentials: StoreCredentials | None) -> Iterator[None]:
    """Open S3 with these credentials until the block ends; None for the environment's."""
    before = _in_use.get()
    _in_use.set(credentials)
    try:
        yield
    finally:
        _in_use.set(before)
