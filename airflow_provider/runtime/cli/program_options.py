"""``--script`` and ``--sql`` of ``run`` and ``check``: other ways to name a job."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.entry_point import is_program
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.run_options import with_arguments

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

_COMMANDS: Final = ("run", "check")
_KINDS: Final = {"script": ".py", "sql": ".sql"}


def add_programs(jobs: argparse._MutuallyExclusiveGroup) -> None:
    """Add them to the ways to name a job; what follows ``--`` is the script's command line."""
    for flag, text in {
        "script": "instead of --entry: a plain PySpark script; its arguments follow --",
        "sql": "instead of --entry: a file of SQL; :NAME in it is --param NAME=…, '${NAME}' a path",
    }.items():
        jobs.add_argument(f"--{flag}", help=text, default=None, metavar=f"FILE{_KINDS[flag]}")


def split_arguments(argv: list[str]) -> tuple[list[str], list[str] | None]:
    """Return a command's own arguments and those of its script; None where none are given."""
    if not argv or argv[0] not in _COMMANDS or "--" not in argv:
        return argv, None
    at = argv.index("--")
    return argv[:at], argv[at + 1 :]


def not_of_a_script(arguments: argparse.Namespace, unknown: Sequence[str]) -> Sequence[str]:
    """Return what a command does not know, unless it has a script: then it is mostly that one's.

    Raises:
        ConfigError: it has one; the message has the way to give it its own.
    """
    if unknown and getattr(arguments, "script", None):
        given = shlex.join(unknown)
        msg = f"{given} is no option of the command; what is the script's follows --: … -- {given}"
        raise ConfigError(msg)
    return unknown


def named_program(arguments: argparse.Namespace) -> argparse.Namespace:
    """Return the arguments with the program as the job's entry, and its command line as parameter.

    Raises:
        ConfigError: the file is not of that kind, only a script has a command line, or --entry
            names a program.
    """
    entry = getattr(arguments, "entry", None)
    if entry is not None and is_program(entry):
        flag = next(flag for flag, suffix in _KINDS.items() if entry.endswith(suffix))
        function = f"{entry}:FUNCTION, or " if flag == "script" else ""
        msg = f"--entry {entry} names no function; write {function}--{flag} {entry}"
        raise ConfigError(msg)
    named = {flag: getattr(arguments, flag) for flag in _KINDS if getattr(arguments, flag)}
    for flag, file in named.items():
        if not file.endswith(_KINDS[flag]):
            msg = f"--{flag} {file}: name a file that ends with {_KINDS[flag]}"
            raise ConfigError(msg)
        arguments.entry = file
    if arguments.script_args is not None:
        if "script" not in named:
            msg = "what follows -- is the command line of a script; give --script FILE.py"
            raise ConfigError(msg)
        arguments.params = [
            *getattr(arguments, "params", []),
            with_arguments(arguments.script_args),
        ]
    return arguments
