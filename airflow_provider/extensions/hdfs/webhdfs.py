"""WebHDFS: the few requests to an HDFS namenode that a storage is made of, and its errors.

fsspec's filesystem gives the session, with what its configuration says of Kerberos, tokens and
proxies. Its own requests are not used: they wait without end for an answer, and of an error they
keep the message alone, which does not say whether a name is taken or the namenode in standby.
"""

from __future__ import annotations

import dataclasses
import errno
import getpass
import os
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

from airflow_provider.runtime.api.errors import ConfigError, UnsupportedStorageError
from airflow_provider.runtime.api.kit.typed_json import (
    MOST_BYTES,
    Check,
    Mismatch,
    NonNegative,
    decode,
    read_json,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_CONNECT_S, _ANSWER_S = 10.0, 60.0  # a namenode under load pauses for seconds
_AT_ONCE: Final = 32  # connections that are kept; more would be opened and closed each time
_STEP_BYTES: Final = 2**20
_REDIRECT, _UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _FAULT = 307, 401, 403, 404, 500
_BAD_REQUEST: Final = 400

_NUMBERS: Final = {
    "FileNotFoundException": errno.ENOENT,
    "ParentNotDirectoryException": errno.ENOENT,
    "FileAlreadyExistsException": errno.EEXIST,
    "DSQuotaExceededException": errno.EDQUOT,
    "NSQuotaExceededException": errno.EDQUOT,
    "QuotaByStorageTypeExceededException": errno.EDQUOT,
}
_FORBIDDING: Final = frozenset(
    {"AccessControlException", "AuthorizationException", "SecurityException", "InvalidToken"}
)
# The cluster is there, and will answer: it starts, or another namenode takes over.
_PASSING: Final = frozenset(
    {
        "BlockMissingException",
        "RetriableException",
        "SafeModeException",
        "ServerTooBusyException",
        "StandbyException",
    }
)
# What a namenode without the datanodes of a file, or without any, calls a plain IOException.
_NO_DATANODE: Final = (
    "nodes contain this block",
    "Failed to find datanode",
    "could only be written to",
    "Could not obtain block",
    "Could not get block locations",
    "Unable to create new block",
    "are bad. Aborting",
    "does not have enough number of replicas",
)
_NO_ADDRESS: Final = frozenset(
    {"HadoopIllegalArgumentException", "IllegalArgumentException", "InvalidPathException"}
)
_IDENTITY: Final = frozenset({"kerberos", "password", "token", "user"})


T = TypeVar("T")


def _is_below(name: str) -> bool:
    """Whether a name of a listing stays in its folder; an empty one is the folder itself."""
    return "/" not in name and name not in {".", ".."}


class Status(NamedTuple):
    """The status of one name in HDFS."""

    name: str
    size_bytes: int
    is_folder: bool
    tag: str


@dataclasses.dataclass(frozen=True)
class _FileStatus:
    pathSuffix: Annotated[str, Check("a name without a slash", _is_below)]  # noqa: N815 - HDFS's
    length: NonNegative
    type: str
    fileId: int | None = None  # noqa: N815 - HDFS's
    modificationTime: int | None = None  # noqa: N815 - HDFS's


@dataclasses.dataclass(frozen=True)
class _StatusAnswer:
    FileStatus: _FileStatus


@dataclasses.dataclass(frozen=True)
class _Listed:
    FileStatus: tuple[_FileStatus, ...]


@dataclasses.dataclass(frozen=True)
class _ListAnswer:
    FileStatuses: _Listed


@dataclasses.dataclass(frozen=True)
class _RemoteException:
    exception: str
    message: str


@dataclasses.dataclass(frozen=True)
class _RefusalAnswer:
    RemoteException: _RemoteException


class NameNode:
    """A namenode, and the datanodes that it names.

    Safe for threads. Safe for forks: a child process gets a session of its own.
    """

    def __init__(self, host: str, port: int) -> None:
        self.address = f"webhdfs://{host}:{port}"
        self.keeps_names = False
        self._namenode = host, port
        self._filesystem = self._connect()
        self._pid = os.getpid()

    def create(self, path: str, data: bytes | Iterable[bytes]) -> None:
        """Write a file that is not there; its folders are made.

        It can be seen before it is whole, and an error may leave a part of it.

        Raises:
            FileExistsError: it exists, perhaps from an earlier request.
        """
        options = {"overwrite": "false", "createparent": "true"}
        first = self._ask("PUT", "CREATE", path, **options)
        self._send("PUT", self._location(first, path), path, data=data).close()

    def rename(self, path: str, target: str, *, replace: bool) -> None:
        """Give a file another name, in one step of the namenode's.

        Raises:
            FileExistsError: there is something, and *replace* is false.
            FileNotFoundError: there is no such file, or no such folder.
            UnsupportedStorageError: the server has no such rename, like an HttpFS gateway.
        """
        options = {"destination": target, "renameoptions": "OVERWRITE" if replace else "NONE"}
        answer = self._ask("PUT", "RENAME", path, **options)
        # Without the options HDFS moves a file into a folder of the target's name, and replaces
        # nothing. Who answers as for that, with a boolean, has not read them.
        if answer.content.strip():
            raise UnsupportedStorageError(
                f"{self.address}: what answers here, such as an HttpFS gateway, does not know "
                "WebHDFS' renameoptions, so it cannot decide between two drivers; name the HTTP "
                "address of the namenode itself"
            )

    def read(self, path: str, *, first_bytes: int | None = None) -> bytes:
        """Return a file's bytes, or the first of them."""
        return b"".join(self.steps(path, first_bytes=first_bytes))

    def steps(self, path: str, *, first_bytes: int | None = None) -> Iterator[bytes]:
        """Yield a file's bytes, or the first of them."""
        options = {} if first_bytes is None else {"length": str(first_bytes)}
        first = self._ask("GET", "OPEN", path, **options)
        answer = self._send("GET", self._location(first, path), path)
        with answer, self._explained(path):
            announced = answer.headers.get("Content-Length")
            found = 0
            for step in answer.iter_content(_STEP_BYTES):
                found += len(step)
                yield step
            if announced is not None and int(announced) != found:
                said = f"{found} of {announced} bytes have come"
                raise _no_answer(said, self.where(path))

    def status(self, path: str) -> Status:
        answer = self._ask("GET", "GETFILESTATUS", path)
        return _status(self._answered(_StatusAnswer, answer, path).FileStatus)

    def list(self, path: str) -> list[Status]:
        answer = self._ask("GET", "LISTSTATUS", path)
        listed = self._answered(_ListAnswer, answer, path).FileStatuses
        return [_status(found) for found in listed.FileStatus]

    def delete(self, path: str, *, recursive: bool) -> None:
        """Remove the file or folder in one step; do nothing if it is absent."""
        self._ask("DELETE", "DELETE", path, recursive=str(recursive).lower()).close()

    def where(self, path: str) -> str:
        return self.address + path

    # --- one request ------------------------------------------------------------------------------

    def _connect(self) -> Any:
        from fsspec.config import conf
        from fsspec.implementations.webhdfs import WebHDFS
        from requests.adapters import HTTPAdapter

        own = conf.get("webhdfs", {})
        host, port = self._namenode
        # Hadoop's clients, and with them Spark, take the same user.
        user = {} if own.keys() & _IDENTITY else {"user": user_name()}
        filesystem = WebHDFS(host=host, port=port, **user)
        for scheme in ("http://", "https://"):
            filesystem.session.mount(scheme, HTTPAdapter(pool_maxsize=_AT_ONCE))
        return filesystem

    def _ask(self, method: str, operation: str, path: str, **options: str) -> Any:
        filesystem = self._here()
        url = f"{filesystem.url}{quote(path, safe='/=')}"
        return self._send(method, url, path, params={**options, **filesystem.pars, "op": operation})

    def _here(self) -> Any:
        if self._pid != os.getpid():
            self._filesystem, self._pid = self._connect(), os.getpid()
        return self._filesystem

    def _send(self, method: str, url: str, path: str, **options: Any) -> Any:
        with self._explained(path, url):
            answer = self._here().session.request(
                method,
                self._here()._apply_proxy(url),
                allow_redirects=False,
                timeout=(_CONNECT_S, _ANSWER_S),
                stream=method == "GET",
                **options,
            )
        if answer.status_code == _UNAUTHORIZED and self._here().session.auth is not None:
            answer.close()
            raise _no_ticket(self.where(path))
        if answer.status_code >= _BAD_REQUEST:
            with answer, self._explained(path):
                raise explain(answer.status_code, _body(answer), self.where(path))
        return answer

    def _location(self, answer: Any, path: str) -> str:
        answer.close()
        if answer.status_code != _REDIRECT or "Location" not in answer.headers:
            raise _no_webhdfs(answer.status_code, self.where(path))
        return str(answer.headers["Location"])

    def _answered(self, kind: type[T], answer: Any, path: str) -> T:
        with answer, self._explained(path):
            try:
                found: T = decode(kind, read_json(_body(answer)))
            except ValueError as error:
                raise _no_webhdfs(answer.status_code, self.address) from error
            except Mismatch as problem:
                said = f"not as it is documented: {problem}"
                raise _no_answer(said, self.where(path)) from None
        return found

    def _explained(self, path: str, url: str = "") -> _Explained:
        return _Explained(self.where(path), urlsplit(url).netloc)


class _Explained:
    def __init__(self, where: str, host: str) -> None:
        self._where = where
        self._host = host

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        from requests.exceptions import InvalidURL, RequestException

        if isinstance(error, InvalidURL):
            raise ConfigError(f"{self._where}: no server has this address ({error})") from error
        if isinstance(error, RequestException):
            said = f"{self._host or 'the server'}: {type(error).__name__}: {error}"
            raise _no_answer(said, self._where) from error


def user_name() -> str:
    """Return the user that Hadoop's own clients would be without Kerberos."""
    return os.environ.get("HADOOP_USER_NAME") or getpass.getuser()


def explain(status: int, body: bytes, where: str) -> Exception:
    """Return the error that an answer of HDFS means."""
    said = _remote_exception(body)
    if said is None:
        return _explain_page(status, where)
    kind, message = said
    if kind in _FORBIDDING:
        return _forbidden(f"{kind}: {message}", where)
    if kind in _PASSING or any(each in message for each in _NO_DATANODE):
        return _no_answer(f"{kind}: {message}", where)
    if kind in _NO_ADDRESS:
        return ConfigError(f"{where}: HDFS does not take this path ({kind}: {message})")
    number = _NUMBERS.get(kind, errno.EIO)
    return OSError(number, f"{kind}: {message}", where)  # of the number's own class


def _explain_page(status: int, where: str) -> Exception:
    if status in {_UNAUTHORIZED, _FORBIDDEN}:
        return _forbidden(f"HTTP {status}", where)
    return _no_answer(f"HTTP {status}", where) if status >= _FAULT else _no_webhdfs(status, where)


def _remote_exception(body: bytes) -> tuple[str, str] | None:
    try:
        said: _RefusalAnswer = decode(_RefusalAnswer, read_json(body))
    except (ValueError, Mismatch):
        return None
    # A message may have the stack trace of the server below its first line.
    return said.RemoteException.exception, said.RemoteException.message.partition("\n")[0]


def _body(answer: Any) -> bytes:
    """Return an answer's bytes, not many more than JSON is read from."""
    found = bytearray()
    for step in answer.iter_content(_STEP_BYTES):
        found += step
        if len(found) > MOST_BYTES:
            break
    return bytes(found)


def _forbidden(said: str, where: str) -> PermissionError:
    msg = (
        f"may not do that here ({said}); check HADOOP_USER_NAME, or Kerberos' ticket and fsspec's "
        "settings for webhdfs"
    )
    return PermissionError(errno.EACCES, msg, where)


def _no_answer(said: str, where: str) -> ConnectionError:
    return ConnectionError(errno.EHOSTUNREACH, f"HDFS did not answer ({said})", where)


def _no_ticket(where: str) -> ConnectionError:
    """Return an error that passes: what renews tickets may be late, or its KDC away."""
    msg = (
        "HDFS took no login (HTTP 401): the Kerberos ticket is missing or has expired; get one "
        "with kinit, and renew it beside the process"
    )
    return ConnectionError(errno.EHOSTUNREACH, msg, where)


def _no_webhdfs(status: int, where: str) -> ConfigError:
    return ConfigError(
        f"{where}: no WebHDFS answers there (HTTP {status}); name the port of the namenode's HTTP "
        "server, 9870 unless configured otherwise, and enable dfs.webhdfs.enabled"
    )


def _status(found: _FileStatus) -> Status:
    tag = f"{found.fileId}-{found.modificationTime}"
    return Status(found.pathSuffix, found.length, found.type == "DIRECTORY", tag)


_NAME_NODES: Final[dict[tuple[str, int], NameNode]] = {}


def name_node(host: str, port: int) -> NameNode:
    """Return this process's namenode of that address; nothing is asked."""
    if (host, port) not in _NAME_NODES:
        _NAME_NODES[host, port] = NameNode(host, port)
    return _NAME_NODES[host, port]
