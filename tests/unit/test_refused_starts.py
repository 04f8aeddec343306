"""Refusals of Spark before a query's first batch: found before the start, or never tried again."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark import SparkContext, java_gateway
from pyspark.errors import AnalysisException, IllegalArgumentException

from airflow_provider.runtime.cli.run_command import stop_on_signals
from airflow_provider.runtime.entry_point import load_before_spark
from airflow_provider.runtime.errors import ConfigError, NotAStreamError
from airflow_provider.runtime.errors.explanation import FailureClass, location_of
from airflow_provider.runtime.failures.classify import classify, refusal_of
from airflow_provider.runtime.queries import planned_operators
from airflow_provider.runtime.queries import query as queries
from airflow_provider.runtime.sinks.spark_sink import ForeachSink, TableSink, spark_sink
from airflow_provider.runtime.spark.session import _stopped_by_this_process
from tests.unit.recorded_failures import JavaThrowable

STATE = "\n=== Streaming Query ===\nCurrent Committed Offsets: {{}}\n\nCurrent State: {}\n"
SAID = "Options 'a' and 'b' can't be both set at the same time"


def ended(state: str, kind: str) -> Exception:
    """Return the error of a query as PySpark has it, with the JVM's cause."""
    link = {"classes": [f"java.lang.{kind}", "java.lang.RuntimeException"], "message": SAID}
    error = RuntimeError(f"[STREAM_FAILED] Query terminated: {SAID}{STATE.format(state)}")
    error._origin = JavaThrowable([link])  # type: ignore[attr-defined]  # as PySpark's
    return error


@pytest.mark.parametrize("kind", ["IllegalArgumentException", "UnsupportedOperationException"])
def test_what_spark_refuses_before_the_first_batch_is_not_tried_again(kind):
    """
    An option that Spark refuses when it makes the query will be refused by the next start, too; the
    same error in the middle of a batch may pass.
    """
    failure = classify(ended("INITIALIZING", kind))

    assert (FailureClass.NON_RECOVERABLE, False) == (failure.failure_class, failure.restartable)
    assert SAID == failure.reason
    assert FailureClass.RECOVERABLE is classify(ended("ACTIVE", kind)).failure_class


def test_an_outage_at_the_start_of_a_query_stays_one():
    """A server that does not answer when the query is made is no mistake of the job."""
    link = {"classes": ["java.net.ConnectException"], "message": "Connection refused"}
    error = RuntimeError(f"[STREAM_FAILED] x{STATE.format('INITIALIZING')}")
    error._origin = JavaThrowable([link])  # type: ignore[attr-defined]  # as PySpark's

    assert FailureClass.RECOVERABLE is classify(error).failure_class


