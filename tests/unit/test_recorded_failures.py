"""Classification of failures that Spark has really raised."""

from __future__ import annotations

import socket
import sys
import types
from typing import Any

import pytest

from airflow_provider.runtime.errors.explanation import FailureClass
from airflow_provider.runtime.failures.classify import FailureOverrides, classify, fails_as
from tests.unit.recorded_failures import RECORDED, JavaThrowable, recorded

NON_RECOVERABLE, DATA_MISSING, ENVIRONMENT = (
    FailureClass.NON_RECOVERABLE,
    FailureClass.DATA_MISSING,
    FailureClass.ENVIRONMENT,
)

EXPECTED = {
    "udf_raises_on_a_row": (NON_RECOVERABLE, "BadRow", "cannot parse row 'bad'"),
    "udf_divides_by_zero": (
        NON_RECOVERABLE,
        "ZeroDivisionError",
        "integer division or modulo by zero",
    ),
    "udf_imports_what_is_missing": (
        NON_RECOVERABLE,
        "ModuleNotFoundError",
        "No module named 'nosuchmodule'",
    ),
    "callback_raises": (NON_RECOVERABLE, "BadRow", "in foreachBatch"),
    "batch_not_read": (
        NON_RECOVERABLE,
        "STATE_STORE_COMMIT_VALIDATION_FAILED",
        "the function of for_each_batch has not read all rows of its batch",
    ),
    "sql_divides_by_zero": (NON_RECOVERABLE, "DIVIDE_BY_ZERO", "a row divides by zero"),
    "sql_cast_of_a_bad_value": (NON_RECOVERABLE, "CAST_INVALID_INPUT", "The value 'ok'"),
    "unknown_column": (
        NON_RECOVERABLE,
        "UNRESOLVED_COLUMN.WITH_SUGGESTION",
        "with name `nope` cannot be resolved",
    ),
    "state_of_another_schema": (
        NON_RECOVERABLE,
        "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE",
        "Provided key schema does not match",
    ),
    "offset_log_unreadable": (NON_RECOVERABLE, "MALFORMED_LOG_FILE", "Log file was malformed"),
    "input_file_deleted": (DATA_MISSING, "FileNotFoundException", "b.txt does not exist"),
    "path_missing": (DATA_MISSING, "PATH_NOT_FOUND", "Path does not exist: "),
    "state_file_deleted": (
        DATA_MISSING,
        "CANNOT_LOAD_STATE_STORE.CANNOT_READ_DELTA_FILE_NOT_EXISTS",
        "An error occurred during loading state.",
    ),
    "disk_full": (ENVIRONMENT, "FSError", "No space left on device"),
    "python_worker_killed": (
        ENVIRONMENT,
        "SparkException",
        "Python worker exited unexpectedly (crashed).",
    ),
    "executor_killed": (
        ENVIRONMENT,
        "SparkException",
        "ExecutorLostFailure (executor 2 exited caused by one of the running tasks)",
    ),
    "jvm_killed": (ENVIRONMENT, "Py4JNetworkError", "Spark's JVM has ended"),
}


class BadRow(ValueError):  # noqa: N818 - the name that was recorded
    """What the recorded job has raised."""


@pytest.fixture(autouse=True)
def rowjob(monkeypatch):
    """The recorded job's module, as it is imported in its driver."""
    BadRow.__module__ = "rowjob"
    module = types.ModuleType("rowjob")
    vars(module)["BadRow"] = BadRow
    monkeypatch.setitem(sys.modules, "rowjob", module)
    return module


