"""Launchers by their Airflow connections.

Triggers store the connection's id and no secret; each process looks the connection up by itself.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base.extensions import load_extension, names_in
from airflow_provider.runtime.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Connection

    from airflow_provider.hooks.api import LauncherKind
    from airflow_provider.runtime.api.launchers import Launcher

log = logging.getLogger(__name__)

SPARK_SUBMIT: Final = "spark-submit"
GROUP: Final = "spark_stream.launchers"
"""The group of entry points by which launchers are found."""


@dataclasses.dataclass(frozen=True)
class LauncherChoice:
    """A task's choice of a launcher; it contains no secret, and triggers store it.

    Attributes:
        kind: :data:`SPARK_SUBMIT`, or the name of an entry point of :data:`GROUP`.
        options: the launcher's; they win over those in the connection's extra, below ``launcher``.
    """

    kind: str
    conn_id: str
    options: Mapping[str, str]

    @classmethod
    def of(
        cls,
        launcher: str | None,
        conn_id: str,
        options: Mapping[str, Any] | None = None,
        *,
        warm: bool | None = None,
    ) -> LauncherChoice:
        """Return the choice that a task's arguments make.

        Args:
            launcher: the kind; None for the default, :data:`SPARK_SUBMIT`.
            conn_id: the launcher's connection.
            options: the launcher's options.
            warm: whether the task asks for a warm driver.

        Raises:
            ConfigError: there is no such kind, or it does not take an argument.
        """
        kind = launcher or SPARK_SUBMIT
        known = (SPARK_SUBMIT, *names_in(GROUP))
        if kind not in known:
            raise ConfigError(f"launcher {kind!r}: use one of {', '.join(map(repr, known))}")
        texts = _texts(kind, options or {}, "launcher_options")
        if warm and kind != SPARK_SUBMIT:
            raise ConfigError(f"warm: warm drivers are for {SPARK_SUBMIT}, and not for {kind}")
        return cls(kind, conn_id, texts)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "conn_id": self.conn_id, "options": dict(self.options)}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> LauncherChoice:
        return cls(raw["kind"], raw["conn_id"], raw["options"])

    def open(self) -> Launcher:
        """Return the launcher of an entry point, with its connection's address and credentials."""
        named = f"conn_id {self.conn_id!r}"
        connection, found = get_connection(self.conn_id), self.launcher_kind
        if connection.conn_type not in found.conn_types:
            types = " or ".join(map(repr, found.conn_types))
            wrong = f"{named}: is of type {connection.conn_type!r}"
            raise ConfigError(f"{wrong}; launcher {self.kind!r} needs {types}")
        own = connection.extra_dejson.get("launcher") or {}
        if not isinstance(own, dict):
            raise ConfigError(
                f"{named}: launcher in its extra is {own!r}; give an object of its options"
            )
        texts = _texts(self.kind, own, f"{named}: launcher in its extra")
        options = {**texts, **self.options}
        return found.open(connection, options, named)

    @property
    def launcher_kind(self) -> LauncherKind:
        return _kind(self.kind)


def _kind(name: str) -> LauncherKind:
    kind: LauncherKind = load_extension(GROUP, name)
    return kind


def refuse_other(connection: Connection, named: str) -> None:
    """Refuse the connection of another launcher where ``spark-submit`` was chosen."""
    if connection.conn_type == "spark":
        return
    if kinds := [name for name in names_in(GROUP) if connection.conn_type == _own_type(name)]:
        raise ConfigError(
            f"{named}: is of type {connection.conn_type!r}; give launcher={kinds[0]!r} for it"
        )


def _own_type(name: str) -> str | None:
    try:
        return _kind(name).conn_types[0]
    except ConfigError as error:  # a launcher that no task chose must not fail the others' tasks
        log.warning("%s", error)
        return None


def get_connection(conn_id: str) -> Connection:
    """Return a connection."""
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise ConfigError(
            f"conn_id {conn_id!r}: Airflow has no such connection; add one"
        ) from error


def _texts(kind: str, options: Mapping[str, Any], where: str) -> dict[str, str]:
    """Return the options as texts, or raise ConfigError for one that the launcher does not take."""
    if kind == SPARK_SUBMIT:
        if options:
            raise ConfigError(f"{where}: {SPARK_SUBMIT} takes none; name a launcher")
        return {}
    known = {each.name: each for each in dataclasses.fields(_kind(kind).options)}
    texts = {}
    for name, value in options.items():
        takes_mapping = name in known and known[name].metadata.get("mapping", False)
        try:
            text = json.dumps(value) if takes_mapping and isinstance(value, dict) else value
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{where}: {name}: is no JSON: {error}") from None
        if name not in known or not isinstance(text, str):
            raise ConfigError(
                f"{where}: {name}={value!r}: {kind} takes texts, of {', '.join(known)}"
            )
        texts[name] = text
    return texts
