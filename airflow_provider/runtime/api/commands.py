"""The published interface of commands: what a package adds to ``spark-stream``.

A command is a module, named as an entry point of the group ``spark_stream.commands``; the entry
point's name is the command's. ``airflow spark-stream`` has the same commands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

COMMANDS: Final = "spark_stream.commands"
"""The group of entry points."""


class CommandModule(Protocol):
    """A module with one command, which may have commands of its own.

    Attributes:
        api_version: the version of the interface that it was written for.
    """

    api_version: int

    def add_commands(self, commands: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
        """Add the command's parser.

        Args:
            commands: the commands of ``spark-stream``, as argparse has them.
            add: ``add(commands, name, run, help)`` makes a parser and returns it. ``run`` gets the
                parsed arguments and returns the exit code; an error of
                :mod:`airflow_provider.runtime.api.errors` that it raises is shown as any other.
        """
