"""Documents in HDFS, by WebHDFS.

HDFS has no conditional write: a file that is created where none is has its name at once and its
bytes later. So each file is written under a hidden name beside its own, and renamed when it is
whole; the namenode does that in one step, and refuses it when the name is taken, or replaces what
has it, as the request says.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, Final, TypeVar, Union

from airflow_provider.extensions.hdfs.webhdfs import NameNode, Status, name_node
from airflow_provider.runtime.api.errors import ConfigError, UnsupportedStorageError
from airflow_provider.runtime.api.kit.clock import Clock, SystemClock
from airflow_provider.runtime.api.kit.messages import shown_address
from airflow_provider.runtime.api.kit.parallel import for_each
from airflow_provider.runtime.api.kit.retry import Retries, RetryPolicy
from airflow_provider.runtime.api.kit.storages import TEMPORARY, checked_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from airflow_provider.runtime.api.storages import GoOn, RemoteStorage

T = TypeVar("T")
_Data = Union[bytes, "Iterable[bytes]"]
_Files = list[tuple[str, int]]  # relative paths and bytes
_Children = list[Status]
_Tree = list[tuple[str, Status]]  # relative paths, and what is there

# A namenode that another one follows, or that has just started, answers again within seconds.
_AWAY: Final = RetryPolicy(first_s=0.5, longest_s=4.0, failures=4)
_REQUESTS_AT_ONCE: Final = 8
_STEP_BYTES: Final = 2**20
# Spark takes a name of two parts, such as 7.delta, for a state file's and fails if it is none; with
# this end, the name of an unfinished file has three.
_UNFINISHED: Final = ".part"
SPARKS_HDFS: Final = "SPARK_STREAM_HDFS"
"""The variable with the address at which Spark knows the HDFS of a ``webhdfs://`` address."""


