"""Launcher ``livy``: batches of an Apache Livy server.

Livy knows no token, and refuses a second batch of a name while the first one is there. So the token
is the batch's name, and a batch of this name is looked for before one is made. Numbers of batches
begin again when a server without recovery is started again: a batch of another name is not ours.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http
import json
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, TypedDict, TypeVar
from urllib.parse import urlsplit

from airflow_provider.runtime.api.errors import (
    ConfigError,
    LauncherAwayError,
    SubmissionRefusedError,
    WrongAnswerError,
)
from airflow_provider.runtime.api.kit.clock import SystemClock
from airflow_provider.runtime.api.kit.extras import require_extra
from airflow_provider.runtime.api.kit.messages import first_line, shown_address
from airflow_provider.runtime.api.kit.service_answers import (
    ANSWER_S,
    answer_as,
    exit_code_in,
    is_transient,
    reason_in,
)
from airflow_provider.runtime.api.kit.typed_json import NonNegative, at_most, read_json
from airflow_provider.runtime.api.launchers import Handle, LaunchState, LaunchStatus, LogPart

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow.providers.apache.livy.hooks.livy import LivyHook
    from airflow.sdk import Connection

    from airflow_provider.runtime.api.kit.clock import Clock
    from airflow_provider.runtime.api.launchers import Application

T = TypeVar("T")

_PAGE: Final = 100
_MOST_PAGES: Final = 1000
_MOST_LISTED: Final = 10_000  # lines or batches of one answer, whatever was asked for
_MOST_BYTES: Final = 16 << 20  # of one answer
_STEP_BYTES: Final = 1 << 16
_TAIL: Final = 100
_STATES: Final = {
    "not_started": LaunchState.QUEUED,
    "starting": LaunchState.QUEUED,
    "idle": LaunchState.RUNNING,
    "busy": LaunchState.RUNNING,
    "running": LaunchState.RUNNING,
    "shutting_down": LaunchState.RUNNING,
    "success": LaunchState.ENDED,
    "dead": LaunchState.ENDED,
    "error": LaunchState.ENDED,
    "killed": LaunchState.ENDED,
}
# The rest, such as ``recovering``, is UNKNOWN: the server is about to find out itself.
_OUR_EXTRA: Final = frozenset({"job-root", "launcher"})
_REQUESTS: Final = {
    "allow_redirects": False,  # a login goes to no other server
    "check_response": False,
    "stream": True,
    "timeout": ANSWER_S,
}
_DENIED: Final = frozenset({http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN})
_HEADERS: Final = {"X-Requested-By": "spark-stream"}  # a server with CSRF protection asks for it


@dataclasses.dataclass(frozen=True, kw_only=True)
class LivyOptions:
    """Options of the launcher, as the operator's ``launcher_options`` has them.

    Attributes:
        entry_point: address of ``spark_stream_driver.py``, made by ``spark-stream package``, that
            the server and the cluster can read.
        runtime: the same of the zip.
        proxy_user: the user that the batch runs as; empty for the server's own choice.
        queue: of YARN; empty for the server's default.
    """

    entry_point: str = ""
    runtime: str = ""
    proxy_user: str = ""
    queue: str = ""

    def check(self) -> None:
        for name in ("entry_point", "runtime"):
            if not getattr(self, name):
                raise ConfigError(
                    f"livy: {name} is not given; put what 'spark-stream package' makes where the "
                    "cluster reads it, and give its address"
                )


class _MissingError(SubmissionRefusedError):
    """The server lacks the requested batch."""


@dataclasses.dataclass(frozen=True)
class _AppInfo:
    diagnostics: str | None = None


@dataclasses.dataclass(frozen=True)
class _Batch:
    id: NonNegative
    state: str
    name: str | None = None
    appInfo: _AppInfo | None = None  # noqa: N815 - Livy's name


@dataclasses.dataclass(frozen=True)
class _Page:
    total: NonNegative
    sessions: Annotated[tuple[_Batch, ...], at_most(_MOST_LISTED)]


_Log = TypedDict(
    "_Log", {"from": NonNegative, "log": Annotated[list[str], at_most(_MOST_LISTED)]}, total=False
)


class LivyLauncher:
    """Starts batches on a Livy server.

    Raises:
        ConfigError: the connection has no address of HTTP, or credentials in the address.
    """

    kind: ClassVar[str] = "livy"

    def __init__(self, options: LivyOptions, hook: LivyHook, clock: Clock | None = None) -> None:
        self._options, self._hook, self._clock = options, hook, clock or SystemClock()
        try:
            hook.get_conn()  # opens nothing: it computes the address
            location = urlsplit(hook.base_url)
            is_address = bool(location.hostname) and location.port != 0 and not location.username
            is_address = is_address and location.scheme in {"http", "https"}
        except ValueError:
            is_address = False
        if not is_address:
            shown = shown_address(hook.base_url)
            raise ConfigError(f"livy: {shown!r}: give an address such as http://HOST:8998")
        self._named = f"livy {hook.base_url}"

    def check(self) -> None:
        self._options.check()
        try:
            self._ask("GET", "batches", _Page, {"from": 0, "size": 1})
        except WrongAnswerError as error:
            raise SubmissionRefusedError(f"{error}; is it a Livy server?") from None

    def submit(self, application: Application, token: str) -> Handle:
        self._options.check()
        found = self._find(token)
        if found is None:
            try:
                made = self._ask("POST", "batches", _Batch, self._request(application, token))
            except SubmissionRefusedError:
                found = self._find(token)  # such as one that another process has just made
                if found is None:
                    raise
            else:
                found = made.id
        return Handle(
            driver_id=token, launcher=self.kind, id=str(found), location={"server": self._named}
        )

    def poll(self, handle: Handle) -> LaunchStatus:
        """Return how the batch is; why it has ended is in the last lines of its log."""
        try:
            batch = self._batch(handle)
            if batch is None:
                return LaunchStatus(LaunchState.GONE, None, f"{self._named} has no such batch")
            state = _STATES.get(batch.state, LaunchState.UNKNOWN)
            if state is not LaunchState.ENDED:
                diagnostics = (batch.appInfo and batch.appInfo.diagnostics) or ""
                return LaunchStatus(state, None, first_line(f"{batch.state} {diagnostics}"))
            lines = self._lines(handle, -1, _TAIL)[1]
        except (ConfigError, LauncherAwayError) as error:
            return LaunchStatus(LaunchState.UNKNOWN, None, str(error))
        code = 0 if batch.state == "success" else exit_code_in("\n".join(lines))
        return LaunchStatus(state, code, first_line(f"{batch.state} {reason_in(_saying(lines))}"))

    def end(self, handle: Handle) -> None:
        """Remove the batch, which ends its application, unless it has ended."""
        batch = self._batch(handle)
        if batch is None or _STATES.get(batch.state) is LaunchState.ENDED:
            return
        with contextlib.suppress(_MissingError):
            self._ask("DELETE", f"batches/{_number(handle)}", dict[str, Any])

    def log(self, handle: Handle, offset: int = 0) -> LogPart:
        """Return the batch's next log lines; the server keeps only the last ones."""
        if self._batch(handle) is None:
            return LogPart((), offset)
        begin, lines = self._lines(handle, offset, _PAGE)
        return LogPart(lines, max(offset, begin + len(lines)))

    def _request(self, application: Application, token: str) -> dict[str, Any]:
        options = self._options
        request: dict[str, Any] = {
            "name": _name(token),
            "file": options.entry_point,
            "args": list(application.arguments),
            "pyFiles": [options.runtime, *application.py_files],
            "conf": dict(application.conf),
        }
        named = {"proxyUser": options.proxy_user, "queue": options.queue}
        return {**request, **{name: value for name, value in named.items() if value}}

    def _find(self, token: str) -> int | None:
        return next((batch.id for batch in self._batches() if batch.name == _name(token)), None)

    def _batches(self) -> Iterator[_Batch]:
        """Yield the batches that existed at the first answer; a later one refuses the POST."""
        begin = total = 0
        for number in range(_MOST_PAGES):
            page = self._ask("GET", "batches", _Page, {"from": begin, "size": _PAGE})
            yield from page.sessions
            begin += len(page.sessions)
            total = total if number else page.total
            if not page.sessions or begin >= total:
                return
        raise WrongAnswerError(
            f"{self._named}: GET /batches: {total} batches, and {begin} in {_MOST_PAGES} answers"
        )

    def _batch(self, handle: Handle) -> _Batch | None:
        """Return the batch of the handle; None when it is not there, or another has its number."""
        if handle.location.get("server") != self._named:
            raise SubmissionRefusedError(
                f"{self._named}: batch {handle.id} is one of {handle.location.get('server')}"
            )
        try:
            found = self._ask("GET", f"batches/{_number(handle)}", _Batch)
        except _MissingError:
            return None
        return found if found.name == _name(handle.driver_id) else None

    def _lines(self, handle: Handle, begin: int, size: int) -> tuple[int, tuple[str, ...]]:
        path = f"batches/{_number(handle)}/log"
        try:
            found = self._ask("GET", path, _Log, {"from": begin, "size": size})
        except _MissingError:
            return begin, ()
        return found.get("from", begin), tuple(found.get("log", ()))

    def _ask(self, method: str, path: str, kind: type[T], data: Any = None) -> T:
        from urllib3.exceptions import HTTPError

        where = f"{self._named}: {method} {path}"
        try:
            status, text = self._send(method, path, data)
        except (OSError, HTTPError) as error:
            line = first_line(str(error) or type(error).__name__)
            raise LauncherAwayError(f"{self._named}: does not answer: {line}") from None
        if is_transient(status):
            raise LauncherAwayError(
                f"{self._named}: {method} answered {status}: {first_line(text)}"
            )
        if status in _DENIED:
            raise SubmissionRefusedError(
                f"{self._named}: answered {status}; correct the connection's login and password"
            )
        if not http.HTTPStatus.OK <= status < http.HTTPStatus.MULTIPLE_CHOICES:
            msg = f"{where} answered {status}: {first_line(text)}"
            is_missing = status == http.HTTPStatus.NOT_FOUND
            raise _MissingError(msg) if is_missing else SubmissionRefusedError(msg)
        try:
            answer = read_json(text, at_most_bytes=_MOST_BYTES)
        except ValueError as error:
            raise WrongAnswerError(f"{where}: the answer is not JSON: {error}") from None
        return answer_as(kind, answer, where=where)

    def _send(self, method: str, path: str, data: Any) -> tuple[int, str]:
        """Return status and text of an answer: bounded in time and in size."""
        content = json.dumps(data) if method == "POST" else data
        response = self._hook.run_method(path, method, data=content, headers=_HEADERS)
        due, found = self._clock.monotonic() + ANSWER_S, bytearray()
        with response:
            while step := response.raw.read1(_STEP_BYTES, decode_content=True):
                found += step
                if len(found) > _MOST_BYTES:
                    break
                if self._clock.monotonic() > due:
                    raise TimeoutError(
                        f"{len(found)} bytes of an answer within {ANSWER_S:.0f} s, and no end"
                    )
        return response.status_code, found.decode(errors="replace")


