"""The guard of a declaration, without a JVM; with one: tests/spark/test_mistakes.py."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from airflow_provider.runtime.driver.job_checks import declares_only
from airflow_provider.runtime.errors import ConfigError


def started(writer: Any) -> Any:
    """Call what PySpark's class has at this moment."""
    return vars(DataStreamWriter)["start"](writer)


GUARDED = [
    (DataStreamWriter, "start"),
    (DataStreamWriter, "toTable"),
    (SparkSession, "stop"),
    (SparkContext, "stop"),
]


@pytest.mark.parametrize(("owner", "name"), GUARDED, ids=str)
def test_a_declaration_starts_and_stops_nothing(owner, name):
    """The call is refused before PySpark has it; behind the declaration it is PySpark's again."""
    before = vars(owner)[name]

    with declares_only(), pytest.raises(ConfigError, match="a job's function"):
        getattr(owner, name)(None)

    assert before is vars(owner)[name]


def test_declarations_overlap():
    """
    Those of two jobs in one process: the first to end does not let the other one start a query,
    the last one leaves PySpark as it was, and what declares nothing is not concerned.
    """
    before = vars(DataStreamWriter)["start"]
    is_declaring, is_other_done, raised = threading.Event(), threading.Event(), []

    def declare() -> None:
        with declares_only():
            is_declaring.set()
            assert is_other_done.wait(10)
            try:
                started(None)
            except ConfigError as error:
                raised.append(error)

    other = threading.Thread(target=declare)
    with declares_only():
        other.start()
        assert is_declaring.wait(10)
    with pytest.raises(AttributeError):  # PySpark's own, of no DataFrame
        started(None)
    is_other_done.set()
    other.join()

    assert 1 == len(raised)
    assert before is vars(DataStreamWriter)["start"]
