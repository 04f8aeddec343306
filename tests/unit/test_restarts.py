"""Restarts of failed queries in an attempt, and what it leaves for the next one."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider.runtime.checkpoint.drain_step import DrainStep
from airflow_provider.runtime.driver.failures import Restarter, edges_of
from airflow_provider.runtime.driver.lifecycle import Lifecycle
from airflow_provider.runtime.driver.lifecycle.events import (
    AtEnd,
    Failed,
    QueryEnded,
    QueryFailed,
    Started,
    Stop,
    StopRequested,
)
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.errors.explanation import Failure, FailureClass
from airflow_provider.runtime.failures.classify import classify
from airflow_provider.runtime.failures.restart_strategy import (
    Edge,
    ExponentialDelay,
    Failover,
    FixedDelay,
)
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.run_spec import RunSpec
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.testing.job_directories import an_attempt
from tests.present import present
from tests.unit.recorded_failures import recorded
from tests.unit.support import FakeClock

LOST = Failure(FailureClass.ENVIRONMENT, "executor lost", "SparkException", "a", "worker-7")
THREE = ("a", "b", "c")
THREE_TIMES = FixedDelay(3, 10.0)


def ended(*, tasks: bool = False) -> Any:
    """Return a query that has failed, and may have tasks that do not know it yet."""
    return SimpleNamespace(has_tasks=lambda: tasks)


def a_query(name: str, *, native: bool = False) -> SimpleNamespace:
    return SimpleNamespace(name=name, native=object() if native else None)


def a_job(until: str = "end", *, native: tuple[str, ...] = ()) -> Any:
    queries = [a_query(name, native=name in native) for name in THREE]
    return SimpleNamespace(plan=SimpleNamespace(until=until), queries=queries)


def reading(**job) -> Lifecycle:
    life = Lifecycle.of(THREE, AtEnd.SUSPEND, continuous=True, **job)
    return life.handle(Started())[0]


@pytest.fixture
def run(tmp_path):
    return JobDirectory(LocalStorage(str(tmp_path))).run("r1")


@pytest.fixture
def clock():
    return FakeClock()


def restarter_of(run, clock, strategy=THREE_TIMES, attempt=1, job=None, **asked) -> Restarter:
    record = an_attempt(attempt)
    run.put_attempt(record)
    dice = random.Random(0)
    ask = RunSpec(
        job_dir=run.storage.url, entry="jobs:copy", restart=strategy and strategy.to_text(), **asked
    )
    return Restarter(ask, job or a_job(), run, record, clock, dice=dice)


def test_a_failure_that_may_heal_is_granted_a_restart(run, clock):
    """The query alone is started again after the delay, and not before."""
    restarter = restarter_of(run, clock)

    assert QueryFailed("a", ("a",)) == restarter.after(LOST, reading())
    assert not restarter.is_due([ended()])
    clock.sleep(10)
    assert restarter.is_due([ended()])
    assert not restarter.is_due([]), "nobody waits"


def test_every_query_that_has_not_ended_is_started_again_if_that_is_asked_for(run, clock):
    """Flink's ``full`` failover."""
    restarter = restarter_of(run, clock, failover=Failover.FULL)

    assert QueryFailed("a", THREE) == restarter.after(LOST, reading())


def test_a_restart_waits_for_the_last_tasks(run, clock):
    """As long as Spark runs a task of the failed batch, that may still write."""
    restarter = restarter_of(run, clock)
    restarter.after(LOST, reading())
    clock.sleep(100)

    assert not restarter.is_due([ended(), ended(tasks=True)])


def test_a_restart_is_put_down_before_it_is_promised(run, clock):
    """Whoever looks at the attempt sees how often, why, and by which strategy."""
    restarter = restarter_of(run, clock)
    clock.sleep(5)
    restarter.after(LOST, reading())
    (stored,) = run.attempts()

    assert stored == restarter.attempt
    assert (1, 5.0) == (stored.restarts["count"], stored.restarts["worked_s"])
    assert "fixed-delay(attempts=3, delay=10.0)" == stored.restarts["strategy"]
    assert LOST == Failure.from_dict(stored.restarts["failure"])


def test_restarts_that_are_used_up_end_the_attempt(run, clock):
    """The failure stays what it was, and says that nothing was left to try."""
    restarter = restarter_of(run, clock, FixedDelay(1, 0.0))
    restarter.after(LOST, reading())
    event = restarter.after(LOST, reading())

    assert isinstance(event, Failed)
    assert FailureClass.ENVIRONMENT is event.failure.failure_class
    assert event.failure.reason.startswith("executor lost (all 1 restarts of fixed-delay(")


