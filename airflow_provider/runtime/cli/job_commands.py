"""``spark-stream cleanup`` and ``rewind``: put a job in order, or back to before a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.errors import EXIT_OK
from airflow_provider.runtime.jobdir.layout import known_job
from airflow_provider.runtime.jobdir.run_options import parse_pairs

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable


def add_commands(commands: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the commands.

    Args:
        commands: ``spark-stream``'s own.
        add: makes one command: where, its name, what it calls, what it does.
    """
    text = "publish what Spark has committed, and remove staged data that nothing references"
    cleanup = add(commands, "cleanup", _cleanup, text)
    cleanup.add_argument("job_dir", metavar="JOB_DIR")
    _add_entry_and_conf(cleanup)
    text = "undo a run: its rows are reverted, the job is as it was before it"
    rewind = add(commands, "rewind", _rewind, text)
    rewind.add_argument("job_dir", metavar="JOB_DIR")
    rewind.add_argument("run_id", metavar="RUN_ID")
    text = "undo the runs after it, too, the newest first"
    rewind.add_argument("--with-later", action="store_true", help=text)
    _add_entry_and_conf(rewind)


def _add_entry_and_conf(command: argparse.ArgumentParser) -> None:
    command.add_argument("--entry", metavar="FILE.py:FUNC", help="default: the last run's")
    command.add_argument("--conf", action="append", default=[], metavar="K=V", help="for Spark")


def _cleanup(arguments: argparse.Namespace) -> int:
    from airflow_provider.runtime.driver.recover_sinks import clean_up

    known_job(arguments.job_dir)
    conf = parse_pairs(arguments.conf, "--conf")
    queries = clean_up(arguments.job_dir, entry=arguments.entry, conf=conf)
    print(f"{arguments.job_dir}: in order: {', '.join(queries) or 'no query has such a sink'}")
    return EXIT_OK


def _rewind(arguments: argparse.Namespace) -> int:
    from airflow_provider.runtime.driver.restore_job import rewind_job

    undone = rewind_job(
        arguments.job_dir,
        arguments.run_id,
        with_later=arguments.with_later,
        entry=arguments.entry,
        conf=parse_pairs(arguments.conf, "--conf"),
    )
    for run in undone:
        print(f"{arguments.job_dir}: {run}")
    return EXIT_OK
