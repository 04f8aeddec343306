"""Workers of a real cluster die in the middle of a batch, and one that was taken for dead wakes up."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from drivers import Driver, Drivers, Watcher, await_that
from gates import Gate
from streams import JOBS, Event, Location, read_with_duckdb, windows_of, write_events

from airflow_provider.runtime.cli.main import main
from airflow_provider.runtime.errors import EXIT_OK
from airflow_provider.runtime.errors.explanation import Failure, FailureClass
from tests.cluster import Cluster, is_executor

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(600)]

HELD = JOBS.with_name("failing_jobs.py")
BATCHES = 3
# Two files a batch, each a task of its own: values 0 to 2 and 5 to 7, 10 to 12 and 15 to 17, …
FILES: list[list[Event]] = [
    [(10 * batch + i, "abc"[i], 10 * batch + first + i) for i in range(3)]
    for batch in range(BATCHES)
    for first in (0, 5)
]
EVENTS = [event for file in FILES for event in file]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    started = Cluster(tmp_path / "cluster")
    yield started
    started.end()


def attempt_of(location: Location) -> dict[str, Any]:
    (path,) = location.job_dir.glob("runs/*/attempts/*.json")
    return dict(json.loads(path.read_text(encoding="utf-8")))


def status_of(location: Location, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return what ``spark-stream status --json`` says of the only run."""
    assert EXIT_OK == main(["status", str(location.job_dir), "--json"])
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    return dict(run)


def run_on(cluster: Cluster, drivers: Drivers, gate: Gate, max_failures: int) -> Driver:
    return drivers.run(
        "held",
        {"gate": str(gate.folder), "files_per_batch": "2"},
        f"--entry={HELD}:held",
        f"--master={cluster.url}",
        "--conf=spark.executor.memory=512m",
        f"--conf=spark.task.maxFailures={max_failures}",
        "--restart=fixed-delay(attempts=3, delay=1 second)",
        PYSPARK_PYTHON=sys.executable,
        SPARK_LOCAL_IP="127.0.0.1",
    )


def test_workers_that_die_in_a_batch(location, drivers, cluster, capsys):
    """
    Spark heals the loss of a worker by itself, the driver that of an executor which cost a task its
    last try; and what wakes up on an executor that was taken for dead puts no row into what readers
    see.
    """
    write_events(location.input, *FILES)
    gate = Gate(location.root / "gate")
    watcher = Watcher({location.output: windows_of(EVENTS)})
    for _ in range(2):
        cluster.worker()
    driver = run_on(cluster, drivers, gate, max_failures=1)

    def until(what: Callable[[], bool]) -> None:
        assert await_that(lambda: what() or not driver.is_alive), driver.log[-3000:]
        assert driver.is_alive, driver.log[-3000:]

    def held(value: int, *, times: int = 1) -> int:
        """Wait until tasks hold the value, for the so many-th time; return the last one's process."""
        until(lambda: len(gate.holders(value)) >= times)
        return gate.holders(value)[-1]

    with watcher.watching():
        gate.say(10)
        # The worker is killed, its executor paused in the middle of batch 1: Spark runs the task on
        # the other worker, and does not count that against it.
        undead = cluster.worker_of(held(10)).die_alone()
        last = cluster.worker_of(held(10, times=2))
        assert attempt_of(location)["restarts"] is None

        # The other executor is killed, too: the batch fails, and its driver runs it again.
        spare = cluster.worker()
        until(spare.is_ready)
        os.kill(last.executor(), signal.SIGKILL)
        until(lambda: attempt_of(location)["restarts"] is not None)
        last.kill()
        held(10, times=3)
        status = status_of(location, capsys)

        # What was paused in batch 1 goes on when that has been committed by others.
        gate.say(20)
        held(20)
        os.kill(undead, signal.SIGCONT)
        until(lambda: not is_executor(undead))
        gate.say(10 * BATCHES)
        code = driver.wait()

    assert EXIT_OK == code, driver.log[-3000:]
    restarts = attempt_of(location)["restarts"]
    failure = Failure.from_dict(restarts["failure"])
    assert (1, FailureClass.ENVIRONMENT, True) == (
        restarts["count"],
        failure.failure_class,
        failure.restartable,
    )
    assert ("out", 1, "127.0.0.1") == (failure.query, failure.batch, failure.host)
    assert (failure.executor or "").isdigit()
    assert ("running", restarts) == (status["state"], status["restarts"])
    assert [] == watcher.wrong
    assert windows_of(EVENTS) == read_with_duckdb(location.output / "*.parquet")
    final = driver.final()
    assert ("FINISHED", 1, len(EVENTS)) == tuple(
        final[name] for name in ("outcome", "attempts", "rows_read")
    )
    assert [] == list(location.root.glob(".*.staging"))
