"""``spark-stream check``: refuses what a run would refuse, without running it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.cli.program_options import add_programs, named_program
from airflow_provider.runtime.cli.request_options import add_options, read_options
from airflow_provider.runtime.errors import EXIT_OK
from airflow_provider.runtime.jobdir.run_spec import RunSpec

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable


def add_commands(commands: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command.

    Args:
        commands: ``spark-stream``'s own.
        add: makes one command: where, its name, what it calls, what it does.
    """
    text = "refuse what run would refuse, with the same options; nothing is run or written"
    check = add(commands, "check", _check, text)
    add_programs(add_options(check, RunSpec))
    text = "also start Spark, call the job's function, analyse its queries, and ask its sinks"
    check.add_argument("--spark", dest="with_spark", action="store_true", help=text)
    check.add_argument("--json", action="store_true")


def _check(arguments: argparse.Namespace) -> int:
    from airflow_provider.runtime.cli.output import print_json
    from airflow_provider.runtime.driver.run import check_job

    spec = read_options(named_program(arguments), RunSpec)
    found = check_job(spec, with_spark=arguments.with_spark, spark=arguments.spark)
    if arguments.json:
        print_json({"version": 1, "job_dir": spec.job_dir, **dataclasses.asdict(found)})
        return EXIT_OK
    print(f"{spec.job_dir}: run {found.run_id} {found.what}")
    if found.mode is not None:
        print(f"  mode {found.mode}" + (f": {found.reason}" if found.reason else ""))
    for query in found.queries:
        print(f"  {query.name}: {', '.join(query.sources)} -> {', '.join(query.sinks)}")
    left = "" if arguments.with_spark else "; --spark looks at its queries and sinks, too"
    print(f"nothing is refused{left}")
    return EXIT_OK
