"""Parser of command lines: what is mistyped is said in one line, with what may be meant."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from typing import TYPE_CHECKING, Any, Final, NoReturn

from airflow_provider.runtime.errors import ConfigError, CorruptDocumentError
from airflow_provider.runtime.jobdir.upgrade_record import directory_in_force

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


_REQUIRED: Final = "required"
_CHOICE: Final = re.compile(r"invalid choice: '?(?P<given>.*?)'? \(choose from (?P<known>.*)\)")


class CommandParser(argparse.ArgumentParser):
    """Parses a command; its commands are of the same kind.

    argparse's own prints every option before it says what is wrong, and takes any beginning of an
    option's name, which means something else as soon as another option begins like that.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "allow_abbrev": False})
        self._given: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does it; what is given is kept for what is said of it."""
        self._given = args or ()
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Refuse a command line.

        A required argument is usually missing because its name is mistyped.

        Raises:
            ConfigError: in one line, with the way to the command's help.
        """
        if _REQUIRED in message:
            given, self._given = self._given, ()
            self.refuse_unknown(each for each in given if self._is_unknown_option(each))
        said = _with_meant(message)
        joint = " " if said.endswith("?") else "; "
        msg = f"{said}{joint}{self.prog} --help shows what there is"
        raise ConfigError(msg)

    def _is_unknown_option(self, text: str) -> bool:
        return text.startswith("--") and text.partition("=")[0] not in self._option_string_actions

    def refuse_unknown(self, unknown: Iterable[str]) -> None:
        """Refuse the arguments that the command has not taken.

        Raises:
            ConfigError: there is one; the message names the first.
        """
        first = next(iter(unknown), None)
        if first is None:
            return
        if not first.startswith("-"):
            self.error(f"{first!r} is one argument too many")
        name = first.partition("=")[0]
        self.error(f"there is no option {name}{_meant(name, self._option_string_actions)}")


def _with_meant(message: str) -> str:
    """Return argparse's message; of many choices only the nearest one, if there is one."""
    found = _CHOICE.search(message)
    if found is None:
        return message
    meant = _meant(found["given"], re.findall(r"[\w-]+", found["known"]))
    return f"{message[: found.start()]}there is no {found['given']!r}{meant}" if meant else message


def _meant(given: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(given, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


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
        only_reads: show the directory itself if the record of an upgrade is damaged; any other
            command is refused then.
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
