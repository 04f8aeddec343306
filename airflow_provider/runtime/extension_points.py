"""Entry points: what other packages add, and what this one adds in the same way.

A zip on a cluster has none, for it has no metadata of packages; what a driver loads by name stands
in :mod:`.known_extensions`.
"""

from __future__ import annotations

import functools
import importlib.metadata
from typing import Any

from airflow_provider.runtime.api import VERSION
from airflow_provider.runtime.errors import ConfigError


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
    named = f"{group}: {name!r} ({entry_point.value})"
    try:
        extension = entry_point.load()
    except Exception as error:  # the package is not ours: importing it may raise anything
        msg = f"{named} cannot be imported: {type(error).__name__}: {error}"
        raise ConfigError(msg) from error
    written_for = getattr(extension, "api_version", "none")
    if written_for != VERSION:
        msg = (
            f"{named} was written for version {written_for} of the interface, and this package "
            f"has version {VERSION}; install a version that fits"
        )
        raise ConfigError(msg)
    return extension