class HdfsStorage:
    """A folder in HDFS. Safe for threads and for forks."""

    shared = True

    def __init__(self, namenode: NameNode, root: str, *, clock: Clock | None = None) -> None:
        self._namenode = namenode
        self._root = root
        self._clock = clock or SystemClock()

    @property
    def url(self) -> str:
        return self._namenode.where(self._root)

    def at(self, path: str) -> HdfsStorage:
        """Return the folder *path* under this one; the same connections."""
        return HdfsStorage(self._namenode, self._path(path), clock=self._clock)

    def read(self, path: str) -> bytes:
        """Return the whole file; two requests."""
        return self._patiently(lambda: self._namenode.read(self._path(path)))

    def read_small(self, path: str, *, at_most_bytes: int) -> bytes:
        """Return the whole file; two requests, limited to the largest readable size."""
        file, first_bytes = self._path(path), at_most_bytes + 1
        data = self._patiently(lambda: self._namenode.read(file, first_bytes=first_bytes))
        return checked_size(data, at_most_bytes, self._namenode.where(file))

    def put(self, path: str, data: bytes) -> None:
        """Write beside the target, then rename over it; three requests."""
        self._location(path, lambda: data, replace=True)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Write beside the target, then rename it, which HDFS refuses if the name is taken.

        Three requests when it wins, and four more the first time with a namenode (see
        :meth:`_prove`); six when it loses: a refused writer reads what is there, as the answer to
        an earlier request of its own may have got lost. Equal bytes are its own, since racing
        writers write different ones.

        Raises:
            UnsupportedStorageError: the server does not refuse to give a name twice.
            OSError: the outcome is unknown; the file exists or not.
        """
        try:
            self._location(path, lambda: data, replace=False)
        except FileExistsError:
            with contextlib.suppress(FileNotFoundError):  # removed since, but it was there
                return self.read(path) == data
            return False
        self._prove(path, data)
        return True

    def exists(self, path: str) -> bool:
        """Whether there is a file or folder; one request."""
        return self._status(path) is not None

    def list(self, path: str) -> list[str]:
        """Return the names in the folder, without those still being written; one request."""
        return sorted(found.name for found in self._children(self._path(path)))

    def delete(self, path: str) -> None:
        """Remove the file, or the folder with all in it, in one step; one request."""
        target = self._path(path)
        if not target:
            raise ConfigError(f"{self.url}/: this is all of HDFS, which is not removed")
        self._patiently(lambda: self._namenode.delete(target, recursive=True))

    def delete_all(self, paths: Sequence[str]) -> None:
        """Remove the files; one request each."""
        for_each(
            paths,
            lambda path, _: self._patiently(
                lambda: self._namenode.delete(self._path(path), recursive=False)
            ),
            at_once=_REQUESTS_AT_ONCE,
        )

    # --- trees ------------------------------------------------------------------------------------

    def files(self) -> _Files:
        return sorted((path, found.size_bytes) for path, found in self._tree())

    def tags(self) -> dict[str, tuple[int, str | None]]:
        return {path: (found.size_bytes, found.tag) for path, found in self._tree()}

    def folders(self) -> Sequence[str]:
        return sorted(found.name for found in self._children(self._root) if found.is_folder)

    def remove_if_empty(self) -> None:
        if self._root:
            self._remove_quietly(self._root)

    # --- copies -----------------------------------------------------------------------------------

    largest_copy_bytes: int | None = None

    def is_beside(self, other: RemoteStorage) -> bool:
        """Whether HDFS itself copies from *other* to here; it copies nothing."""
        del other
        return False

    def copy_from(self, source: RemoteStorage, path: str, *, go_on: GoOn) -> None:
        """Refuse, as :meth:`is_beside` says: files come by way of this machine."""
        del go_on
        raise UnsupportedStorageError(
            f"{source.url}/{path}: HDFS copies no file from there to {self.url} by itself"
        )

    def fetch(self, path: str, file: str, *, go_on: GoOn) -> None:
        def fetch() -> None:
            with open(file, "wb") as target:
                for step in self._namenode.steps(self._path(path)):
                    go_on()
                    target.write(step)

        self._patiently(fetch)

    def send(self, path: str, file: str, *, size_bytes: int, go_on: GoOn) -> None:
        """Write or replace a file with a local one's bytes, which are read bit by bit."""
        del size_bytes
        with open(file, "rb") as source:  # here, as a missing file is no failure of HDFS
            steps = partial(_steps_of, source, go_on)
            self._location(path, steps, replace=True, end=_UNFINISHED)

    # --- writing ----------------------------------------------------------------------------------

    def _location(
        self, path: str, data: Callable[[], _Data], *, replace: bool, end: str = ""
    ) -> None:
        temporary = self._write_beside(path, data, end)
        try:
            self._rename(temporary, path, replace=replace)
        except BaseException:
            self._remove_quietly(temporary)
            raise

    def _write_beside(self, path: str, data: Callable[[], _Data], end: str) -> str:
        """Write a hidden file in the folder of *path*, and return its own path.

        Each try has a name of its own: an earlier one, whose answer got lost, may still write to
        its file, and would make a part of what was renamed already.
        """
        folder = self._path(path).rpartition("/")[0]
        tries: list[str] = []

        def write() -> None:
            tries.append(f"{folder}/{TEMPORARY}{uuid.uuid4().hex}{end}")
            self._namenode.create(tries[-1], data())

        try:
            self._patiently(write)
        except BaseException:
            self._remove_quietly(tries[-1])
            raise
        for unanswered in tries[:-1]:
            self._remove_quietly(unanswered)
        return tries[-1]

    def _rename(self, temporary: str, path: str, *, replace: bool) -> None:
        retries, is_repeated = Retries(_AWAY, self._clock), False
        while True:
            try:
                self._namenode.rename(temporary, self._path(path), replace=replace)
            except FileNotFoundError:
                if not is_repeated:
                    raise
                return  # the first request has renamed it
            except ConnectionError:
                if not retries.failed():
                    raise
                is_repeated = True
                retries.pause()
            else:
                return

    def _remove_quietly(self, path: str) -> None:
        with contextlib.suppress(OSError):  # it is hidden, and goes with its folder
            self._namenode.delete(path, recursive=False)

    def _prove(self, path: str, data: bytes) -> None:
        if self._namenode.keeps_names:
            return
        try:
            self._location(path, lambda: data, replace=False)
        except FileExistsError:
            self._namenode.keeps_names = True
            return
        raise UnsupportedStorageError(
            f"{self._where(path)}: a rename there replaces a file although it was asked not to, so "
            "it cannot decide between two drivers; put the job directory on another filesystem"
        )

    # --- looking ----------------------------------------------------------------------------------

    def _status(self, path: str) -> Status | None:
        target = self._path(path) or "/"
        try:
            return self._patiently(lambda: self._namenode.status(target))
        except FileNotFoundError:
            return None

    def _children(self, path: str) -> _Children:
        try:
            found = self._patiently(lambda: self._namenode.list(path or "/"))
        except FileNotFoundError:
            return []
        return [entry for entry in found if entry.name and not entry.name.startswith(TEMPORARY)]

    def _tree(self) -> _Tree:
        found: _Tree = []
        folders = [""]
        while folders:
            inside: _Tree = []
            for_each(folders, partial(self._look_into, inside), at_once=_REQUESTS_AT_ONCE)
            found.extend(pair for pair in inside if not pair[1].is_folder)
            folders = [f"{path}/" for path, entry in inside if entry.is_folder]
        return found

    def _look_into(self, found: _Tree, folder: str, _: GoOn) -> None:
        children = self._children(self._path(folder))
        found.extend((f"{folder}{entry.name}", entry) for entry in children)

    # --- requests ---------------------------------------------------------------------------------

    def _patiently(self, ask: Callable[[], T]) -> T:
        retries = Retries(_AWAY, self._clock)
        while True:
            try:
                return ask()
            except ConnectionError:
                if not retries.failed():
                    raise
                retries.pause()

    def _path(self, path: str) -> str:
        names = [name for name in path.split("/") if name]
        for name in names:
            if ":" in name or name in {".", ".."}:
                raise ConfigError(
                    f"{self._namenode.where(f'{self._root}/{path}')}: HDFS has no name {name!r}"
                )
        return "/".join([self._root, *names])

    def _where(self, path: str) -> str:
        return self._namenode.where(self._path(path))


