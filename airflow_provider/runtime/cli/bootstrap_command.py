"""``spark-stream state bootstrap``: a job's first state, from history."""

from __future__ import annotations

import argparse
import json
import threading
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.cli.options import add_secret_param
from airflow_provider.runtime.cli.output import live_progress
from airflow_provider.runtime.errors import EXIT_OK
from airflow_provider.runtime.jobdir.run_spec import OUTPUTS, parse_interval, parse_pairs

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider.runtime.savepoints.catalog import Savepoint


def add_actions(
    actions: Any,
    add: Callable[..., argparse.ArgumentParser],
    stop_on_signals: Callable[[threading.Event], None],
) -> None:
    """Add the action.

    Args:
        actions: those of ``spark-stream state``.
        add: makes one: where, its name, what it calls, what it does.
        stop_on_signals: lets signals set an event, once Spark runs.
    """
    text = "make a job's first state from history: its queries read it, then a savepoint is taken"
    bootstrap = add(actions, "bootstrap", _bootstrap, text)
    bootstrap.set_defaults(stop_on_signals=stop_on_signals)
    bootstrap.add_argument("job_dir", metavar="JOB_DIR", help="the live job's, which has not begun")
    bootstrap.add_argument("--entry", required=True, metavar="FILE.py:FUNC", help="the live job's")
    text = "for the job, to read the history"
    bootstrap.add_argument("--param", action="append", default=[], metavar="K=V", help=text)
    add_secret_param(bootstrap)
    text = "what the live job will be given: both are compared before anything is read"
    bootstrap.add_argument("--live-param", action="append", metavar="K=V", help=text)
    text = "the savepoint's own folder; default: JOB_DIR/savepoints/bootstrap"
    bootstrap.add_argument("--to", metavar="URL", help=text)
    text = "of the history; default: discard, so that no sink is touched"
    bootstrap.add_argument("--output", choices=OUTPUTS, default="discard", help=text)
    text = "this source goes on where history ended; the others begin from their beginning"
    bootstrap.add_argument(
        "--keep-position", action="append", default=[], metavar="SOURCE", help=text
    )
    bootstrap.add_argument("--interval", nargs=2, metavar=("START", "END"), help="ISO 8601 times")
    bootstrap.add_argument("--master", metavar="URL", help="default: local[*]")
    bootstrap.add_argument("--conf", action="append", default=[], metavar="K=V", help="for Spark")
    bootstrap.add_argument("--driver-id", help=argparse.SUPPRESS)  # set by who submits a driver
    bootstrap.add_argument("--json", action="store_true", help="print savepoint.json on stdout")


def _bootstrap(arguments: argparse.Namespace) -> int:
    from airflow_provider.runtime.control.bootstrap_request import BootstrapSpec
    from airflow_provider.runtime.state.bootstrap import bootstrap_job

    live = arguments.live_param
    spec = BootstrapSpec(
        job_dir=arguments.job_dir,
        entry=arguments.entry,
        params=parse_pairs(arguments.param, "--param"),
        secret_params=parse_pairs(arguments.secret_param, "--secret-param"),
        to=arguments.to,
        output=arguments.output,
        kept=tuple(arguments.keep_position),
        live_params=None if live is None else parse_pairs(live, "--live-param"),
        interval=parse_interval(arguments.interval),
        master=arguments.master,
        conf=parse_pairs(arguments.conf, "--conf"),
        driver_id=arguments.driver_id,
    )
    stop = threading.Event()
    with live_progress() as on_progress:
        savepoint = bootstrap_job(
            spec,
            stop=stop,
            on_progress=on_progress,
            on_spark_started=lambda: arguments.stop_on_signals(stop),
        )
    print_made(savepoint, as_json=arguments.json)
    return EXIT_OK


def print_made(savepoint: Savepoint, *, as_json: bool) -> None:
    """Print a savepoint that was just made."""
    record = savepoint.record
    if as_json:
        print(json.dumps({**record.to_dict(), "url": savepoint.url}, indent=1))
        return
    for name, query in record.queries.items():
        print(f"{savepoint.url}: query {name}: batch {query.batch}, watermark {query.watermark}")
