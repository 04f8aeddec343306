"""Definition of ``airflow spark-stream``: every ``airflow`` command imports this small module."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from airflow.cli.cli_config import ActionCommand, Arg, lazy_load_command

if TYPE_CHECKING:
    from airflow.cli.cli_config import CLICommand

_NO_PREFIX = "\0"  # no argument of a process begins with it


class _Everything(Arg):
    def add_to_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.prefix_chars = _NO_PREFIX
        super().add_to_parser(parser)


_EVERYTHING: Arg = _Everything(("arguments",), nargs=argparse.REMAINDER)  # type: ignore[no-untyped-call]  # Airflow has no types there


def get_commands() -> list[CLICommand]:
    """Return the commands, for Airflow."""
    return [
        ActionCommand(
            name="spark-stream",
            help="Run and operate Spark Structured Streaming jobs",
            func=lazy_load_command("airflow_provider.cli.spark_stream.run"),
            args=(_EVERYTHING,),
        )
    ]
