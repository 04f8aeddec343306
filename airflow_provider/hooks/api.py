"""The published interface of the Airflow side: launchers, also those that other packages bring.

A package names its kind of launcher as an entry point of the group ``spark_streams.launchers`` in
its ``pyproject.toml``; those of this package are named in the same way. The name of the entry point
is the launcher's, as in ``launcher="livy"``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Connection

    from airflow_provider.runtime.control.launchers.protocol import Launcher


@runtime_checkable
class LauncherKind(Protocol):
    """A kind of launcher: its connection, its options, and how a launcher is made of them.

    Attributes:
        api_version: the version of this interface that it was written for.
        conn_types: the types of connections that it takes; the first one is its own.
        options: a dataclass; each field is an option of ``launcher_options`` and a text.
        is_experimental: whether it was never run against the real service.
        reads_local_paths: whether its drivers may reach a job directory on a mounted filesystem.
    """

    api_version: int
    conn_types: tuple[str, ...]
    options: type
    is_experimental: bool
    reads_local_paths: bool

    def open(self, connection: Connection, options: Mapping[str, str], named: str) -> Launcher:
        """Return the launcher with the connection's address and credentials.

        Args:
            connection: one of :attr:`conn_types`.
            options: of the launcher, by name; all names are known.
            named: the connection's id, for messages.

        Raises:
            ConfigError: the connection or an option is not as the launcher needs it.
        """
