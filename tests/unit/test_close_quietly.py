"""The end of a driver: whether what it has started in Spark has certainly stopped with it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from airflow_provider.runtime.api.sinks import EpochId
from airflow_provider.runtime.base.host import identify
from airflow_provider.runtime.driver.open_queries import close_quietly
from airflow_provider.runtime.jobdir.lease import LeaseObserver, Liveness
from airflow_provider.runtime.jobdir.lease_records import has_ended
from airflow_provider.runtime.queries.context import JobContext
from airflow_provider.runtime.testing.job_directories import QUERY_ID
from tests.unit.support import FakeClock, FakeFrame, HandStagedFiles, bench, staging_of, take_lease


class Query:
    """A query whose stop may fail."""

    def __init__(self, error: Exception | None = None) -> None:
        self.name = "q"
        self.is_stopped = False
        self._error = error

    def stop(self) -> None:
        if self._error is not None:
            raise self._error
        self.is_stopped = True


def opened(*queries: Query) -> list[Any]:
    return [*queries]


@pytest.fixture
def context() -> JobContext:
    no_spark: Any = None
    return JobContext(no_spark, params={}, run_id="r1", mode="streaming")


def test_a_driver_whose_queries_have_stopped_has_ended(storage, context):
    """After every query was stopped a release says that the driver can do nothing any more."""
    lease = take_lease(storage, FakeClock())
    close_quietly(opened(Query(), Query()), context, lease)
    lease.release()

    assert has_ended(storage, 1)


def test_a_driver_whose_query_would_not_stop_has_not_certainly_ended(storage, context):
    """
    A query that could not be stopped, as after Spark's stopTimeout, may still commit a batch: the
    next driver gets the lease at once, and does not take what the last one has staged for garbage.
    The other queries are stopped all the same.
    """
    other = Query()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        lease = take_lease(storage, FakeClock(), owner=identify([process.pid]))
        close_quietly(opened(Query(TimeoutError("30 seconds")), other), context, lease)
        lease.release()

        assert other.is_stopped
        assert Liveness.FREE is LeaseObserver(storage, FakeClock()).look()[1]
        assert not has_ended(storage, 1)
        process.kill()

    assert has_ended(storage, 1), "its processes are gone"


def test_why_a_query_would_not_stop_is_one_line(storage, context, caplog):
    """The text of an error of the JVM has its stack, of some hundred lines."""
    error = RuntimeError("An error occurred.\n: java.lang.X: gone\n\tat org.apache.spark.A.b(A:1)")

    close_quietly(opened(Query(error)), context, take_lease(storage, FakeClock()))

    (message,) = [
        each.getMessage() for each in caplog.records if "not be stopped" in each.getMessage()
    ]
    assert 1 == len(message.splitlines())


def test_a_driver_that_is_torn_down_has_not_certainly_ended(storage):
    """Whatever ends a driver without closing, such as an exit in its code, has stopped nothing."""
    lease = take_lease(storage, FakeClock())
    with pytest.raises(SystemExit), lease:
        raise SystemExit

    assert Liveness.FREE is LeaseObserver(storage, FakeClock()).look()[1]
    assert not has_ended(storage, 1)


def test_an_error_ends_a_driver_as_any_other(storage):
    """A lease is released when its block ends by an error, which is no reason for doubt."""
    lease = take_lease(storage, FakeClock())
    with pytest.raises(ValueError, match="wrong"), lease:
        raise ValueError("wrong")

    assert has_ended(storage, 1)


def test_what_a_query_has_staged_that_would_not_stop_is_kept(tmp_path, context):
    """The next driver does not remove the staged files of a batch that Spark may still commit."""
    sink = HandStagedFiles(tmp_path / "out")
    with bench(tmp_path / "job", sink) as job:
        job.begun()
        lease = job.lease()
        job.spark.plan(0)
        staged = sink.stage(FakeFrame("a"), EpochId("q", QUERY_ID, 0, lease.token))
        close_quietly(opened(Query(TimeoutError("late"))), context, lease)
        lease.release()

        job.recovered()

        files = [path.name for path in staging_of(tmp_path / "out").rglob("part-*")]
        assert files == [staged for staged, _ in staged.data["files"]]
