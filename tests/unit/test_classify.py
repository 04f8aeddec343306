"""Failures by class, and what each class means for the exit code."""

from __future__ import annotations

import errno
import json

import pytest

from airflow_provider.runtime.errors import (
    EXIT_FATAL,
    EXIT_RETRY,
    AbsentInputError,
    CheckpointError,
    ConfigError,
    JobDrainedError,
    OutageError,
    RunFailedError,
    SinkError,
)
from airflow_provider.runtime.errors.explanation import FailureClass
from airflow_provider.runtime.failures.classify import classify, refusal_of

NON_RECOVERABLE, DATA_MISSING, ENVIRONMENT, RECOVERABLE = (
    FailureClass.NON_RECOVERABLE,
    FailureClass.DATA_MISSING,
    FailureClass.ENVIRONMENT,
    FailureClass.RECOVERABLE,
)


class SparkError(Exception):
    """An error with a condition, as PySpark's are."""

    def __init__(self, condition: str | None, message: str = "") -> None:
        super().__init__(message)
        self.condition = condition

    def getCondition(self) -> str | None:  # noqa: N802 - PySpark's own name
        return self.condition


class AnalysisException(SparkError):  # noqa: N818 - PySpark's own name
    """Has the name of one of PySpark's."""


class StreamingQueryException(SparkError):  # noqa: N818 - PySpark's own name
    """Has the name of one of PySpark's."""


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "failure_class"),
    [
        (OSError(28, "No space left on device"), ENVIRONMENT),
        (OSError(122, "Disk quota exceeded"), ENVIRONMENT),
        (SparkError("STREAM_FAILED", "java.lang.OutOfMemoryError: Java heap space"), ENVIRONMENT),
        (SparkError(None, "ExecutorLostFailure (executor 1 exited)"), ENVIRONMENT),
        (SparkError("FAILED_READ_FILE.NO_HINT", "Encountered error"), RECOVERABLE),
        (SparkError("FAILED_READ_FILE.FILE_NOT_EXIST", ""), DATA_MISSING),
        (
            SparkError(
                "STREAM_FAILED",
                "java.lang.IllegalStateException: Cannot load current offset at snapshot 5, the "
                "snapshot was expired or removed",
            ),
            DATA_MISSING,
        ),
        (SparkError("DELTA_TRUNCATED_TRANSACTION_LOG", ""), DATA_MISSING),
        (
            SparkError(
                "FAILED_READ_FILE.FILE_NOT_EXIST",
                "Caused by: java.io.FileNotFoundException: /in/1.csv (Permission denied)",
            ),
            NON_RECOVERABLE,
        ),
        (
            SparkError(
                "CANNOT_LOAD_STATE_STORE.FAILED_TO_GET_CHANGELOG_WRITER",
                "Caused by: java.io.FileNotFoundException: /state/.2.tmp (Permission denied)",
            ),
            NON_RECOVERABLE,
        ),
        (SparkError("CANNOT_LOAD_STATE_STORE.FAILED_TO_GET_CHANGELOG_WRITER", ""), RECOVERABLE),
        (SparkError(None, "java.io.FileNotFoundException: File /in/1.csv"), DATA_MISSING),
        (SparkError(None, "OffsetOutOfRangeException: partition 3"), DATA_MISSING),
        (
            SparkError(
                "STREAM_FAILED",
                "KafkaIllegalStateException: Some data may have been lost because they are not "
                "available in Kafka any more;",
            ),
            DATA_MISSING,
        ),
        (
            SparkError(
                "STREAM_FAILED",
                "ExecutionException: org.apache.kafka.common.errors.TopicAuthorizationException: "
                "Topic authorization failed.",
            ),
            NON_RECOVERABLE,
        ),
        (
            SparkError(
                "STREAM_FAILED",
                "ExecutionException: org.apache.kafka.common.errors.SaslAuthenticationException: "
                "Authentication failed during authentication due to invalid credentials",
            ),
            NON_RECOVERABLE,
        ),
        (SparkError("CANNOT_LOAD_STATE_STORE.CANNOT_READ_DELTA_FILE", ""), DATA_MISSING),
        (AnalysisException("UNRESOLVED_COLUMN.WITH_SUGGESTION", "no column"), NON_RECOVERABLE),
        (SparkError("STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE", ""), NON_RECOVERABLE),
        (SparkError("STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA"), NON_RECOVERABLE),
        (SparkError("UNSUPPORTED_FEATURE.X", ""), NON_RECOVERABLE),
        (PermissionError(13, "Permission denied"), NON_RECOVERABLE),
        (TypeError("'NoneType' object is not callable"), NON_RECOVERABLE),
        (AttributeError("no attribute"), NON_RECOVERABLE),
        (ModuleNotFoundError("No module named 'x'"), NON_RECOVERABLE),
        (SparkError("UDF_ERROR", "Traceback …\nNameError: name 'y'"), NON_RECOVERABLE),
        (ConfigError("wrong"), NON_RECOVERABLE),
        (JobDrainedError("drained"), NON_RECOVERABLE),
        (CheckpointError("contradiction"), NON_RECOVERABLE),
        (SinkError("not now"), RECOVERABLE),
        (ConnectionResetError("reset"), RECOVERABLE),
        (ValueError("whatever"), RECOVERABLE),
        (SparkError("STREAM_FAILED", "something else"), RECOVERABLE),
        (RuntimeError(), RECOVERABLE),
    ],
    ids=lambda value: value.value if isinstance(value, FailureClass) else repr(value)[:50],
)
def test_an_error_has_a_class(error, failure_class):
    """
    The table decides by types, conditions and messages; what it does not know is worth a retry.
    """
    assert failure_class is classify(error).failure_class


