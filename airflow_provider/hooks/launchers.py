"""Launchers by their Airflow connections: which one a task has chosen, and its credentials.

Only the connection's id and what is no secret travel to triggers; each process looks the connection
up by itself.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.emr_serverless.launcher import (
    EmrOptions,
    EmrServerlessLauncher,
)
from airflow_provider.extensions.livy.launcher import LivyLauncher, LivyOptions
from airflow_provider.runtime.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Connection

    from airflow_provider.runtime.control.launchers.protocol import Launcher

SPARK_SUBMIT: Final = "spark-submit"
_OPTIONS: Final[dict[str, type[EmrOptions | LivyOptions]]] = {
    EmrServerlessLauncher.kind: EmrOptions,
    LivyLauncher.kind: LivyOptions,
}
KINDS: Final = (SPARK_SUBMIT, *_OPTIONS)
_TYPES: Final = {EmrServerlessLauncher.kind: ("aws",), LivyLauncher.kind: ("livy", "http")}
# Of the Amazon provider's connection: what makes other credentials than the keys it has.
_NOT_TAKEN: Final = (
    *("assume_role_method", "assume_role_kwargs", "config_kwargs", "external_id"),
    *("role_arn", "session_kwargs", "verify"),
)


@dataclasses.dataclass(frozen=True)
class LauncherChoice:
    """What a task says of its launcher; without a secret.

    Attributes:
        kind: one of :data:`KINDS`, but for ``spark-submit``.
        conn_id: the connection with the address and the credentials.
        options: of the launcher, over those in the connection's extra, below ``launcher``.
    """

    kind: str
    conn_id: str
    options: Mapping[str, str]

    @classmethod
    def of(
        cls, launcher: str | None, conn_id: str, options: Mapping[str, str] | None
    ) -> LauncherChoice | None:
        """Return what was chosen; None for ``spark-submit``.

        Raises:
            ConfigError: there is no such launcher, or it has no such option.
        """
        kind = launcher or SPARK_SUBMIT
        if kind not in KINDS:
            msg = f"launcher {kind!r}: use one of {', '.join(map(repr, KINDS))}"
            raise ConfigError(msg)
        if kind == SPARK_SUBMIT:
            if options:
                msg = f"launcher_options: {SPARK_SUBMIT} takes none; name a launcher"
                raise ConfigError(msg)
            return None
        _check_names(kind, options or {}, "launcher_options")
        return cls(kind, conn_id, dict(options or {}))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, for a trigger."""
        return {"kind": self.kind, "conn_id": self.conn_id, "options": dict(self.options)}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> LauncherChoice:
        """Return what :meth:`to_dict` has written."""
        return cls(raw["kind"], raw["conn_id"], raw["options"])

    def open(self) -> Launcher:
        """Return the launcher, with the connection's address and credentials.

        Raises:
            ConfigError: there is no such connection, or it is not as the launcher needs it.
        """
        named = f"conn_id {self.conn_id!r}"
        connection = get_connection(self.conn_id)
        if connection.conn_type not in _TYPES[self.kind]:
            types = " or ".join(map(repr, _TYPES[self.kind]))
            found = f"is of type {connection.conn_type!r}"
            msg = f"{named}: {found}; launcher {self.kind!r} needs {types}"
            raise ConfigError(msg)
        own = connection.extra_dejson.get("launcher") or {}
        if not isinstance(own, dict):
            msg = f"{named}: launcher in its extra is {own!r}; give an object of its options"
            raise ConfigError(msg)
        _check_names(self.kind, own, f"{named}: launcher in its extra")
        options = {**own, **self.options}
        if self.kind == LivyLauncher.kind:
            return _open_livy(connection, LivyOptions(**options), named)
        if not options.get("application_id"):
            msg = f"launcher {self.kind!r}: application_id is not given; see launcher_options"
            raise ConfigError(msg)
        return _open_emr(connection, EmrOptions(**options), named)


def refuse_other(connection: Connection, named: str) -> None:
    """Refuse the connection of another launcher where ``spark-submit`` was chosen.

    Raises:
        ConfigError: the message names the launcher.
    """
    kinds = [kind for kind, types in _TYPES.items() if connection.conn_type == types[0]]
    if kinds:
        msg = f"{named}: is of type {connection.conn_type!r}; give launcher={kinds[0]!r} for it"
        raise ConfigError(msg)


def get_connection(conn_id: str) -> Connection:
    """Return a connection.

    Raises:
        ConfigError: Airflow has none of that id.
    """
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        msg = f"conn_id {conn_id!r}: Airflow has no such connection; add one"
        raise ConfigError(msg) from error


def _check_names(kind: str, options: Mapping[str, Any], where: str) -> None:
    known = [each.name for each in dataclasses.fields(_OPTIONS[kind])]
    for name, value in options.items():
        if name not in known or not isinstance(value, str):
            msg = f"{where}: {name}={value!r}: {kind} takes texts, of {', '.join(known)}"
            raise ConfigError(msg)


def _open_livy(connection: Connection, options: LivyOptions, named: str) -> Launcher:
    host = connection.host or ""
    if not host:
        msg = f"{named}: has no host; give that of the Livy server"
        raise ConfigError(msg)
    port = f":{connection.port}" if connection.port else ""
    url = host if "://" in host else f"{connection.schema or 'http'}://{host}{port}"
    return LivyLauncher(options, url, user=connection.login, password=connection.password)


def _open_emr(connection: Connection, options: EmrOptions, named: str) -> Launcher:
    from airflow.sdk.log import mask_secret

    extra = connection.extra_dejson
    other = next((name for name in _NOT_TAKEN if extra.get(name)), None)
    if other is not None:
        msg = (
            f"{named}: its extra has {other!r}, which is not taken; give keys, a profile_name, or "
            "nothing, for the role of the machine"
        )
        raise ConfigError(msg)
    session = {
        "aws_access_key_id": connection.login or extra.get("aws_access_key_id"),
        "aws_secret_access_key": connection.password or extra.get("aws_secret_access_key"),
        "aws_session_token": extra.get("aws_session_token"),
        "region_name": extra.get("region_name"),
        "profile_name": extra.get("profile_name"),
    }
    for name in ("aws_secret_access_key", "aws_session_token"):
        if session[name]:
            mask_secret(session[name])
    services = extra.get("service_config") or {}
    everywhere = extra.get("endpoint_url")
    return EmrServerlessLauncher(
        options,
        session={name: value for name, value in session.items() if value},
        endpoint=(services.get("emr-serverless") or {}).get("endpoint_url") or everywhere,
        s3_endpoint=(services.get("s3") or {}).get("endpoint_url") or everywhere,
    )
