"""Classification of failures that Python workers really have."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from streams import failing_at, read_with_pandas, windows_of, write_events

from airflow_provider.runtime.errors import RunFailedError
from airflow_provider.runtime.errors.explanation import FailureClass
from airflow_provider.runtime.failures.restart_strategy import FixedDelay
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.storage.open import open_storage
from tests.present import present

pytestmark = pytest.mark.spark

JOBS = Path(__file__).with_name("failing_jobs.py")
LISTED = {"failing_jobs.ServiceError": "NON_RECOVERABLE"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "listed", "expected"),
    [
        ("marked", {}, (FailureClass.DATA_MISSING, "NoRateError", "no rate for 7")),
        ("caused", {}, (FailureClass.DATA_MISSING, "NoRateError", "no rate for 7")),
        ("met", {}, (FailureClass.DATA_MISSING, "NoRateError", "no rate for 7")),
        ("caused", LISTED, (FailureClass.NON_RECOVERABLE, "ServiceError", "no answer for 7")),
        ("service", {}, (FailureClass.RECOVERABLE, "ServiceError", "no answer for 7")),
        ("service", LISTED, (FailureClass.NON_RECOVERABLE, "ServiceError", "no answer for 7")),
        ("row", {}, (FailureClass.NON_RECOVERABLE, "KeyError", "7")),
        ("killed", {}, (FailureClass.ENVIRONMENT, "SparkException", "Python worker exited")),
    ],
)
def test_what_fails_in_a_worker_has_class_batch_and_host(spark, location, kind, listed, expected):
    """
    Of what a worker raises only text comes back: its type, its mark and its words are known all the
    same, and which batch of which query it has ended, and where.
    """
    write_events(location.input, [(1, "a", 7)])
    asked = {
        "entry": f"{JOBS}:failing",
        "params": {"kind": kind},
        "fails_as": listed,
    }

    with pytest.raises(RunFailedError) as raised:
        location.run(spark, "failing", **asked)
    failure = raised.value.failure
    *kind_of_it, said = expected

    assert kind_of_it == [failure.failure_class, failure.condition]
    assert failure.reason.startswith(said)
    assert ("out", 0) == (failure.query, failure.batch)
    # Only of a lost worker does Spark say on which machine it was.
    worker = spark._jvm.org.apache.spark.util.Utils.localHostName()
    assert (worker if kind == "killed" else socket.gethostname()) == failure.host
    assert not list(location.output.glob("*.parquet"))


EVENTS = [(i, "abc"[i % 3], i) for i in range(0, 60, 3)]


@pytest.mark.long
@pytest.mark.parametrize(
    "point",
    [
        "sink.precommitted",
        "files.published_one",
        # tests/crash/test_protocol.py dies there, without a JVM.
        *(
            pytest.param(f"sink.{step}", marks=pytest.mark.whole)
            for step in ("staged", "published", "committed")
        ),
    ],
)
def test_wherever_a_batch_fails_its_restart_loses_and_repeats_nothing(spark, location, point):
    """
    Before and after the pre-commit, in the middle of publishing and after it: the same driver starts
    the query again, twice, and every row is there once.
    """
    write_events(location.input, EVENTS[:8], EVENTS[8:14], EVENTS[14:])
    asked = {"params": {"files_per_batch": "1"}, "restart": FixedDelay(2, delay_s=0)}

    with failing_at(point, times=2):
        final = location.run(spark, "tumbling_window", **asked)

    assert ("FINISHED", 1, len(EVENTS)) == (final.outcome, final.attempts, final.rows_read)
    assert windows_of(EVENTS) == read_with_pandas(location.output)
    directory = JobDirectory(open_storage(str(location.job_dir)))
    (attempt,) = directory.run(final.run_id).attempts()
    assert 2 == present(attempt.restarts)["count"]


@pytest.mark.long
def test_a_restart_waits_for_the_last_task_of_the_failed_batch(spark, location):
    """
    A task that outlives its batch is killed before the batch runs again: it cannot write into it.
    """
    write_events(location.input, [(1, "a", 7)], [(2, "b", 8)])
    asked = {"entry": f"{JOBS}:lingering", "params": {"folder": str(location.root)}}

    final = location.run(spark, "lingering", **asked, restart=FixedDelay(1, delay_s=0))

    assert ("FINISHED", 1, 2) == (final.outcome, final.attempts, final.rows_read)
    assert [(7,), (8,)] == sorted(read_with_pandas(location.output))
    lingered, again = (location.root / name for name in ("lingers", "again"))
    assert lingered.stat().st_mtime_ns < again.stat().st_mtime_ns