@pytest.mark.parametrize(
    ("error", "failure_class"),
    [
        (
            caused(StreamingQueryException("STREAM_FAILED"), TypeError("not callable")),
            NON_RECOVERABLE,
        ),
        (caused(RuntimeError("wrapped"), OSError(28, "No space left on device")), ENVIRONMENT),
        (caused(RuntimeError("wrapped"), caused(ValueError(), ConfigError("x"))), NON_RECOVERABLE),
        (caused(RuntimeError("wrapped"), caused(ValueError(), KeyError("k"))), RECOVERABLE),
    ],
)
def test_a_cause_decides_as_well(error, failure_class):
    """What is wrapped, however deep, decides the class."""
    assert failure_class is classify(error).failure_class


def test_the_machine_comes_before_the_program():
    """An error of the machine's that shows up as another one is the machine's."""
    error = caused(TypeError("half a file"), OSError(28, "No space left on device"))

    assert ENVIRONMENT is classify(error).failure_class


def test_causes_that_go_in_a_circle_end():
    """An exception that is its own cause's cause is classified all the same."""
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first

    assert RECOVERABLE is classify(first).failure_class


@pytest.mark.long
def test_what_a_failure_says():
    """
    A failure names the condition, the query and the first line of the message, at bounded length.
    """
    error = SparkError("STREAM_FAILED", "\n  [STREAM_FAILED] first line\nsecond line")
    failure = classify(error, query="daily")

    assert "STREAM_FAILED" == failure.condition
    assert "[STREAM_FAILED] first line" == failure.reason
    assert "RECOVERABLE: query 'daily': [STREAM_FAILED] first line" == failure.describe()
    assert 500 == len(classify(ValueError("x" * 9999)).reason)


def test_an_error_without_words_or_condition():
    """Without a message and a condition the exception's type stands for both."""
    failure = classify(SparkError(None))

    assert ("SparkError", "SparkError") == (failure.condition, failure.reason)
    assert "RECOVERABLE: SparkError" == failure.describe()


@pytest.mark.parametrize(
    ("failure_class", "exit_code"),
    [
        (NON_RECOVERABLE, EXIT_FATAL),
        (DATA_MISSING, EXIT_RETRY),
        (ENVIRONMENT, EXIT_RETRY),
        (RECOVERABLE, EXIT_RETRY),
    ],
)
def test_only_a_hopeless_failure_is_final(failure_class, exit_code):
    """The exit code says whether the same command is worth another try."""
    errors = {
        NON_RECOVERABLE: TypeError("t"),
        DATA_MISSING: SparkError(None, "FileNotFoundException"),
        ENVIRONMENT: SparkError(None, "OutOfMemoryError"),
        RECOVERABLE: ValueError("v"),
    }
    failure = classify(errors[failure_class])

    assert failure_class is failure.failure_class
    assert exit_code == RunFailedError(failure).exit_code


def test_a_failure_is_plain_json():
    """A failure is stored in the attempt's document."""
    raw = classify(TypeError("t"), query="q").to_dict()

    assert raw == json.loads(json.dumps(raw))
    assert "NON_RECOVERABLE" == raw["failure_class"]


def test_a_failed_run_says_its_failure():
    """The error of a failed run reads as its failure does."""
    failure = classify(TypeError("t"), query="q")

    assert failure.describe() == str(RunFailedError(failure))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), OutageError),
        (TimeoutError("timed out"), OutageError),
        (OSError(errno.ENOSPC, "No space left on device"), OutageError),
        (OSError("Generic S3 error: error sending request for url"), OutageError),
        (PermissionError(errno.EACCES, "Permission denied"), ConfigError),
        (FileNotFoundError(errno.ENOENT, "no such file"), AbsentInputError),
        (TypeError("no such option"), ConfigError),
        (Exception("something else"), ConfigError),
    ],
)
def test_an_outage_at_the_start_is_no_mistake_of_the_caller(error, expected):
    """What does not answer before anything is written may answer a retry; a mistake never will."""
    refused = refusal_of(error, "the thing, and the fix")

    assert expected is type(refused)
    assert "the thing, and the fix" == refused.parts.what
    classes = {OutageError: RECOVERABLE, AbsentInputError: DATA_MISSING}
    assert classes.get(expected, NON_RECOVERABLE) == classify(refused).failure_class