def _name(token: str) -> str:
    return f"spark-stream-{token}"


def _number(handle: Handle) -> int:
    """Return the batch's number, which becomes a part of a path."""
    if not handle.id.isdigit():
        raise SubmissionRefusedError(
            f"livy: batch {handle.id!r} is no number; the handle was not made by this launcher"
        )
    return int(handle.id)


def _saying(lines: tuple[str, ...]) -> tuple[str, ...]:
    """Return the lines without Livy's own headings, and without the exit code, which is said."""
    headings = ("stdout:", "stderr:", "YARN Diagnostics:")
    return tuple(
        line
        for line in lines
        if line.strip() not in headings and not line.startswith("spark-stream: exit code")
    )


class LivyKind:
    """See :class:`airflow_provider.hooks.api.LauncherKind`."""

    api_version = 1
    conn_types = ("livy", "http")
    options = LivyOptions
    is_experimental = False
    reads_local_paths = True

    def open(self, connection: Connection, options: Mapping[str, str], named: str) -> LivyLauncher:
        require_extra("the launcher 'livy'", "livy", "airflow.providers.apache.livy")
        if not connection.host:
            raise ConfigError(f"{named}: has no host; give that of the Livy server")
        return LivyLauncher(LivyOptions(**options), _hook(connection))


def _hook(connection: Connection) -> Any:
    """Return the provider's hook, which sends the extra as headers: so not with our part of it."""
    import attrs
    from airflow.providers.apache.livy.hooks.livy import LivyHook

    theirs = {k: v for k, v in connection.extra_dejson.items() if k not in _OUR_EXTRA}
    password = connection.password or ""  # requests would send "None"
    changed = attrs.evolve(connection, password=password, extra=json.dumps(theirs))
    hook = LivyHook(livy_conn_id=connection.conn_id, extra_options=_REQUESTS)
    hook.get_connection = lambda _conn_id: changed  # each request asks for it
    return hook


LIVY: Final = LivyKind()
