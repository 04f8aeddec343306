"""Applications on YARN, through the REST API of its ResourceManagers.

``spark-submit`` tags an application with the token of its submission, by which it is found before
its driver has written anything. Of several ResourceManagers one is active: a standby answers with a
redirection, which is not followed, and the next one is asked. A client ends only what has the tag.
"""

from __future__ import annotations

import dataclasses
import getpass
import http
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from airflow_provider.runtime.api.launchers import Handle, LaunchState, LaunchStatus
from airflow_provider.runtime.base.clock import Clock, SystemClock
from airflow_provider.runtime.base.service_answers import (
    ANSWER_S,
    answer_as,
    exit_code_in,
    is_transient,
)
from airflow_provider.runtime.base.typed_json import NonNegative, at_most, read_json
from airflow_provider.runtime.errors import (
    ConfigError,
    LauncherAwayError,
    SubmissionRefusedError,
    WrongAnswerError,
)
from airflow_provider.runtime.errors.explanation import first_line
from airflow_provider.runtime.errors.redaction import shown_address

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

T = TypeVar("T")

YARN: Final = "yarn"
"""The launcher's name in the handles of drivers on YARN."""
ADDRESS: Final = "yarn_resourcemanager_webapp_address"
"""The field of a Spark connection's extra, as the apache-spark provider has it."""
_FOLDERS: Final = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")  # as Spark's classpath has them
_REFERENCE: Final = re.compile(r"\$\{([^}]+)\}")
_DEEPEST: Final = 20  # references in values that references give, as Hadoop limits them
_APPLICATION: Final = re.compile(r"application_\d+_\d+")
_MOST_LISTED: Final = 1000
_MOST_BYTES: Final = 4 << 20  # of one answer
_STEP_BYTES: Final = 1 << 16
_CONNECT_S: Final = 5.0  # a machine that is down must leave time for the other one
_STATES: Final = {
    "NEW": LaunchState.QUEUED,
    "NEW_SAVING": LaunchState.QUEUED,
    "SUBMITTED": LaunchState.QUEUED,
    "ACCEPTED": LaunchState.QUEUED,
    "RUNNING": LaunchState.RUNNING,
    "FINISHED": LaunchState.ENDED,
    "FAILED": LaunchState.ENDED,
    "KILLED": LaunchState.ENDED,
}
_HEADERS: Final = {
    "Accept": "application/json",
    "Content-Type": "application/json",
    "X-XSRF-Header": "spark-stream",  # a ResourceManager with CSRF protection asks for it
}
_LOGIN: Final = (
    "set HADOOP_USER_NAME to a user who may see and end the application, or, for Kerberos, install "
    "requests-kerberos and keep a ticket"
)
_DENIED: Final = frozenset({http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN})


@dataclasses.dataclass(frozen=True)
class _App:
    id: str
    state: str
    finalStatus: str = ""  # noqa: N815 - YARN's names
    applicationTags: str | None = None  # noqa: N815
    diagnostics: str | None = None
    startedTime: NonNegative = 0  # noqa: N815

    @property
    def launch_state(self) -> LaunchState:
        return _STATES.get(self.state, LaunchState.UNKNOWN)

    @property
    def is_over(self) -> bool:
        return self.launch_state is LaunchState.ENDED


@dataclasses.dataclass(frozen=True)
class _Apps:
    app: Annotated[tuple[_App, ...], at_most(_MOST_LISTED)] = ()


@dataclasses.dataclass(frozen=True)
class _AppsAnswer:
    apps: _Apps | None = None


def yarn_tag(token: str) -> str:
    """Return the tag of the application that a submission's token has."""
    return f"spark-stream-{token}"


def yarn_handle(token: str) -> Handle:
    """Return the handle of a driver that ``spark-submit`` gives to YARN."""
    return Handle(driver_id=token, launcher=YARN, id=yarn_tag(token))


