"""Parser of command lines: options of requests, errors in one line, examples."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import difflib
import json
import re
import shlex
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from airflow_provider.runtime.base.clock import to_iso
from airflow_provider.runtime.entry_point import is_program
from airflow_provider.runtime.errors import ConfigError, CorruptDocumentError
from airflow_provider.runtime.jobdir.run_options import options_of
from airflow_provider.runtime.jobdir.run_spec import with_arguments

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from airflow_provider.runtime.jobdir.run_spec import DriverSpec


_REQUIRED: Final = "required"
_CHOICE: Final = re.compile(r"invalid choice: '?(?P<given>.*?)'? \(choose from (?P<known>.*)\)")


class CommandParser(argparse.ArgumentParser):
    """Parses a command; its commands are of the same kind.

    Unlike argparse, it prints errors without usage, and refuses abbreviated options.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "allow_abbrev": False})
        self._given: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does it; the arguments are kept for the error."""
        self._given = args or ()
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        if _REQUIRED in message:
            given, self._given = self._given, ()
            self.refuse_unknown(each for each in given if self._is_unknown_option(each))
        said = _with_meant(message)
        joint = " " if said.endswith("?") else "; "
        raise ConfigError(f"{said}{joint}{self.prog} --help shows what there is")

    def _is_unknown_option(self, text: str) -> bool:
        return text.startswith("--") and text.partition("=")[0] not in self._option_string_actions

    def refuse_unknown(self, unknown: Iterable[str]) -> None:
        """Refuse the arguments that the command has not taken; the message names the first."""
        first = next(iter(unknown), None)
        if first is None:
            return
        if not first.startswith("-"):
            self.error(f"{first!r} is one argument too many")
        name = first.partition("=")[0]
        self.error(f"there is no option {name}{_meant(name, self._option_string_actions)}")


def _with_meant(message: str) -> str:
    found = _CHOICE.search(message)
    if found is None:
        return message
    meant = _meant(found["given"], re.findall(r"[\w-]+", found["known"]))
    return f"{message[: found.start()]}there is no {found['given']!r}{meant}" if meant else message


def _meant(given: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(given, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


JOB_DIR: Final[dict[str, Any]] = {"metavar": "JOB_DIR", "help": "the job directory"}
SAVEPOINT: Final[dict[str, Any]] = {"metavar": "SAVEPOINT", "help": "the savepoint's folder"}


def add_json(command: argparse._ActionsContainer, text: str = "print JSON") -> None:
    """Add ``--json``."""
    command.add_argument("--json", action="store_true", help=text)


def add_conf(command: argparse.ArgumentParser) -> None:
    """Add ``--conf``."""
    text = "a setting of Spark; may be repeated"
    command.add_argument("--conf", action="append", default=[], metavar="K=V", help=text)


def add_accept_lost_input(command: argparse.ArgumentParser) -> None:
    """Add ``--accept-lost-input``."""
    text = "go back although input that would be read again is gone: DATA LOSS, its rows are lost"
    command.add_argument("--accept-lost-input", action="store_true", help=text)


def add_entry_and_conf(command: argparse.ArgumentParser, entry: str) -> None:
    """Add ``--entry``, with its help, and ``--conf``."""
    command.add_argument("--entry", metavar="FILE.py:FUNC", help=entry)
    add_conf(command)


def add_job_dir(
    command: argparse.ArgumentParser,
    name: str = "job_dir",
    *,
    only_reads: bool = False,
    **argument: Any,
) -> None:
    """Add the address of a job to a command, which is then about the active version.

    If an upgrade's record is damaged, a command that *only_reads* shows the directory itself; any
    other is refused. *argument* is argparse's own, over :data:`JOB_DIR`.
    """
    command.add_argument(name, **{**JOB_DIR, **argument})
    text = "use this directory, even if an accepted upgrade has replaced its version"
    command.add_argument("--this-version", action="store_true", help=text)
    command.set_defaults(addressed=name, only_reads=only_reads)


def follow_upgrades(arguments: argparse.Namespace) -> None:
    """Replace the address on the command line by that of the active version, and say so."""
    name = getattr(arguments, "addressed", None)
    given = getattr(arguments, name) if name is not None else None
    if name is None or given is None or arguments.this_version:
        return
    from airflow_provider.runtime.jobdir.identity import check_format
    from airflow_provider.runtime.jobdir.layout import directory_at
    from airflow_provider.runtime.jobdir.upgrade_record import active_directory

    # Where the identity is damaged there is nothing to show, and one line says so.
    with contextlib.suppress(PermissionError):
        check_format(directory_at(given).storage)
    try:
        found = active_directory(given, run_id=getattr(arguments, "run_id", None))
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


_COMMANDS: Final = ("run", "check")
_KINDS: Final = {"script": ".py", "sql": ".sql"}


def add_programs(jobs: argparse._MutuallyExclusiveGroup) -> None:
    """Add ``--script`` and ``--sql`` to the ways to name a job."""
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
    """Return the unknown arguments; refuse them if the command has a script."""
    if unknown and getattr(arguments, "script", None):
        given = shlex.join(unknown)
        raise ConfigError(
            f"{given} is no option of the command; what is the script's follows --: … -- {given}"
        )
    return unknown


def named_program(arguments: argparse.Namespace) -> argparse.Namespace:
    """Return the arguments with the program as entry, and its command line as parameter."""
    entry = getattr(arguments, "entry", None)
    if entry is not None and is_program(entry):
        flag = next(flag for flag, suffix in _KINDS.items() if entry.endswith(suffix))
        function = f"{entry}:FUNCTION, or " if flag == "script" else ""
        raise ConfigError(f"--entry {entry} names no function; write {function}--{flag} {entry}")
    named = {flag: getattr(arguments, flag) for flag in _KINDS if getattr(arguments, flag)}
    for flag, file in named.items():
        if not file.endswith(_KINDS[flag]):
            raise ConfigError(f"--{flag} {file}: name a file that ends with {_KINDS[flag]}")
        arguments.entry = file
    if arguments.script_args is not None:
        if "script" not in named:
            raise ConfigError(
                "what follows -- is the command line of a script; give --script FILE.py"
            )
        arguments.params = [
            *getattr(arguments, "params", []),
            with_arguments(arguments.script_args),
        ]
    return arguments


S = TypeVar("S", bound="DriverSpec")


def add_options(
    command: argparse.ArgumentParser, kind: type[DriverSpec]
) -> argparse._MutuallyExclusiveGroup:
    """Add an argument for each option of a request; return the ways to name a job."""
    jobs = command.add_mutually_exclusive_group(required=True)
    for name, option in options_of(kind).items():
        location: dict[str, Any] = {"dest": name} if option.flag.startswith("-") else {}
        # An option that is not given is left out, so that the request has the one default.
        (jobs if name == "entry" else command).add_argument(
            option.flag,
            help=option.help.replace("%", "%%"),
            default=argparse.SUPPRESS,
            **location,
            **option.how,
        )
    command.add_argument("--driver-id", help=argparse.SUPPRESS, default=None)
    return jobs


def read_options(arguments: argparse.Namespace, kind: type[S]) -> S:
    """Return the request of the arguments."""
    given = vars(arguments)
    values: dict[str, Any] = {
        name: option.read(given[name], option.flag)
        for name, option in options_of(kind).items()
        if name in given
    }
    return kind(driver_id=arguments.driver_id, **values)


def command_of(request: DriverSpec) -> str:
    """Return the command of a shell that gives a request.

    Settings of Spark may be secret: ``--conf`` has their names alone, for the user to complete.
    """
    words = ["spark-stream", request.COMMAND]
    defaults = {each.name: each.default for each in dataclasses.fields(request)}
    for name, option in options_of(request).items():
        value = getattr(request, name)
        if value == defaults[name]:
            continue
        if not option.flag.startswith("-"):
            words.append(value)
        elif isinstance(value, Mapping):
            pairs = value if name == "conf" else map(_pair, value.items())
            words += [word for pair in pairs for word in (option.flag, pair)]
        elif value is True:
            words.append(option.flag)
        elif option.how.get("action") == "append":
            words += [word for each in value for word in (option.flag, each)]
        elif isinstance(value, tuple):
            words += [option.flag, *map(to_iso, value)]
        else:
            words += [option.flag, str(getattr(value, "value", value))]
    return shlex.join(words)


def _pair(item: tuple[str, Any]) -> str:
    name, value = item
    return f"{name}={value}" if isinstance(value, str) else f"{name}:={json.dumps(value)}"


_JOB: Final = "/data/jobs/daily"
_SELECT: Final = "SELECT * FROM daily.keyed_state LIMIT 10"
_SAVED: Final = f"{_JOB}/savepoints/before-upgrade"
_FIRST: Final = ("init", "check", "run", "status", "ls")
EXAMPLES: Final[Mapping[str, tuple[str, ...]]] = {
    "run": (
        f"{_JOB} --entry flights.py:daily_delays --param input=/data/flights --param output=/out",
        f"{_JOB} --entry flights.py:daily_delays --param days:=7 --conf spark.driver.memory=4g",
        f"{_JOB} --script etl.py -- --input /data/flights --output /out",
        f"/data/jobs/copy --entry flights.py:daily_delays --from-savepoint {_SAVED}",
    ),
    "check": (
        f"{_JOB} --entry flights.py:daily_delays --param input=/data/flights",
        f"{_JOB} --entry flights.py:daily_delays --param input=/data/flights --spark",
    ),
    "init": ("my-stream",),
    "status": (
        _JOB,
        f"{_JOB} --run-id manual-20261123T010005-1a2b3c",
        f"{_JOB} --json",
    ),
    "watch": (_JOB, f"{_JOB} --every 10"),
    "ls": ("/data/jobs", "/data/jobs s3://bucket/jobs --json"),
    "logs": (f"{_JOB} -f", f"{_JOB} --spark"),
    "stop": (_JOB, f"{_JOB} --drain", f"{_JOB} --savepoint before-upgrade"),
    "cancel": (_JOB,),
    "cleanup": (_JOB,),
    "upgrade": (
        f"{_JOB} --entry flights_2.py:daily_delays --to {_JOB}_2 --trial-period '10 minutes'",
    ),
    "maintain": (
        f"/data/tables/daily --job-dir {_JOB} --dry-run",
        f"/data/tables/daily --job-dir {_JOB} --reader /data/jobs/weekly --keep '30 days'",
        f"flights.daily --catalog prod --job-dir {_JOB}",
    ),
    "verify": (_JOB, f"{_JOB} manual-20261123T010005-1a2b3c --mode streaming"),
    "compare": (
        f"{_JOB} flights_2.py:daily_delays",
        f"{_JOB} flights_2.py:daily_delays --param top:=5 --key daily:day,origin",
    ),
    "impact": (
        f"{_JOB} manual-20261123T010005-1a2b3c",
        f"{_JOB} manual-20261123T010005-1a2b3c --every '1 day' --json",
    ),
    "rewind": (
        f"{_JOB} manual-20261123T010005-1a2b3c",
        f"{_JOB} manual-20261123T010005-1a2b3c --with-later",
    ),
    "replay": (f"{_JOB} manual-20261123T010005-1a2b3c",),
    "driver": (f"run {_JOB} RUN_ID DRIVER_ID SHA256",),
    "package": ("/data/spark-stream.zip",),
    "completion": ("bash", "zsh", "fish"),
    "savepoint take": (_JOB, f"{_JOB} --name before-upgrade --label release=7"),
    "savepoint list": (_JOB, f"{_JOB} --json"),
    "savepoint verify": (_SAVED,),
    "savepoint restore": (f"{_SAVED} {_JOB}", f"{_SAVED} {_JOB} --revert"),
    "savepoint fork": (f"{_SAVED} /data/jobs/copy",),
    "savepoint retain": (
        f"{_JOB} --keep 5",
        f"{_JOB} --max-age '7 days' --origin manual",
    ),
    "savepoint dispose": (_SAVED,),
    "warm-drivers start": ("--size 2",),
    "quarantine": (_JOB, f"{_JOB} --kind rejected --write /data/corrected"),
    "warm-drivers status": ("",),
    "warm-drivers stop": ("",),
    "state show": (_JOB, f"{_SAVED} daily --rows"),
    "state query": (f"{_SAVED} '{_SELECT}'",),
    "state diff": (f"{_SAVED} {_JOB}", f"{_SAVED} {_JOB} daily --changes 10"),
    "state growth": (f"{_JOB} --bytes-only",),
    "state bootstrap": (f"{_JOB} --entry flights.py:daily_delays --param input=/data/history",),
    "state rewrite": (f"{_SAVED} --to {_JOB}/savepoints/mended --reset-source flights",),
    "checkpoint show": ("/data/checkpoints/old-query",),
    "checkpoint plan-drain": ("/data/checkpoints/old-query",),
    "check-connection": ("spark_default", "spark_default --job-root s3://bucket/jobs"),
}
"""The arguments of each, by the command's name without the program's."""


def add_examples(parser: argparse.ArgumentParser, name: str) -> None:
    """Let the help of a program *name*, and of its commands, end with examples."""
    _end_with(parser, name, [f"{command} {EXAMPLES[command][0]}" for command in _FIRST])
    for command, each in commands_of(parser):
        _end_with(each, name, [f"{command} {arguments}" for arguments in EXAMPLES.get(command, ())])
    for command, group in _groups_of(parser):
        below = [other for other in EXAMPLES if other.startswith(f"{command} ")]
        _end_with(group, name, [f"{other} {EXAMPLES[other][0]}" for other in below])


def _end_with(parser: argparse.ArgumentParser, name: str, lines: Sequence[str]) -> None:
    if lines:
        parser.epilog = "\n".join(["examples:", *(f"  {name} {line}".rstrip() for line in lines)])
        parser.formatter_class = argparse.RawDescriptionHelpFormatter


def _groups_of(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action.choices, dict):
            for name, each in action.choices.items():
                if any(isinstance(below.choices, dict) for below in each._actions):
                    yield name, each


def commands_of(
    parser: argparse.ArgumentParser, before: str = ""
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield the name and the parser of each command that is no group."""
    groups = [action for action in parser._actions if isinstance(action.choices, dict)]
    if before and not groups:
        yield before, parser
    for group in groups:
        for name, each in dict(group.choices or ()).items():
            yield from commands_of(each, f"{before} {name}".strip())
