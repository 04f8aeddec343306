"""``spark-stream package``: the files from which a cluster starts drivers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.errors import EXIT_OK, ConfigError
from airflow_provider.runtime.runtime_zip import is_packed, write_package

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable


def add_commands(commands: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command.

    Args:
        commands: ``spark-stream``'s own.
        add: makes one command: where, its name, what it calls, what it does.
    """
    package = add(
        commands,
        "package",
        _package,
        "write the runtime's zip and the application, for a cluster's own storage",
    )
    package.add_argument("out", metavar="OUT.zip", type=Path)
    package.add_argument(
        "--force", action="store_true", help="replace files that this command has not made, too"
    )


def _package(arguments: argparse.Namespace) -> int:
    if is_packed():
        msg = "this is the zip itself; give the command where the package is installed"
        raise ConfigError(msg)
    package = write_package(arguments.out, replaces=arguments.force)
    for what, path in (("runtime", package.runtime), ("entry_point", package.application)):
        print(f"{what}: {path}, {path.stat().st_size:,} bytes")
    print(f"sha256 of the runtime's files: {package.digest}")
    return EXIT_OK