class Plan:
    """A plan of Spark's that cannot be made."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def executedPlan(self) -> Any:  # noqa: N802 - Spark's own name
        raise self._error


def test_a_plan_that_spark_refuses_is_told_from_one_that_we_cannot_look_at(monkeypatch, caplog):
    """
    Spark's own refusal is the job's mistake; what a version of Spark does not let us see is not.
    """
    no_frame: Any = None
    refused = AnalysisException("Streaming aggregation doesn't support group aggregate pandas UDF")
    monkeypatch.setattr(planned_operators, "_plan_batch", lambda *_: Plan(refused))
    with pytest.raises(AnalysisException, match="pandas UDF"):
        planned_operators.plan_operators(no_frame, "append", [])

    bug = AnalysisException("[INTERNAL_ERROR] of Spark")
    monkeypatch.setattr(bug, "getCondition", lambda: "INTERNAL_ERROR")
    for error in (bug, Py4JError("no such constructor")):
        monkeypatch.setattr(planned_operators, "_plan_batch", lambda *_, e=error: Plan(e))
        assert None is planned_operators.plan_operators(no_frame, "append", [])
    assert 2 == caplog.text.count("stateful operators are not known")


def test_all_that_spark_refuses_of_a_query_is_said_at_once(monkeypatch):
    """
    A sink without its connector and a plan that is no stream's are one error, which is not tried
    as a batch job: its sink would be missing there as well.
    """
    query: Any = SimpleNamespace(name="q")
    for number in (2, 1):
        found = [ConfigError("no connector"), NotAStreamError("no stream")][-number:]
        expected = "; ".join(map(str, found))
        monkeypatch.setattr(queries, "_of_sink", lambda _, f=found: iter(f[:-1]))
        monkeypatch.setattr(queries, "_of_plan", lambda _, f=found: iter(f[-1:]))
        with pytest.raises(ConfigError) as raised:
            queries.check_query(query)
        assert expected == str(raised.value)
        assert (number == 1) == isinstance(raised.value, NotAStreamError)


def test_a_refused_query_is_the_class_that_its_caller_asks_for():
    """A mistake is of that class, and an outage stays an outage."""
    error = IllegalArgumentException("both set")

    refused = refusal_of(error, "query 'q': both set", mistake=NotAStreamError)

    assert isinstance(refused, NotAStreamError)
    assert not isinstance(refusal_of(TimeoutError("t"), mistake=NotAStreamError), ConfigError)


def test_a_connector_is_looked_for_where_spark_looks_for_one():
    """What Spark has built in, a function or a table of a catalog has no connector."""
    sinks = [spark_sink("kafka"), spark_sink("memory"), ForeachSink(print)]
    sinks.append(TableSink("t", None, {}, ()))

    assert ["kafka", None, None, None] == [sink.provider for sink in sinks]


def test_a_file_is_named_from_where_python_imports_it(monkeypatch):
    """
    Two modules of one name are told apart; a file that Python does not import has its name alone.
    """
    monkeypatch.setattr(sys, "path", ["/jobs", "/jobs/shared", "relative"])

    assert "etl/load/__init__.py:4" == location_of("/jobs/etl/load/__init__.py", 4)
    assert "sums.py:5" == location_of("/jobs/shared/sums.py", 5)
    assert "main.py:6" == location_of("/jobs/main.py", 6)
    assert "job.py:7" == location_of("/elsewhere/job.py", 7)


@pytest.mark.slow
def test_a_jvm_leaves_the_signal_to_the_driver():
    """A JVM that is started ignores SIGTERM, and what PySpark prepares in it stays."""
    tell = "import signal as s; print(s.getsignal(s.SIGTERM).name, s.getsignal(s.SIGINT).name)"
    command = [sys.executable, "-c", tell]

    def leave_sigint() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    gateway: Any = java_gateway
    before = gateway.Popen
    with _stopped_by_this_process():
        process = gateway.Popen(command, stdout=subprocess.PIPE, preexec_fn=leave_sigint, text=True)
    said, _ = process.communicate(timeout=60)

    assert "SIG_IGN SIG_IGN" == said.strip()
    assert before is gateway.Popen


def test_a_signal_that_comes_twice_is_told_once(monkeypatch, caplog):
    """A service sends SIGTERM to a process and to its group: the run is stopped once."""
    handlers: dict[int, Any] = {}
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    stop = threading.Event()
    stop_on_signals(stop)

    with caplog.at_level(logging.INFO):
        handlers[signal.SIGTERM](signal.SIGTERM, None)
        stop.clear()  # the attempt has taken it
        handlers[signal.SIGTERM](signal.SIGTERM, None)

    assert 1 == caplog.text.count("SIGTERM: stopping")
    assert not stop.is_set()


@pytest.mark.parametrize(
    "line", ["triple = F.udf(lambda n: 3 * n, 'long')", "KEY = F.col('k')", "NOW = F.lit(1) + 1"]
)
def test_a_file_that_needs_spark_when_it_is_imported_is_imported_later(tmp_path, monkeypatch, line):
    """
    Much of PySpark works only when Spark has started, also at the top of a file; a mistake of the
    file's own is refused before that, wherever it is.
    """
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(sys, "path", [*sys.path])
    text = f"from pyspark.sql import functions as F\n{line}\ndef job(ctx): ...\n"
    (tmp_path / "job.py").write_text(text)
    (tmp_path / "mistaken.py").write_text(text.replace("F.", "F.no_such_"))

    load_before_spark(f"{tmp_path}/job.py:job")
    with pytest.raises(ConfigError, match=r"importing .*mistaken.py failed: AttributeError"):
        load_before_spark(f"{tmp_path}/mistaken.py:job")