def test_every_recorded_failure_is_expected_to_be_something():
    """No record lies about that no test reads."""
    assert sorted(RECORDED) == sorted(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_real_failure_has_class_condition_and_reason(name):
    """
    A failure that Spark has raised is of the right class, and names what failed, not what wraps it.
    """
    failure_class, condition, reason = EXPECTED[name]
    failure = classify(recorded(name), query="daily", batch=3)

    assert (failure_class, condition) == (failure.failure_class, failure.condition)
    assert reason in failure.reason
    assert ("daily", 3) == (failure.query, failure.batch)


@pytest.mark.parametrize(
    ("name", "root_cause"),
    [
        ("udf_raises_on_a_row", "rowjob.BadRow: cannot parse row 'bad'"),
        ("input_file_deleted", "java.io.FileNotFoundException: File file:"),
        ("state_file_deleted", "java.io.FileNotFoundException: File file:"),
        ("disk_full", "java.io.IOException: No space left on device"),
        ("sql_divides_by_zero", "org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO]"),
        ("jvm_killed", "py4j.protocol.Py4JNetworkError: Answer from Java side is empty"),
    ],
)
def test_the_root_cause_is_the_innermost_error(name, root_cause):
    """However deep the JVM hides it, the first error of all is in the record."""
    assert classify(recorded(name)).root_cause.startswith(root_cause)


@pytest.mark.parametrize(
    ("name", "host", "executor"),
    [
        ("executor_killed", "192.0.2.2", "2"),
        ("python_worker_killed", "192.0.2.2", None),  # run by the driver's own executor
        ("unknown_column", socket.gethostname(), None),  # nobody is blamed: it was the driver
    ],
)
def test_the_host_is_the_one_that_spark_blames(name, host, executor):
    """What has failed on an executor is not blamed on the driver's machine."""
    failure = classify(recorded(name))

    assert (host, executor) == (failure.host, failure.executor)


@pytest.mark.parametrize(
    ("name", "restartable"),
    [
        ("executor_killed", True),
        ("disk_full", True),
        ("jvm_killed", False),  # the driver has nothing left to start it with
        ("state_file_deleted", False),
        ("udf_raises_on_a_row", False),
    ],
)
def test_what_a_restart_in_the_driver_may_heal(name, restartable):
    """A query is started again only where that may help."""
    assert restartable is classify(recorded(name)).restartable


def test_a_type_that_nobody_knows_is_worth_a_retry(monkeypatch):
    """Of a type that the driver has not imported, only the name is known: no kind that repeats."""
    monkeypatch.delitem(sys.modules, "rowjob")
    failure = classify(recorded("udf_raises_on_a_row"))

    assert (FailureClass.RECOVERABLE, "BadRow") == (failure.failure_class, failure.condition)


@pytest.mark.parametrize("name", ["udf_raises_on_a_row", "callback_raises"])
def test_a_mark_survives_the_way_from_a_python_worker(rowjob, name):
    """
    Of what a worker has raised only text comes back, and the mark of its type counts all the same.
    """
    rowjob.BadRow = fails_as(FailureClass.DATA_MISSING)(type("BadRow", (ValueError,), {}))
    failure = classify(recorded(name))

    assert DATA_MISSING is failure.failure_class
    assert ("BadRow", "the job's author has set this class") == (failure.condition, failure.rule)


@pytest.mark.parametrize(
    "listed", ["rowjob.BadRow", "BadRow", "ValueError", "org.apache.spark.SparkException"]
)
def test_a_listed_name_decides(rowjob, listed):
    """
    A type listed by name, its own or one above it, of Python or the JVM, comes before the table.
    """
    names = ("executor_killed",) if "spark" in listed else ("udf_raises_on_a_row",)
    marks = FailureOverrides.parse({listed: "data-missing"})

    assert [DATA_MISSING] == [classify(recorded(n), marks=marks).failure_class for n in names]


def test_a_listed_name_needs_no_import(monkeypatch):
    """A type that the driver has not imported is known by the name in the worker's traceback."""
    monkeypatch.delitem(sys.modules, "rowjob")
    marks = FailureOverrides.parse(["rowjob.BadRow=NON_RECOVERABLE"])

    assert NON_RECOVERABLE is classify(recorded("udf_raises_on_a_row"), marks=marks).failure_class


def test_a_jvm_that_is_gone_leaves_what_was_told():
    """When the JVM can no longer be asked, the class comes from the texts."""

    class Gone(JavaThrowable):
        def getClass(self):  # noqa: N802 - Java's own name
            raise ConnectionRefusedError

    error: Any = recorded("input_file_deleted")
    assert error._cause is not None
    error._cause._origin = Gone([])
    error._origin = Gone([])

    assert DATA_MISSING is classify(error).failure_class
