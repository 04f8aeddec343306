"""The version of a job that JOB_DIR means in a command: the one in force, or the one named."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.errors import CorruptDocumentError
from airflow_provider.runtime.jobdir.upgrade_record import directory_in_force

if TYPE_CHECKING:
    import argparse


def add_job_dir(
    command: argparse.ArgumentParser,
    name: str = "job_dir",
    *,
    only_reads: bool = False,
    **argument: Any,
) -> None:
    """Add the address of a job to a command, which is then about the version in force.

    Args:
        command: the command.
        name: the argument's.
        only_reads: whether the command shows the directory itself where the record of an upgrade is
            damaged; any other command is refused then.
        argument: argparse's own, over ``metavar="JOB_DIR"``.
    """
    command.add_argument(name, **{"metavar": "JOB_DIR", **argument})
    text = "the version in this directory, though an accepted upgrade has led to another one"
    command.add_argument("--this-version", action="store_true", help=text)
    command.set_defaults(addressed=name, only_reads=only_reads)


def follow_upgrades(arguments: argparse.Namespace) -> None:
    """Replace the address on the command line by that of the version in force, and say so."""
    name = getattr(arguments, "addressed", None)
    given = getattr(arguments, name) if name is not None else None
    if name is None or given is None or arguments.this_version:
        return
    try:
        found = directory_in_force(given, run_id=getattr(arguments, "run_id", None))
    except PermissionError:  # the command itself says what cannot be read
        return
    except CorruptDocumentError as error:
        if not arguments.only_reads:
            raise
        print(f"{error}; this command is about {given} itself", file=sys.stderr)
        return
    if found != given:
        print(
            f"{given}: upgrades have led to {found}, and this command is about that version; "
            "give --this-version for the directory itself",
            file=sys.stderr,
        )
        setattr(arguments, name, found)
