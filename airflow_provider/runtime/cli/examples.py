"""Examples of each command, as its help shows them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

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
    "status": (_JOB, f"{_JOB} --run-id manual-20261123T010005-1a2b3c", f"{_JOB} --json"),
    "watch": (_JOB, f"{_JOB} --every 10"),
    "ls": ("/data/jobs", "/data/jobs --json"),
    "logs": (f"{_JOB} -f", f"{_JOB} --spark"),
    "stop": (_JOB, f"{_JOB} --drain", f"{_JOB} --savepoint before-upgrade"),
    "cancel": (_JOB,),
    "cleanup": (_JOB,),
    "upgrade": (
        f"{_JOB} --entry flights_2.py:daily_delays --to {_JOB}_2 --probation '10 minutes'",
    ),
    "rewind": (
        f"{_JOB} manual-20261123T010005-1a2b3c",
        f"{_JOB} manual-20261123T010005-1a2b3c --with-later",
    ),
    "driver": (f"run {_JOB} RUN_ID DRIVER_ID SHA256",),
    "package": ("/data/spark-stream",),
    "completion": ("bash", "zsh", "fish"),
    "savepoint take": (_JOB, f"{_JOB} --name before-upgrade --label release=7"),
    "savepoint list": (_JOB, f"{_JOB} --json"),
    "savepoint verify": (_SAVED,),
    "savepoint restore": (f"{_SAVED} {_JOB}", f"{_SAVED} {_JOB} --revert"),
    "savepoint fork": (f"{_SAVED} /data/jobs/copy",),
    "savepoint retain": (f"{_JOB} --keep 5", f"{_JOB} --max-age '7 days' --origin manual"),
    "savepoint dispose": (_SAVED,),
    "pool start": ("--size 2",),
    "pool status": ("",),
    "pool stop": ("",),
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
    for command, group in groups_of(parser):
        below = [other for other in EXAMPLES if other.startswith(f"{command} ")]
        _end_with(group, name, [f"{other} {EXAMPLES[other][0]}" for other in below])


def _end_with(parser: argparse.ArgumentParser, name: str, lines: Sequence[str]) -> None:
    if lines:
        parser.epilog = "\n".join(["examples:", *(f"  {name} {line}".rstrip() for line in lines)])
        parser.formatter_class = argparse.RawDescriptionHelpFormatter


def groups_of(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield the name and the parser of each group of commands."""
    for action in parser._actions:
        if isinstance(action.choices, dict):
            for name, each in action.choices.items():
                if any(isinstance(below.choices, dict) for below in each._actions):
                    yield name, each


def commands_of(
    parser: argparse.ArgumentParser, before: str = ""
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield the name and the parser of each command, and not of those that are groups of them."""
    groups = [action for action in parser._actions if isinstance(action.choices, dict)]
    if before and not groups:
        yield before, parser
    for group in groups:
        for name, each in dict(group.choices or ()).items():
            yield from commands_of(each, f"{before} {name}".strip())