def resource_managers(
    extra: Mapping[str, Any], environ: Mapping[str, str], *, named: str
) -> tuple[str, ...]:
    """Return the addresses of the ResourceManagers; none if they are not known here.

    Args:
        extra: the Spark connection's; :data:`ADDRESS` wins, with commas between several.
        environ: says where ``yarn-site.xml`` is.
        named: the connection, for messages.

    Raises:
        ConfigError: an address or the file is wrong.
    """
    given = extra.get(ADDRESS)
    if given:
        parts = [part.strip() for part in str(given).split(",")]
        return tuple(_address(part, f"{named}: {ADDRESS} in its extra") for part in parts if part)
    folders = [Path(environ[name]) for name in _FOLDERS if environ.get(name)]
    site = next((f for each in folders if (f := each / "yarn-site.xml").is_file()), None)
    if site is None:
        return ()
    properties = _properties(site)
    is_secure = properties.get("yarn.http.policy") == "HTTPS_ONLY"
    ids = [each.strip() for each in properties.get("yarn.resourcemanager.ha.rm-ids", "").split(",")]
    is_several = properties.get("yarn.resourcemanager.ha.enabled", "").strip() == "true"
    suffixes = [f".{each}" for each in ids if each] if is_several else [""]
    found = [_configured(properties, suffix, is_secure=is_secure) for suffix in suffixes]
    return tuple(_address(each, str(site)) for each in found if each)


def _configured(properties: Mapping[str, str], suffix: str, *, is_secure: bool) -> str:
    """Return the address in ``yarn-site.xml`` of one ResourceManager; empty for none."""
    kind, port, scheme = ("https.", 8090, "https") if is_secure else ("", 8088, "http")
    web = _value(properties, f"yarn.resourcemanager.webapp.{kind}address{suffix}")
    host = _value(properties, f"yarn.resourcemanager.hostname{suffix}")
    if not web and not host:
        return ""
    return f"{scheme}://{web or f'{host}:{port}'}"


def _properties(site: Path) -> dict[str, str]:
    import xml.etree.ElementTree as ET  # as a worker seldom needs it

    try:
        root = ET.parse(site).getroot()  # noqa: S314 - as Hadoop's own clients read it
    except (ET.ParseError, OSError) as error:
        raise ConfigError(f"{site}: cannot be read: {first_line(str(error))}") from error
    pairs = ((each.findtext("name"), each.findtext("value")) for each in root.iter("property"))
    return {name.strip(): (value or "").strip() for name, value in pairs if name}


def _value(properties: Mapping[str, str], name: str) -> str:
    value = properties.get(name, "")
    for _ in range(_DEEPEST):
        if (reference := _REFERENCE.search(value)) is None:
            return value
        known = properties.get(reference[1])
        if known is None:
            return ""
        value = f"{value[: reference.start()]}{known}{value[reference.end() :]}"
    return ""


def _address(text: str, where: str) -> str:
    address = (text if "://" in text else f"http://{text}").rstrip("/")
    try:
        found = urlsplit(address)
        is_address = found.scheme in {"http", "https"} and bool(found.hostname)
        is_address = is_address and found.port != 0 and not found.username and not found.query
    except ValueError:
        is_address = False
    if not is_address:
        raise ConfigError(
            f"{where}: {shown_address(text)!r} is no address of a ResourceManager; write "
            "http://HOST:8088, and several with commas between them"
        )
    return address


def user_name(environ: Mapping[str, str]) -> str:
    """Return the user that Hadoop's own clients would be without Kerberos; empty if unknown."""
    try:
        return environ.get("HADOOP_USER_NAME") or getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return ""


