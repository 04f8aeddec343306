"""``spark-stream state bootstrap``: a job's first state, from history."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.cli.output import live_progress, print_json
from airflow_provider.runtime.cli.request_options import add_options, read_options
from airflow_provider.runtime.cli.run_command import stop_on_signals
from airflow_provider.runtime.control.bootstrap_request import BootstrapSpec
from airflow_provider.runtime.errors import EXIT_OK

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from airflow_provider.runtime.savepoints.catalog import Savepoint


def add_actions(
    actions: Any,
    add: Callable[..., argparse.ArgumentParser],
) -> None:
    """Add the action to those of ``spark-stream state``."""
    text = "make a job's first state from history: its queries read it, then a savepoint is taken"
    command = add(actions, "bootstrap", _bootstrap, text)
    add_options(command, BootstrapSpec)
    command.add_argument("--json", action="store_true", help="print savepoint.json on stdout")


def _bootstrap(arguments: argparse.Namespace) -> int:
    spec = read_options(arguments, BootstrapSpec)
    return bootstrap(spec, as_json=arguments.json)


def bootstrap(spec: BootstrapSpec, *, as_json: bool = False) -> int:
    """Make a job's first state, and print the savepoint."""
    from airflow_provider.runtime.bootstrap import bootstrap_job

    stop = threading.Event()
    with live_progress() as on_progress:
        savepoint = bootstrap_job(
            spec,
            stop=stop,
            on_progress=on_progress,
            on_spark_started=lambda: stop_on_signals(stop),
        )
    print_made(savepoint, as_json=as_json)
    return EXIT_OK


def print_made(savepoint: Savepoint, *, as_json: bool) -> None:
    """Print a savepoint that was just made."""
    record = savepoint.record
    if as_json:
        print_json({**record.to_dict(), "url": savepoint.url})
        return
    for name, query in record.queries.items():
        print(f"{savepoint.url}: query {name}: batch {query.batch}, watermark {query.watermark}")
