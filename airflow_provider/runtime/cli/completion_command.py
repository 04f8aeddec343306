"""``spark-stream completion``: what a shell needs to complete commands, options, and names.

argcomplete does it: at each TAB the shell asks ``spark-stream`` itself, so that the ids of runs and
the names of savepoints are those of the job directory on the line.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.cli.examples import commands_of
from airflow_provider.runtime.errors import EXIT_OK, ConfigError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

SHELLS: Final = ("bash", "zsh", "fish")
_MOST: Final = 20


def add_commands(commands: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command.

    Args:
        commands: ``spark-stream``'s own.
        add: makes one command: where, its name, what it calls, what it does.
    """
    text = "print what a shell needs to complete commands, options, runs and savepoints"
    completion = add(commands, "completion", _completion, text)
    completion.add_argument("shell", choices=SHELLS)


def _completion(arguments: argparse.Namespace) -> int:
    try:
        from argcomplete.shell_integration import shellcode
    except ImportError as error:
        msg = "completion needs argcomplete, which Airflow brings: pip install argcomplete"
        raise ConfigError(msg) from error
    print(shellcode(["spark-stream"], shell=arguments.shell))
    return EXIT_OK


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer the shell, and end the process; returns when argcomplete is not there."""
    with contextlib.suppress(ImportError):
        import argcomplete

        for _, command in commands_of(parser):
            for action in command._actions:
                completer = _COMPLETERS.get(action.dest)
                if completer is not None:
                    action.completer = completer  # type: ignore[attr-defined]  # argcomplete's
        argcomplete.autocomplete(parser)


def _runs(parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """Return the newest runs of the job directory on the line; none where it cannot be read."""
    from airflow_provider.runtime.jobdir.layout import directory_at
    from airflow_provider.runtime.jobdir.runs import recent_runs

    try:
        directory = directory_at(parsed_args.job_dir)
        return [record.run_id for record in recent_runs(directory, _MOST)]
    except Exception:  # noqa: BLE001 - a shell that asks gets no error into its line
        return []


def _savepoints(prefix: str, **_: Any) -> list[str]:
    """Return the savepoints below the folder that was typed so far."""
    from pathlib import Path

    typed = Path(prefix or ".")
    folder = typed if prefix.endswith("/") or not prefix else typed.parent
    places = (folder, folder / "savepoints")
    with contextlib.suppress(OSError):
        found = [each for place in places if place.is_dir() for each in place.iterdir()]
        return [
            str(each)
            for each in found
            if (each / "savepoint.json").is_file() or (each / "job.json").is_file()
        ]
    return []


_COMPLETERS: Final = {"run_id": _runs, "from_savepoint": _savepoints}
