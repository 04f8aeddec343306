"""``spark-stream checkpoint``: explains any checkpoint of Spark, and plans its drain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.checkpoint.describe import describe_checkpoint
from airflow_provider.runtime.checkpoint.drain import plan_drain_batch
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.cli.output import print_json
from airflow_provider.runtime.errors import EXIT_OK
from airflow_provider.runtime.jobdir.end_of_input import check_of_no_job
from airflow_provider.runtime.storage.open import open_storage

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable


def add_commands(commands: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the commands.

    Args:
        commands: ``spark-stream``'s own.
        add: makes one command: where, its name, what it calls, what it does.
    """
    text = "look at, or drain, any Spark checkpoint"
    checkpoint = commands.add_parser("checkpoint", help=text, description=text)
    actions = checkpoint.add_subparsers(required=True, metavar="ACTION")
    show = add(actions, "show", _checkpoint_show, "explain a checkpoint as JSON")
    show.add_argument("url", metavar="URL")
    drain = add(actions, "plan-drain", _checkpoint_plan_drain, "plan the drain of a stopped query")
    drain.add_argument("url", metavar="URL")
    text = "drain it once more, for rows that are later than the year 9999"
    drain.add_argument("--further", action="store_true", help=text)


def _checkpoint_show(arguments: argparse.Namespace) -> int:
    print_json(describe_checkpoint(open_storage(arguments.url)))
    return EXIT_OK


def _checkpoint_plan_drain(arguments: argparse.Namespace) -> int:
    check_of_no_job(arguments.url)
    logs = CheckpointLogs(open_storage(arguments.url))
    batch = plan_drain_batch(logs, further=arguments.further)
    print(f"{logs.url}: batch {batch} is planned; start the query once with trigger(once=True)")
    return EXIT_OK
