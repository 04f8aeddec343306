"""The published interface of the Airflow side: launchers, also those that other packages bring.

A package names its kind of launcher as an entry point of the group ``spark_streams.launchers`` in
its ``pyproject.toml``; those of this package are named in the same way. The name of the entry point
is the launcher's, as in ``launcher="livy"``.
"""

from __future__ import annotations

import functools
import importlib.metadata
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from airflow_provider.runtime.api import VERSION
from airflow_provider.runtime.errors import ConfigError

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


@functools.cache
def _entry_points(group: str) -> dict[str, importlib.metadata.EntryPoint]:
    return {each.name: each for each in importlib.metadata.entry_points(group=group)}


def names_in(group: str) -> tuple[str, ...]:
    """Return the names of a group's entry points, in order; nothing is imported."""
    return tuple(sorted(_entry_points(group)))


@functools.cache
def load_extension(group: str, name: str) -> Any:
    """Return the object of an entry point.

    Raises:
        ConfigError: it cannot be imported, or was written for another version of the interface.
    """
    entry_point = _entry_points(group)[name]
    try:
        found = entry_point.load()
    except (ImportError, AttributeError) as error:
        msg = f"{group}: {name!r} ({entry_point.value}) cannot be imported: {error}"
        raise ConfigError(msg) from error
    if getattr(found, "api_version", None) != VERSION:
        written = getattr(found, "api_version", "none")
        msg = (
            f"{group}: {name!r} ({entry_point.value}) was written for version {written} of the "
            f"interface, and this package has version {VERSION}; install a version that fits"
        )
        raise ConfigError(msg)
    return found
