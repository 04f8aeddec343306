"""``spark-stream init``, ``package`` and ``completion``, for which argcomplete runs it."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base.runtime_zip import is_packed, write_package
from airflow_provider.runtime.cli.command_parser import commands_of
from airflow_provider.runtime.errors import EXIT_OK, ConfigError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping


def add_commands(commands: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the commands; see :data:`.api.commands.COMMANDS`."""
    _add_init(commands, add)
    _add_package(commands, add)
    _add_completion(commands, add)


_JOB: Final = '''\
"""Counts of events per minute and key."""

from pyspark.sql import functions as F

from airflow_provider.runtime import JobContext, files


def counts(ctx: JobContext) -> None:
    """Declare the query: it runs when this function has returned."""
    events = ctx.read(
        "events",
        format="json",
        path=ctx.params["input"],
        schema="at timestamp, key string",
        bounded=True,  # the run ends when all of it is read, and every window is written
        watermark=("at", "10 minutes"),
    )
    minutes = events.groupBy(F.window("at", "1 minute"), "key").agg(F.count("*").alias("events"))
    rows = minutes.select(F.col("window.start").alias("minute"), "key", "events")
    ctx.write("minutes", rows, to=files(ctx.params["output"], format="json"))
'''
_DAG: Final = '''\
"""Counts each day's events; the task is green when every row of the day is counted."""

from pathlib import Path

from airflow.sdk import dag

from airflow_provider.operators.spark_streaming import SparkStreamingOperator

HERE = Path(__file__).resolve().parent


@dag(schedule=None, catchup=False)
def event_counts():
    """Run the job once for each DAG run, which has a job directory and an output of its own."""
    # A drained job does not go on, so no two DAG runs share these folders.
    name = "{{ run_id | replace(':', '') | replace('+', '_') }}"
    SparkStreamingOperator(
        task_id="counts",
        job=f"{HERE}/job.py:counts",
        job_dir=f"{HERE}/data/jobs/{name}",
        params={"input": f"{HERE}/data/input", "output": f"{HERE}/data/output/{name}"},
        conn_id="spark_default",
        retries=3,
    )


event_counts()
'''
_TEST: Final = '''\
"""The job over a few events, in memory: pytest starts Spark, and runs it to its end."""

from pathlib import Path

from airflow_provider.runtime import run_in_memory

JOB = Path(__file__).resolve().parent / "job.py"
EVENTS = [
    {"at": "2026-01-01 00:00:10", "key": "a"},
    {"at": "2026-01-01 00:00:50", "key": "a"},
    {"at": "2026-01-01 00:01:10", "key": "b"},
]


def test_each_minute_is_counted():
    """Also the last one, which no later event ends."""
    result = run_in_memory(
        f"{JOB}:counts",
        {"events": EVENTS},
        params={"input": "not read", "output": "not written"},
        conf={"spark.sql.session.timeZone": "UTC"},
    )

    rows = result.outputs["minutes"].collect()
    assert [("a", 2), ("b", 1)] == sorted((row.key, row.events) for row in rows)
'''
FILES: Final[Mapping[str, str]] = {"job.py": _JOB, "dag.py": _DAG, "test_job.py": _TEST}
"""What ``init`` writes, by the file's name."""


def _add_init(commands: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
    text = "write a job, a DAG that runs it, and a test that passes; no file is replaced"
    init = add(commands, "init", _init, text)
    init.add_argument("folder", metavar="FOLDER", help="made when it is missing")


def _init(arguments: argparse.Namespace) -> int:
    folder = Path(arguments.folder)
    there = [name for name in FILES if (folder / name).exists() or (folder / name).is_symlink()]
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder}: is a file; name another folder")
    if there:
        raise ConfigError(f"{folder}: {', '.join(there)} is there already; name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in FILES.items():
        with (folder / name).open("x") as file:  # one that came meanwhile is not replaced either
            file.write(text)
    location = shlex.quote(str(folder))
    print(f"{folder}: {', '.join(FILES)}")
    print(f"  pytest {location}")
    print(f"  spark-stream check {location}/data/jobs/first --entry {location}/job.py:counts")
    return EXIT_OK


def _add_package(commands: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
    package = add(
        commands,
        "package",
        _package,
        "write the runtime's zip and the application, for a cluster's own storage",
    )
    text = "the zip to write; the application is written beside it"
    package.add_argument("out", metavar="OUT.zip", type=Path, help=text)
    package.add_argument(
        "--force", action="store_true", help="replace files that this command has not made, too"
    )


def _package(arguments: argparse.Namespace) -> int:
    if is_packed():
        raise ConfigError("this is the zip itself; give the command where the package is installed")
    package = write_package(arguments.out, replaces=arguments.force)
    for what, path in (("runtime", package.runtime), ("entry_point", package.application)):
        print(f"{what}: {path}, {path.stat().st_size:,} bytes")
    print(f"sha256 of the runtime's files: {package.digest}")
    return EXIT_OK


SHELLS: Final = ("bash", "zsh", "fish")
_MOST: Final = 20


def _add_completion(commands: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
    text = "print a shell's completion script: it completes commands, options, runs and savepoints"
    completion = add(commands, "completion", _completion, text)
    completion.add_argument("shell", choices=SHELLS, help="the shell")


def _completion(arguments: argparse.Namespace) -> int:
    try:
        from argcomplete.shell_integration import shellcode
    except ImportError as error:
        raise ConfigError(
            "completion needs argcomplete, which Airflow brings: pip install argcomplete"
        ) from error
    print(shellcode(["spark-stream"], shell=arguments.shell))
    return EXIT_OK


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer the shell, and end the process; returns when argcomplete is not installed."""
    with contextlib.suppress(ImportError):
        import argcomplete

        for _, command in commands_of(parser):
            for action in command._actions:
                completer = _COMPLETERS.get(action.dest)
                if completer is not None:
                    action.completer = completer  # type: ignore[attr-defined]  # argcomplete's
        argcomplete.autocomplete(parser)


def _runs(parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    from airflow_provider.runtime.jobdir.layout import directory_at
    from airflow_provider.runtime.jobdir.runs import recent_runs

    try:
        directory = directory_at(parsed_args.job_dir)
        return [record.run_id for record in recent_runs(directory, _MOST)]
    except Exception:  # noqa: BLE001 - a shell that asks gets no error into its line
        return []


def _savepoints(prefix: str, **_: Any) -> list[str]:
    from pathlib import Path

    typed = Path(prefix or ".")
    folder = typed if prefix.endswith("/") or not prefix else typed.parent
    locations = (folder, folder / "savepoints")
    with contextlib.suppress(OSError):
        found = [each for location in locations if location.is_dir() for each in location.iterdir()]
        return [
            str(each)
            for each in found
            if (each / "savepoint.json").is_file() or (each / "job.json").is_file()
        ]
    return []


_COMPLETERS: Final = {"run_id": _runs, "from_savepoint": _savepoints}