class WebHdfs:
    """The kind of ``webhdfs://namenode:port/path``."""

    api_version = 1
    spark_url_setting = (
        f"set {SPARKS_HDFS} to the address of the same HDFS in Spark's configuration, such as "
        "hdfs://nameservice"
    )

    def open(self, url: str) -> HdfsStorage:
        authority, _, path = url.partition("://")[2].partition("/")
        if "@" in authority:
            raise ConfigError(
                f"{shown_address(url)}: HDFS' user is no part of "
                "an address; set HADOOP_USER_NAME, or use Kerberos, as docs/storage.md says"
            )
        host, colon, port = authority.rpartition(":")
        if not (host and colon and port.isdigit()):
            raise ConfigError(
                f"{shown_address(url)}: names no port; write webhdfs://namenode:9870/path with the "
                "port of the namenode's HTTP server"
            )
        try:
            namenode = name_node(host, int(port))
        except (ConfigError, ImportError):
            raise
        except Exception as error:  # fsspec's settings, such as a user beside a token
            raise ConfigError(f"{url}: the client of HDFS cannot be made: {error}") from error
        return HdfsStorage(namenode, "").at(path)

    def spark_url(self, url: str) -> str:
        """Return the address in the HDFS of :data:`SPARKS_HDFS`, or in that of the namenode."""
        authority, _, path = url.partition("://")[2].partition("/")
        own = os.environ.get(SPARKS_HDFS) or f"hdfs://{authority.rpartition(':')[0]}"
        return f"{own.rstrip('/')}/{path}"


WEBHDFS: Final = WebHdfs()


def _steps_of(file: BinaryIO, go_on: GoOn) -> Iterator[bytes]:
    file.seek(0)
    while data := file.read(_STEP_BYTES):
        go_on()
        yield data
