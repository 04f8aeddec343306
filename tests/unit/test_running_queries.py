"""Queries that a driver runs: a stream can do more than a batch job, and Spark may publish."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider.runtime.queries.batch import BatchQuery
from airflow_provider.runtime.queries.running import Stream, give_up_open, publish
from airflow_provider.runtime.queries.streaming import StreamQuery
from airflow_provider.runtime.sinks.spark_sink import ReportedRows, spark_sink

DEFINITION: Any = SimpleNamespace(name="q", sources=())


class Committer:
    """A committer that notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def commit_through(self, batch: int) -> None:
        self.asked.append(batch)

    def give_up_open(self) -> None:
        self.asked.append("give up")


def a_stream(epochs: Any) -> StreamQuery:
    checkpoint = SimpleNamespace(url="/c")
    position = SimpleNamespace(last_commit=4)
    logs: Any = SimpleNamespace(checkpoint=checkpoint, position=lambda: position)
    given: Any = {"clock": None, "policy": None, "trigger": {}}
    return StreamQuery(DEFINITION, checkpoint=checkpoint.url, logs=logs, epochs=epochs, **given)


def test_a_batch_job_is_no_stream():
    """The driver neither halts it nor starts it again."""
    given: Any = {"logs": None, "committer": Committer(), "clock": None, "record_input": None}

    assert isinstance(a_stream(Committer()), Stream)
    assert not isinstance(BatchQuery(DEFINITION, **given), Stream)


@pytest.mark.parametrize("is_sparks", [False, True])
def test_epochs_are_published_unless_spark_publishes_alone(is_sparks):
    """A sink of Spark's has no committer, and its rows are counted all the same."""
    committer = Committer()
    query = a_stream(ReportedRows(spark_sink("noop")) if is_sparks else committer)

    publish(query)
    give_up_open(query)

    assert ([] if is_sparks else [4, "give up"]) == committer.asked
    assert is_sparks == (query.committer is None)
    assert is_sparks == isinstance(query.counts, ReportedRows)
