"""The kind ``livy``: a launcher by an Airflow connection of type ``livy`` or ``http``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_provider.extensions.livy.launcher import LivyLauncher, LivyOptions
from airflow_provider.runtime.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Connection


class LivyKind:
    """See :class:`airflow_provider.hooks.api.LauncherKind`."""

    api_version = 1
    conn_types = ("livy", "http")
    options = LivyOptions
    is_experimental = True
    reads_local_paths = True

    def open(self, connection: Connection, options: Mapping[str, str], named: str) -> LivyLauncher:
        """Return the launcher at the connection's address."""
        host = connection.host or ""
        if not host:
            msg = f"{named}: has no host; give that of the Livy server"
            raise ConfigError(msg)
        port = f":{connection.port}" if connection.port else ""
        url = host if "://" in host else f"{connection.schema or 'http'}://{host}{port}"
        return LivyLauncher(
            LivyOptions(**options), url, user=connection.login, password=connection.password
        )


LIVY: Final = LivyKind()
