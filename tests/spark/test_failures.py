"""What is made of failures that Python workers really have."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from streams import write_events

from airflow_provider.runtime.errors import RunFailedError
from airflow_provider.runtime.failures import FailureClass, Marks

pytestmark = pytest.mark.spark

JOBS = Path(__file__).with_name("failing_jobs.py")
LISTED = {"failing_jobs.ServiceError": "NON_RECOVERABLE"}


@pytest.mark.parametrize(
    ("kind", "listed", "expected"),
    [
        ("marked", {}, (FailureClass.DATA_MISSING, "NoRateError", "no rate for 7")),
        ("service", {}, (FailureClass.RECOVERABLE, "ServiceError", "no answer for 7")),
        ("service", LISTED, (FailureClass.NON_RECOVERABLE, "ServiceError", "no answer for 7")),
        ("row", {}, (FailureClass.NON_RECOVERABLE, "KeyError", "7")),
        ("killed", {}, (FailureClass.ENVIRONMENT, "SparkException", "Python worker exited")),
    ],
)
def test_what_fails_in_a_worker_has_class_batch_and_host(spark, place, kind, listed, expected):
    """
    Of what a worker raises only text comes back: its type, its mark and its words are known all the
    same, and which batch of which query it has ended, and where.
    """
    write_events(place.input, [(1, "a", 7)])
    asked = {"entry": f"{JOBS}:failing", "params": {"kind": kind}, "marks": Marks.parse(listed)}

    with pytest.raises(RunFailedError) as raised:
        place.run(spark, "failing", **asked)
    failure = raised.value.failure
    *kind_of_it, said = expected

    assert kind_of_it == [failure.failure_class, failure.condition]
    assert failure.reason.startswith(said)
    assert ("out", 0) == (failure.query, failure.batch)
    assert failure.host in {socket.gethostname(), "127.0.0.1", "localhost"}
    assert not list(place.output.glob("*.parquet"))
