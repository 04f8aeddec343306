"""``spark-stream compare``: runs a new version of a job over the input of a run, and compares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.comparisons.verify_command import (
    add_comparison,
    comparing,
    print_report,
)
from airflow_provider.runtime.cli.command_parser import add_job_dir
from airflow_provider.runtime.entry_point import check_entry
from airflow_provider.runtime.jobdir.run_spec import parse_pairs, parse_params

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

api_version: Final = 1


def add_commands(commands: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add ``compare``; see :class:`.api.commands.CommandModule`."""
    text = "run a new version of a job over the input of a finished run, and compare the rows"
    compare = add(commands, "compare", _compare, text)
    add_job_dir(compare)
    text = "the new version: FILE.py:FUNC, pkg.mod:FUNC, or a file of SQL"
    compare.add_argument("entry", metavar="ENTRY", help=text)
    text = "the run; default: the newest that has ended"
    compare.add_argument("--run-id", metavar="RUN_ID", help=text)
    text = "a parameter of the new version; the others are those of the run; repeatable"
    compare.add_argument(
        "--param", dest="params", action="append", default=[], metavar="K=V|K:=JSON", help=text
    )
    text = "a secret parameter of the new version, and its environment variable; repeatable"
    compare.add_argument(
        "--secret-param", action="append", default=[], metavar="K=VARIABLE", help=text
    )
    add_comparison(compare)


def _compare(arguments: argparse.Namespace) -> int:
    from airflow_provider.extensions.comparisons.comparing import NewVersion, compare_version

    check_entry(arguments.entry)
    new = NewVersion(
        arguments.entry,
        parse_params(arguments.params),
        parse_pairs(arguments.secret_param, "--secret-param"),
    )
    with comparing(arguments, f"spark-stream compare {arguments.job_dir}") as how:
        report = compare_version(arguments.job_dir, arguments.run_id, new, how)
    return print_report(report, as_json=arguments.json)