@pytest.mark.parametrize(
    "failure",
    [
        classify(ConfigError("wrong"), query="a"),
        classify(recorded("state_file_deleted"), query="a"),
        classify(recorded("jvm_killed"), query="a"),
        classify(ConnectionError("not of a query")),
    ],
    ids=lambda failure: failure.condition,
)
def test_what_no_restart_heals_goes_up_at_once(run, clock, failure):
    """It costs no attempt, and leaves no trace of one."""
    restarter = restarter_of(run, clock)

    assert Failed(failure) == restarter.after(failure, reading())
    assert run.attempts()[0].restarts is None


def test_who_stops_the_job_is_told_at_once(run, clock):
    """A query that fails while it halts is not started again."""
    life, _ = reading().handle(StopRequested(Stop(AtEnd.SUSPEND, savepoint=False)))

    assert Failed(LOST) == restarter_of(run, clock).after(LOST, life)


def test_a_query_that_does_not_run_is_not_started_again(run, clock):
    """What fails of one that waits, or has read its last row, is the attempt's failure."""
    life = reading(upstream={"a": ("b",)}, bounded=("a", "b"))

    assert Failed(LOST) == restarter_of(run, clock).after(LOST, life)


@pytest.mark.parametrize(
    ("until", "event"), [("stopped", QueryFailed("a", ("a",))), ("end", Failed(LOST))]
)
def test_the_default_depends_on_whether_the_run_ends(run, clock, until, event):
    """
    A run without an end is kept alive; one with an end is tried again by whoever waits for it.
    """
    restarter = restarter_of(run, clock, None, job=a_job(until))

    assert event == restarter.after(LOST, reading())


def test_who_reads_open_batches_is_started_with_the_writer(run, clock):
    """
    Spark's own sinks show rows before their batch has committed; a query that ended is left alone.
    """
    restarter = restarter_of(run, clock, job=a_job(native=("a",)))
    life = reading(upstream={"b": ("a",), "c": ("b",)})

    assert QueryFailed("a", ("a", "b")) == restarter.after(LOST, life)
    assert [Edge("a", "b", committed=False), Edge("b", "c", committed=True)] == edges_of(
        a_job(native=("a",)).queries, {"b": ("a",), "c": ("b",)}
    )
    life, _ = reading(bounded=("b",)).handle(QueryEnded("b", DrainStep.NOTHING))
    assert QueryFailed("c", ("c",)) == restarter.after(dataclasses.replace(LOST, query="c"), life)


def test_an_attempt_after_a_kill_goes_on_with_what_was_remembered(run, clock):
    """
    Three restarts are three, however many drivers die between; their clocks are never compared.
    """
    granted = []
    for attempt in (1, 2, 3, 4):
        died = FakeClock()
        died.time = 1e6 / attempt
        restarter = restarter_of(run, died, FixedDelay(3, 0.0), attempt)
        died.sleep(60)
        granted.append(isinstance(restarter.after(LOST, reading()), QueryFailed))

    assert [True, True, True, False] == granted
    assert [60.0, 120.0, 180.0, None] == [
        attempt.restarts and attempt.restarts["worked_s"] for attempt in run.attempts()
    ]


def test_a_killed_driver_leaves_no_restart_pending(run, clock):
    """
    The next driver starts the query at once; a failure of it is a new one, after its own start.
    """
    strategy = ExponentialDelay(10.0, 100.0, 2.0, jitter_factor=0.0)
    restarter_of(run, clock, strategy).after(LOST, reading())
    restarter = restarter_of(run, clock, strategy, attempt=2)
    clock.sleep(5)
    restarter.after(LOST, reading())

    assert 2 == present(restarter.attempt.restarts)["count"]
    assert 20.0 == pytest.approx(present(restarter.attempt.restarts)["state"]["restart_at_s"] - 5.0)


def test_an_attempt_after_an_end_begins_anew(run, clock):
    """Who starts a run again that has given up wants it tried again."""
    restarter = restarter_of(run, clock, FixedDelay(1, 0.0))
    restarter.after(LOST, reading())
    run.put_attempt(dataclasses.replace(restarter.attempt, ended="2026-01-01T00:00:00.000Z"))

    again = restarter_of(run, clock, FixedDelay(1, 0.0), attempt=2)
    assert isinstance(again.after(LOST, reading()), QueryFailed)


def test_a_restart_that_cannot_be_put_down_is_granted_all_the_same(run, clock):
    """
    A full disk may be what has failed: when there is space again, the next restart tells of both.
    """
    restarter = restarter_of(run, clock)
    folder = Path(run.storage.url, "attempts")
    folder.rename(folder.with_name("away"))
    folder.write_bytes(b"no folder")

    assert QueryFailed("a", ("a",)) == restarter.after(LOST, reading())
    folder.unlink()
    clock.sleep(20)
    restarter.after(LOST, reading())

    (stored,) = run.attempts()
    assert 2 == stored.restarts["count"]
