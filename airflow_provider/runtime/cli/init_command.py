"""``spark-stream init``: a folder with a job, a DAG that runs it, and a test that passes."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.errors import EXIT_OK, ConfigError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping

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


def add_commands(commands: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command.

    Args:
        commands: ``spark-stream``'s own.
        add: makes one command: where, its name, what it calls, what it does.
    """
    text = "write a job, a DAG that runs it, and a test that passes; no file is replaced"
    init = add(commands, "init", _init, text)
    init.add_argument("folder", metavar="FOLDER", help="made when it is missing")


def _init(arguments: argparse.Namespace) -> int:
    folder = Path(arguments.folder)
    there = [name for name in FILES if (folder / name).exists() or (folder / name).is_symlink()]
    if folder.exists() and not folder.is_dir():
        msg = f"{folder}: is a file; name another folder"
        raise ConfigError(msg)
    if there:
        msg = f"{folder}: {', '.join(there)} is there already; name another folder"
        raise ConfigError(msg)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in FILES.items():
        with (folder / name).open("x") as file:  # one that came meanwhile is not replaced either
            file.write(text)
    place = shlex.quote(str(folder))
    print(f"{folder}: {', '.join(FILES)}")
    print(f"  pytest {place}")
    print(f"  spark-stream check {place}/data/jobs/first --entry {place}/job.py:counts")
    return EXIT_OK