class YarnClient:
    """Polls and ends applications; see :class:`.ClusterClient`.

    With the package ``requests-kerberos`` it answers a challenge of Kerberos with the ticket cache.

    Args:
        addresses: of the ResourceManagers, at least one.
        user: the user that asks, where YARN believes a name; empty for none.
    """

    def __init__(self, addresses: Sequence[str], user: str, clock: Clock | None = None) -> None:
        self._addresses, self._user = tuple(addresses), user
        self._clock = clock or SystemClock()

    def check(self, handle: Handle) -> str:
        """Return a line if a ResourceManager answers, whether it has the application or not.

        Raises:
            ConfigError: it refuses.
            LauncherAwayError: none answers.
        """
        self._tagged(yarn_tag(handle.driver_id))
        return f"the ResourceManager at {' or '.join(self._addresses)} answers"

    def poll(self, handle: Handle) -> LaunchStatus:
        """Return the status of the application; ``GONE`` also before it was submitted."""
        try:
            apps = self._tagged(yarn_tag(handle.driver_id))
        except (ConfigError, LauncherAwayError) as error:
            return LaunchStatus(LaunchState.UNKNOWN, None, str(error))
        if not apps:
            reason = f"YARN has no application with the tag {yarn_tag(handle.driver_id)}"
            return LaunchStatus(LaunchState.GONE, None, reason)
        # More than one, if spark-submit was started again: the one that lives, else the last one.
        app = max(apps, key=lambda each: (not each.is_over, each.startedTime, each.id))
        code = exit_code_in(app.diagnostics or "") if app.is_over else None
        if app.state == "FINISHED" and app.finalStatus == "SUCCEEDED":
            code = 0
        reason = first_line(f"{app.id} {app.state} {app.diagnostics or ''}")
        return LaunchStatus(app.launch_state, code, reason)

    def end(self, handle: Handle) -> None:
        """Kill the application, if it was submitted and has not ended. Idempotent."""
        for app in self._tagged(yarn_tag(handle.driver_id)):
            if not app.is_over:
                path = f"apps/{quote(app.id, safe='')}/state"
                self._ask("PUT", path, {}, dict[str, Any], {"state": "KILLED"})

    def _tagged(self, tag: str) -> list[_App]:
        answer = self._ask("GET", "apps", {"applicationTags": tag}, _AppsAnswer)
        listed = answer.apps.app if answer.apps is not None else ()
        # Whatever the answer has: nothing else is ours.
        ours = [app for app in listed if tag in (app.applicationTags or "").split(",")]
        if wrong := [app.id for app in ours if not _APPLICATION.fullmatch(app.id)]:
            raise WrongAnswerError(f"yarn: {first_line(wrong[0])!r} is no application's id")
        return ours

    def _ask(
        self, method: str, path: str, query: Mapping[str, str], kind: type[T], body: Any = None
    ) -> T:
        """Return the answer of the active ResourceManager."""
        away: list[str] = []
        for address in self._addresses:
            try:
                text = self._text(address, method, f"/ws/v1/cluster/{path}", query, body)
                return _read(kind, text, f"yarn {address}: {method} {path}")
            except LauncherAwayError as error:
                away.append(str(error))
        raise LauncherAwayError("; ".join(away))

    def _text(
        self, address: str, method: str, path: str, query: Mapping[str, str], body: Any
    ) -> str:
        try:
            status, text = self._send(method, f"{address}{path}", query, body)
        except OSError as error:
            line = first_line(str(error) or type(error).__name__)
            raise LauncherAwayError(f"yarn {address}: does not answer: {line}") from None
        said = f"yarn {address}: {method} {path} answered {status}: {first_line(text)}"
        if is_transient(status) or _is_redirection(status):
            raise LauncherAwayError(said)
        if status in _DENIED:
            raise SubmissionRefusedError(f"{said}; {_LOGIN}")
        if status >= http.HTTPStatus.BAD_REQUEST:
            raise SubmissionRefusedError(said)
        return text

    def _send(self, method: str, url: str, query: Mapping[str, str], body: Any) -> tuple[int, str]:
        """Return status and text of an answer: bounded in time and in size."""
        import requests
        from urllib3.exceptions import HTTPError

        named = {"user.name": self._user} if self._user else {}
        response = requests.request(
            method,
            f"{url}?{urlencode({**query, **named})}",
            data=json.dumps(body) if body is not None else None,
            headers=_HEADERS,
            auth=_kerberos(),
            timeout=(_CONNECT_S, ANSWER_S),
            allow_redirects=False,  # a ticket goes to no other server
            stream=True,
        )
        if _is_redirection(response.status_code):
            return response.status_code, response.text  # which requests has read
        due, found = self._clock.monotonic() + ANSWER_S, bytearray()
        with response:
            try:
                while step := response.raw.read1(_STEP_BYTES, decode_content=True):
                    found += step
                    if len(found) > _MOST_BYTES or self._clock.monotonic() > due:
                        raise TimeoutError(f"{len(found)} bytes of an answer, and no end")
            except HTTPError as error:
                raise ConnectionError(str(error)) from error
        return response.status_code, found.decode(errors="replace")


def _kerberos() -> Any:
    try:
        from requests_kerberos import OPTIONAL, HTTPKerberosAuth
    except ImportError:
        return None
    return HTTPKerberosAuth(mutual_authentication=OPTIONAL)


def _is_redirection(status: int) -> bool:
    """Whether a ResourceManager in standby answers, or a gateway that asks for a login."""
    return http.HTTPStatus.MULTIPLE_CHOICES <= status < http.HTTPStatus.BAD_REQUEST


def _read(kind: type[T], text: str, where: str) -> T:
    try:
        answer = read_json(text, at_most_bytes=_MOST_BYTES)
    except ValueError as error:
        raise WrongAnswerError(
            f"{where}: the answer is not JSON: {first_line(str(error))}"
        ) from None
    apps = answer.get("apps") if isinstance(answer, dict) else None
    if isinstance(apps, dict) and isinstance(apps.get("app"), dict):
        apps["app"] = [apps["app"]]  # some writers of JSON leave out the list of one
    return answer_as(kind, answer, where=where)
