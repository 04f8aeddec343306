"""The table of failures: what it stands on, and that it is what the documentation shows."""

from __future__ import annotations

import json
import socket
import zipfile
from contextlib import closing
from fnmatch import fnmatchcase
from pathlib import Path

import pyspark
import pytest
from py4j.java_gateway import GatewayClient, GatewayConnection, GatewayParameters
from py4j.protocol import Py4JError, get_return_value
from pyspark.errors.error_classes import ERROR_CLASSES_MAP

from airflow_provider.runtime.errors import (
    ConfigError,
    CorruptDocumentError,
    LeaseLostError,
    MissingStateError,
    RevertError,
    RunFailedError,
    SinkError,
)
from airflow_provider.runtime.errors.explanation import Failure, FailureClass
from airflow_provider.runtime.failures.causes import errors_in, location_in
from airflow_provider.runtime.failures.classify import classify, fails_as
from airflow_provider.runtime.failures.conditions import WRAPPING_CONDITIONS, decides_nothing
from airflow_provider.runtime.failures.rule import Rule
from airflow_provider.runtime.failures.rules import (
    RULES,
    UNANSWERED,
    describe_rules,
    find_rule,
)
from tests.unit.recorded_failures import recorded

ROOT = Path(__file__).resolve().parents[2]
OF_CONNECTORS = {  # in packages that Spark does not come with
    "KAFKA_DATA_LOSS*",
    "DELTA_LOG_FILE_NOT_FOUND_FOR_STREAMING_SOURCE",
    "DELTA_MISSING_FILES_UNEXPECTED_VERSION",
    "DELTA_TRUNCATED_TRANSACTION_LOG",
    "DELTA_VERSIONS_NOT_CONTIGUOUS",
}
SINCE_4_3 = {
    "CANNOT_INSTANTIATE_HIVE_FUNCTION",
    "CONCURRENT_SCHEDULER_INSUFFICIENT_SLOT",
    "INVALID_EXECUTOR_MEMORY.SYSTEM_MEMORY",
    "STREAMING_CHECKPOINT_LOG_WRITE_FAILURE.COMMIT_LOG",
    "STREAMING_ASYNC_OPERATION_FAILED",
    "STREAM_STREAM_JOIN_INCOMPATIBLE_STATE_STORE_CONFIGS",
    "UDT_CLASS_NOT_FOUND*",
}
TOO_NEW = SINCE_4_3 if tuple(map(int, pyspark.__version__.split(".")[:2])) < (4, 3) else set()

NON_RECOVERABLE, DATA_MISSING, ENVIRONMENT, RECOVERABLE = (
    FailureClass.NON_RECOVERABLE,
    FailureClass.DATA_MISSING,
    FailureClass.ENVIRONMENT,
    FailureClass.RECOVERABLE,
)


@pytest.fixture(scope="module")
def spark_conditions() -> dict[str, str]:
    """Spark's own list of its error conditions: the SQLSTATE by name."""
    jars = Path(pyspark.__file__).parent / "jars"
    (jar,) = [path for path in jars.glob("spark-common-utils_*.jar") if "java" not in path.name]
    with zipfile.ZipFile(jar) as archive:
        names = {"error/error-conditions.json", "error/error-classes.json"}  # the latter: Spark 3.5
        raw = json.loads(archive.read(max(names & {*archive.namelist()})))
    found = {}
    for name, entry in raw.items():
        state = entry.get("sqlState", "")
        found[name] = state
        found |= {f"{name}.{under}": state for under in entry.get("subClass", {})}
    return found


class Several(Exception):  # noqa: N818 - a group
    """What an ``ExceptionGroup`` is, which Python has from 3.11."""

    def __init__(self, *exceptions: BaseException) -> None:
        super().__init__("several")
        self.exceptions = exceptions


def said(condition: str, state: str) -> BaseException:
    """Return an error as the JVM tells of it."""
    error = type("StreamingQueryException", (Exception,), {})
    suffix = f" SQLSTATE: {state}" if state else ""
    return error(f"[STREAM_FAILED] ended with exception: [{condition}] no more.{suffix}")


WORKER_CHAIN = """\
[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
  File "jobs.py", line 3, in look_up
jobs.NoRateError: no rate

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "jobs.py", line 5, in convert
KeyError: 'EUR'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "worker.py", line 3595, in main
OSError: x
"""


def test_a_worker_tells_its_causes_the_outermost_first():
    """Of a chained traceback each error is known, in the order of those of this process."""
    assert [("OSError", "x"), ("KeyError", "'EUR'"), ("jobs.NoRateError", "no rate")] == [
        told[:2] for told in errors_in(WORKER_CHAIN)
    ]


@pytest.mark.slow
def test_the_table_names_conditions_that_spark_has(spark_conditions):
    """A condition that Spark has given up, or that is misspelt, decides nothing."""
    listed = {name for rule in RULES for name in rule.conditions} - OF_CONNECTORS - TOO_NEW
    known = {n for n in listed if any(fnmatchcase(c, n) for c in spark_conditions)}

    assert listed == known
    assert {*spark_conditions, *ERROR_CLASSES_MAP} >= WRAPPING_CONDITIONS - TOO_NEW


def test_each_condition_of_sparks_has_a_decided_class(spark_conditions):
    """A condition that a new Spark brings is noticed, unless its SQLSTATE or its group decides."""
    undecided = {
        name: state
        for name, state in spark_conditions.items()
        if not any(_decides(rule, name, state) for rule in RULES) and not decides_nothing(name)
    }

    # Spark 3.5 gives few of them an SQLSTATE; there the exception's type decides.
    assert not any(undecided.values())
    assert not undecided or pyspark.__version__.startswith("3.")


def _decides(rule: Rule, condition: str, state: str) -> bool:
    by_state = bool(rule.sql_states) and state.startswith(rule.sql_states)
    return by_state or rule.is_about(condition)


def test_each_condition_of_pysparks_own_has_a_decided_class():
    """A condition that a new PySpark brings is noticed, unless its group decides."""
    decided = {
        name
        for name in ERROR_CLASSES_MAP
        if decides_nothing(name)
        or any(rule.is_about_pyspark(name) or rule.is_about(name) for rule in RULES)
    }

    assert set(ERROR_CLASSES_MAP) == decided


@pytest.mark.parametrize(
    ("condition", "failure_class"),
    [
        ("RESULT_ROWS_MISMATCH", NON_RECOVERABLE),
        ("RESULT_COLUMN_NAMES_MISMATCH", NON_RECOVERABLE),
        ("RESULT_COLUMN_TYPES_MISMATCH", NON_RECOVERABLE),
        ("RESULT_LENGTH_MISMATCH_FOR_PANDAS_UDF", NON_RECOVERABLE),  # Spark 3.5
        ("OUTPUT_EXCEEDS_INPUT_ROWS", NON_RECOVERABLE),
        ("STOP_ITERATION_OCCURRED", NON_RECOVERABLE),
        ("UDTF_RETURN_SCHEMA_MISMATCH", NON_RECOVERABLE),
        ("DATA_SOURCE_RETURN_SCHEMA_MISMATCH", NON_RECOVERABLE),
        ("CANNOT_OPEN_SOCKET", RECOVERABLE),
        ("BROADCAST_VARIABLE_NOT_LOADED", RECOVERABLE),
        ("UDTF_EXEC_ERROR", RECOVERABLE),
    ],
)
def test_a_condition_of_pysparks_own_has_a_class(condition, failure_class):
    """What a function of the job returns is the job's mistake; the way to a process may pass."""
    failed = said_by_worker(f"pyspark.errors.exceptions.base.PySparkRuntimeError: [{condition}] x")

    assert failure_class is classify(failed).failure_class


def said_by_worker(line: str) -> BaseException:
    """Return the error of a query whose Python worker has ended with that line."""
    text = (
        "[PYTHON_EXCEPTION] An exception was thrown from the Python worker: "
        f'Traceback (most recent call last):\n  File "worker.py", line 9, in main\n{line}\n'
    )
    return type("PythonException", (Exception,), {})(text)


@pytest.mark.parametrize(
    ("condition", "failure_class"),
    [
        ("CANNOT_WRITE_STATE_STORE.CANNOT_COMMIT", RECOVERABLE),  # CANNOT_* is PySpark's
        ("MALFORMED_CSV_RECORD", NON_RECOVERABLE),
        ("EMPTY_PARTITION_COLUMN_VALUE", NON_RECOVERABLE),
        ("FEATURE_NOT_ENABLED", NON_RECOVERABLE),
        ("MALFORMED_PROTOBUF_MESSAGE", NON_RECOVERABLE),
        ("STREAM_STREAM_JOIN_INCONSISTENT_STATE.KEY_INDEX", DATA_MISSING),
        ("DATA_SOURCE_EXTERNAL_ERROR", RECOVERABLE),
        ("OPERATION_CANCELED", RECOVERABLE),
    ],
)
def test_a_condition_without_a_telling_name_has_a_class(spark_conditions, condition, failure_class):
    """Conditions of data sources, functions and Spark itself are decided one by one."""
    state = spark_conditions.get(condition) or spark_conditions.get(condition.partition(".")[0], "")

    assert failure_class is classify(said(condition, state)).failure_class


def test_sql_states_of_the_table_are_spark_s(spark_conditions):
    """A class of SQLSTATEs in which Spark has no condition is a mistake."""
    listed = {state for rule in RULES for state in rule.sql_states}

    known = {s for s in listed if any(k.startswith(s) for k in spark_conditions.values())}

    assert listed == known


@pytest.mark.parametrize(
    ("condition", "failure_class"),
    [
        ("UNRESOLVED_COLUMN.WITH_SUGGESTION", NON_RECOVERABLE),
        ("TABLE_OR_VIEW_NOT_FOUND", NON_RECOVERABLE),
        ("UNRESOLVED_ROUTINE", NON_RECOVERABLE),
        ("CAST_INVALID_INPUT", NON_RECOVERABLE),
        ("ARITHMETIC_OVERFLOW", NON_RECOVERABLE),
        ("MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION", NON_RECOVERABLE),
        ("STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE", NON_RECOVERABLE),
        ("STATE_STORE_INVALID_CONFIG_AFTER_RESTART", NON_RECOVERABLE),
        ("STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA", NON_RECOVERABLE),
        ("CANNOT_LOAD_STATE_STORE.KEY_ROW_FORMAT_VALIDATION_FAILURE", NON_RECOVERABLE),
        ("INVALID_LOG_VERSION.MAX_SUPPORTED_VERSION", NON_RECOVERABLE),
        ("INVALID_EXECUTOR_MEMORY.SYSTEM_MEMORY", NON_RECOVERABLE),
        ("CANNOT_LOAD_FUNCTION_CLASS", NON_RECOVERABLE),
        ("PATH_NOT_FOUND", DATA_MISSING),
        ("BATCH_METADATA_NOT_FOUND", DATA_MISSING),
        ("CANNOT_LOAD_STATE_STORE.CANNOT_READ_MISSING_SNAPSHOT_FILE", DATA_MISSING),
        ("CANNOT_LOAD_STATE_STORE.UNEXPECTED_FILE_SIZE", DATA_MISSING),
        ("STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY", DATA_MISSING),
        ("CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED", DATA_MISSING),
        ("FAILED_READ_FILE.NO_HINT", RECOVERABLE),
        ("FAILED_READ_FILE.FILE_NOT_EXIST", DATA_MISSING),
        ("FAILED_READ_FILE.CANNOT_READ_FILE_FOOTER", NON_RECOVERABLE),
        ("CANNOT_LOAD_STATE_STORE.ROCKSDB_STORE_PROVIDER_OUT_OF_MEMORY", ENVIRONMENT),
        ("UNABLE_TO_ACQUIRE_MEMORY", ENVIRONMENT),
        ("SPILL_OUT_OF_MEMORY", ENVIRONMENT),
        ("CONCURRENT_SCHEDULER_INSUFFICIENT_SLOT", ENVIRONMENT),
        ("CANNOT_LOAD_STATE_STORE.UNRELEASED_THREAD_ERROR", RECOVERABLE),
        ("CANNOT_LOAD_STATE_STORE.UNCATEGORIZED", RECOVERABLE),
        ("CONCURRENT_STREAM_LOG_UPDATE", RECOVERABLE),
        ("STREAMING_CHECKPOINT_LOG_WRITE_FAILURE.COMMIT_LOG", RECOVERABLE),
        ("INTERNAL_ERROR_NETWORK", RECOVERABLE),
        ("TASK_WRITE_FAILED", RECOVERABLE),
    ],
)
def test_a_condition_of_sparks_has_a_class(spark_conditions, condition, failure_class):
    """
    The condition alone, with its SQLSTATE as Spark writes it, decides; wrappers decide nothing.
    """
    if condition in TOO_NEW:
        pytest.skip(f"Spark {pyspark.__version__} does not have it")
    failure = classify(said(condition, spark_conditions[condition]))

    assert failure_class is failure.failure_class
    assert condition in {failure.condition, "TASK_WRITE_FAILED"}


@pytest.mark.parametrize(
    ("text", "failure_class", "condition"),
    [
        (
            "Job aborted due to stage failure: Task 3 in stage 7.0 failed 4 times, most recent "
            "failure: Lost task 3.3 in stage 7.0 (TID 41) (10.0.0.5 executor 4): "
            "java.io.IOException: No space left on device\n\tat java.base/java.io.FileOutputStream",
            ENVIRONMENT,
            "IOException",
        ),
        (
            "Writing job failed\n\tat a.B.c(B.scala:1)\nCaused by: java.net.SocketTimeoutException:"
            " connect timed out\n\tat d.E.f(E.java:2)\n\t... 30 more",
            RECOVERABLE,
            "SocketTimeoutException",
        ),
        (
            "Cannot fetch offset\nCaused by: org.apache.kafka.clients.consumer."
            "OffsetOutOfRangeException: Fetch position 7 is out of range for partition t-0",
            DATA_MISSING,
            "OffsetOutOfRangeException",
        ),
        (
            "Task 0 failed\nCaused by: org.apache.hadoop.fs.ChecksumException: Checksum error: "
            "file:/jobs/a/state/0/0/5.delta at 0 exp: 1 got: 2",
            DATA_MISSING,
            "ChecksumException",
        ),
        (
            "Job aborted due to stage failure: ShuffleMapStage 4 has failed the maximum allowable "
            "number of times: 4. Most recent failure reason:\n"
            "org.apache.spark.shuffle.MetadataFetchFailedException: Missing an output location",
            DATA_MISSING,
            "MetadataFetchFailedException",
        ),
        (
            "Cannot connect\nCaused by: org.apache.hadoop.security.AccessControlException: "
            "Permission denied: user=spark, access=WRITE",
            NON_RECOVERABLE,
            "AccessControlException",
        ),
        (
            "Unable to instantiate the metastore client\n"
            "Caused by: java.net.ConnectException: Connection refused",
            RECOVERABLE,
            "ConnectException",
        ),
        (
            "An exception was thrown from the Python worker.\nTraceback (most recent call last):\n"
            "  File \"x.py\", line 1, in parse\nKeyError: 'rate'\n\nThe above exception was the "
            "direct cause of the following exception:\n\nTraceback (most recent call last):\n"
            '  File "x.py", line 2, in parse\nValueError: no rate\n',
            NON_RECOVERABLE,
            "ValueError",
        ),
        (
            "An exception was thrown from the Python worker.\nTraceback (most recent call last):\n"
            '  File "x.py", line 1, in ask\nrequests.exceptions.ConnectionError: reset by peer\n',
            RECOVERABLE,
            "ConnectionError",
        ),
        (
            "An exception was thrown from the Python worker.\nTraceback (most recent call last):\n"
            '  File "x.py", line 1, in f\nMemoryError\n',
            ENVIRONMENT,
            "MemoryError",
        ),
    ],
    ids=lambda value: str(value)[:30].replace("\n", " "),
)
def test_what_is_only_told_has_a_class(text, failure_class, condition):
    """
    Traces of executors and tracebacks of workers, in the text of an error, count as causes do.
    """
    outer = "AnalysisException" if "metastore" in text else "SparkException"
    failure = classify(type(outer, (Exception,), {})(text))

    assert (failure_class, condition) == (failure.failure_class, failure.condition)


@pytest.mark.parametrize(
    ("error", "failure_class"),
    [
        (MissingStateError("ckpt", 3, ("state/0/0/4.delta",)), DATA_MISSING),
        (CorruptDocumentError("not JSON"), NON_RECOVERABLE),
        (ConfigError("no such file"), NON_RECOVERABLE),
        (RevertError("not exactly"), NON_RECOVERABLE),
        (LeaseLostError("another"), RECOVERABLE),
        (SinkError("cannot stage"), RECOVERABLE),
        (MemoryError(), ENVIRONMENT),
        (OSError(24, "Too many open files"), ENVIRONMENT),
        (OSError(5, "Eingabe-/Ausgabefehler"), ENVIRONMENT),  # a number has no language
        (OSError(13, "Keine Berechtigung"), NON_RECOVERABLE),
        (FileNotFoundError(2, "No such file or directory"), DATA_MISSING),
        (TimeoutError("no answer"), RECOVERABLE),
        (KeyError("k"), RECOVERABLE),  # in a worker it would repeat; here it may be anybody's
        (Several(ValueError("v"), MemoryError()), ENVIRONMENT),
    ],
    ids=repr,
)
def test_an_error_of_the_driver_has_a_class(error, failure_class):
    """Our own errors, the operating system's numbers and Python's types decide without Spark."""
    assert failure_class is classify(error).failure_class


def test_a_jvm_that_does_not_listen_any_more_is_gone():
    """
    A refused connection is the machine's fault on the way to the JVM, and the network's elsewhere.
    """
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
    client = GatewayClient(gateway_parameters=GatewayParameters(port=port))
    connection = GatewayConnection(client.gateway_parameters)
    with closing(connection.socket), pytest.raises(Exception) as raised:  # noqa: PT011 - Py4J's
        connection.start()
    ours = classify(raised.value)

    assert (ENVIRONMENT, False) == (ours.failure_class, ours.restartable)
    assert RECOVERABLE is classify(ConnectionRefusedError("by a database")).failure_class


@pytest.mark.parametrize(
    ("answer", "expected"), [("", True), ("xsTraceback", False)], ids=["cut off", "whole"]
)
def test_an_answer_that_is_cut_off_says_that_the_jvm_has_ended(answer, expected):
    """Of a JVM that is killed in the middle of a call Py4J says nothing but which call it was."""
    with pytest.raises(Py4JError) as raised:
        get_return_value(answer, None, "o125", "isActive")
    failure = classify(raised.value)

    assert expected is (failure.rule == "the driver's JVM has ended")
    assert expected is (failure.failure_class is FailureClass.ENVIRONMENT)


def test_an_error_that_cannot_speak_any_more_is_named():
    """PySpark's errors ask the JVM for their text, which may be gone: the type is left."""

    def ask_the_jvm(_):
        raise ConnectionRefusedError

    members = {"__str__": ask_the_jvm, "getCondition": ask_the_jvm}
    mute = type("CapturedException", (Exception,), members)()
    failure = classify(mute)

    assert (RECOVERABLE, "CapturedException", "CapturedException") == (
        failure.failure_class,
        failure.condition,
        failure.reason,
    )


def test_what_pyspark_does_not_know_is_called_after_the_jvms_type():
    """Its text says of which type it is; one that does not is left as it is."""
    unknown = type("UnknownException", (Exception,), {})
    told, untold = unknown("a.b.OddException: it"), unknown("it")

    assert ("OddException", "it") == (classify(told).condition, classify(told).reason)
    assert ("UnknownException", "it") == (classify(untold).condition, classify(untold).reason)


def test_a_failed_run_keeps_its_failure():
    """What has been classified is not classified again."""
    failure = classify(recorded("disk_full"), query="daily", batch=7)

    assert failure is classify(RunFailedError(failure))


def test_a_failure_comes_back_from_its_document():
    """What is read is what was written, and documents of other versions are read, too."""
    failure = classify(recorded("executor_killed"), query="daily", batch=7)
    old = {
        "failure_class": "ENVIRONMENT",
        "reason": "r",
        "condition": "c",
        "query": None,
        "host": "h",
    }

    assert failure == Failure.from_dict(json.loads(json.dumps(failure.to_dict())))
    assert Failure(ENVIRONMENT, "r", "c", None, "h") == Failure.from_dict(old)
    assert RECOVERABLE is Failure.from_dict({"failure_class": "HAUNTED", "new": 1}).failure_class


def test_a_failure_is_described_in_one_line():
    """
    Class, line of the job, query, batch, condition, reason, and the cause beneath when it says more.
    """
    failure = classify(recorded("state_file_deleted"), query="daily", batch=7)
    line = failure.describe()

    where = "DATA_MISSING: probe3.py:7, query 'daily', batch 7: "
    assert line.startswith(f"{where}[CANNOT_LOAD_STATE_STORE.")
    assert "(FileNotFoundException: " in line
    assert "\n" not in line
    assert " (" not in classify(recorded("udf_raises_on_a_row")).describe()


HEADER = """\
java.lang.IllegalArgumentException: CSV header does not conform to the schema.
 Header: AGE, NAME
 Schema: NAME, AGE
Expected: NAME but found: AGE
CSV file: s3a://in/a.csv"""


@pytest.mark.parametrize(
    ("address", "cause", "failure_class"),
    [
        ("file:///in/a.csv", HEADER, NON_RECOVERABLE),
        ("file:///in/a:b.csv", "java.net.URISyntaxException: Relative path in absolute URI: .a:b", NON_RECOVERABLE),
        ("file:///in/a.gz", "java.io.EOFException: Unexpected end of input stream", NON_RECOVERABLE),
        ("file:///in/a.gz", "java.io.IOException: gzip stream CRC failure", NON_RECOVERABLE),
        ("file:///in/a.x", "a.b.OddException: whatever", NON_RECOVERABLE),
        ("file:///in/a.x", "org.apache.hadoop.fs.ChecksumException: Checksum error", NON_RECOVERABLE),
        ("file:///in/a.x", "java.io.FileNotFoundException: File /in/a.x does not exist", DATA_MISSING),
        ("file:///in/a.x", "java.io.FileNotFoundException: a.x (Permission denied)", NON_RECOVERABLE),
        ("file:///in/a.x", "java.io.IOException: Input/output error", ENVIRONMENT),
        ("s3a://in/a.csv", HEADER, NON_RECOVERABLE),
        ("s3a://in/a.orc", "org.apache.orc.FileFormatException: Malformed ORC file", NON_RECOVERABLE),
        ("s3a://in/a.zst", "com.github.luben.zstd.ZstdIOException: Unknown frame", NON_RECOVERABLE),
        ("s3a://in/a.x", "java.lang.RuntimeException: s3a://in/a.x is not a Parquet file", NON_RECOVERABLE),
        ("s3a://in/a.x", "java.net.SocketException: Connection reset", RECOVERABLE),
        ("s3a://in/a.x", "a.b.AWSStatus500Exception: (Service: Amazon S3; Status Code: 500)", RECOVERABLE),
        ("s3a://in/a.x", "java.io.IOException: it has ended early", RECOVERABLE),
        ("hdfs://in/a.x", "a.b.BlockMissingException: Could not obtain block", RECOVERABLE),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_not_a_missing_one(address, cause, failure_class):
    """
    What is wrong with the file itself is permanent; what a disk or a store does, may pass.
    """
    head = f"[FAILED_READ_FILE.NO_HINT] Encountered error while reading file {address}.  SQLSTATE: KD001"
    error = type("SparkException", (Exception,), {})(f"{head}\n\tat a.B.c(B:1)\nCaused by: {cause}")

    assert failure_class is classify(error).failure_class


REMOTE = "org.apache.hadoop.ipc.RemoteException"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (
            "java.io.IOException",
            "File /job/offsets/.7.tmp could only be written to 0 of the 1 minReplication nodes. There "
            "are 1 datanode(s) running and 1 node(s) are excluded in this operation.",
        ),
        (
            "org.apache.hadoop.hdfs.server.namenode.SafeModeException",
            "Cannot create file/job/offsets/.7.tmp. Name node is in safe mode.",
        ),
    ],
)
def test_hdfs_without_datanodes_is_an_outage_and_says_why(kind, words):
    """What Hadoop's server has raised stands in brackets behind its client's exception."""
    text = f"{REMOTE}({kind}): {words}\n\tat a.b.C.d(C.java:1)"
    query = type("StreamingQueryException", (Exception,), {})(
        f"[STREAM_FAILED] Query terminated with exception: {words}\n\nJVM stacktrace:\n{text}"
    )
    failure = classify(query)

    assert RECOVERABLE is failure.failure_class
    assert UNANSWERED == failure.rule
    assert words.split(". ")[0] in failure.root_cause
    assert [words, words] == [error.words for error in errors_in(text)]


@pytest.mark.parametrize(
    "words",
    [
        "Client cannot authenticate via:[TOKEN, KERBEROS]",
        "GSS initiate failed [Caused by GSSException: No valid credentials provided (Mechanism "
        "level: Failed to find any Kerberos tgt)]",
    ],
)
def test_a_ticket_that_has_expired_is_no_missing_permission(words):
    """Hadoop's client says AccessControlException of it, and a new ticket is all that it takes."""
    text = f"org.apache.hadoop.security.AccessControlException: {words}"
    query = type("StreamingQueryException", (Exception,), {})(
        f"[STREAM_FAILED] Query terminated with exception: DestHost:destPort namenode:8020\n\n"
        f"JVM stacktrace:\njava.io.IOException: DestHost:destPort namenode:8020\n\tat a.b.C.d(C:1)\n"
        f"Caused by: {text}\n\tat a.b.C.e(C:2)"
    )
    failure = classify(query)

    assert ENVIRONMENT is failure.failure_class
    assert "kinit" in failure.remedy


def test_all_of_what_is_wrong_with_a_file_is_told():
    """Spark's message about a header has several lines, and the columns are in the last ones."""
    unread = type("SparkException", (Exception,), {})(
        "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///in/a.csv."
    )
    unread.__cause__ = type("IllegalArgumentException", (Exception,), {})(HEADER.partition(": ")[2])
    failure = classify(unread)

    assert "/in/a.csv" == failure.input_file
    assert failure.root_cause.endswith("Expected: NAME but found: AGE CSV file: s3a://in/a.csv")
    assert "put a correct file under its name" in failure.remedy


@pytest.mark.parametrize(
    ("text", "host", "executor"),
    [
        ("Lost task 0.3 in stage 2.0 (TID 11) (10.0.0.5 executor 1): java.lang.E", "10.0.0.5", "1"),
        ("Lost executor 3 on worker-7.example: Remote RPC client", "worker-7.example", "3"),
        ("ExecutorLostFailure (executor 12 exited caused by x)", None, "12"),
        (
            "(TID 9) (here executor 1): FetchFailed(BlockManagerId(3, there, 7337, None), shuffleId=0",
            "there",
            "3",
        ),
        (
            "Container from a bad node: container_1 on host: node-4. Exit status: 137",
            "node-4",
            None,
        ),
        ("Lost task 0.0 in stage 0.0 (TID 0) (10.0.0.9 executor driver): E", "10.0.0.9", None),
        ("nobody is blamed", None, None),
    ],
)
def test_where_it_happened(text, host, executor):
    """The machine and the executor that a text blames; a lost fetch blames the one fetched from."""
    assert (host, executor) == location_in(text)


def test_frames_are_no_errors():
    """Types that stand in the frames of a trace did not fail."""
    text = (
        "failed\n\tat org.apache.spark.SparkException$.internalError(SparkException.scala:107)\n"
        "\tat java.io.FileNotFoundException.<init>(X.java:1)\nCaused by: a.b.RealError: it"
    )

    assert [("a.b.RealError", "it")] == [told[:2] for told in errors_in(text)]


def test_a_permanent_failure_names_what_helps():
    """A class is no advice: each rule has its own, or its errors have words of their own."""
    own = {"ConfigError", "LateRowsError"}
    silent = [
        rule
        for rule in RULES
        if rule.failure_class is NON_RECOVERABLE and not rule.remedy and own.isdisjoint(rule.types)
    ]

    assert [] == [rule.what for rule in silent if not classify(Exception(*rule.words)).remedy]
    assert (
        "not known here"
        in classify(fails_as(NON_RECOVERABLE)(type("Odd", (Exception,), {}))()).remedy
    )
    assert "stack trace" in classify(TypeError("no location")).describe()


def test_no_rule_is_hidden_behind_the_ones_before():
    """Every rule decides something that no earlier one does: its first sign, alone, finds it."""
    for rule in RULES:
        signs = [*rule.types, *(f"[{c}]" for c in rule.conditions if "*" not in c), *rule.words]
        if not signs:
            continue
        found = [find_rule_of(sign) for sign in signs]

        assert rule.what in found, rule.what


def find_rule_of(sign: str) -> str | None:
    from airflow_provider.runtime.failures.causes import causes_of

    name = sign if sign.isidentifier() else "Error"
    found = find_rule(causes_of(type(name, (Exception,), {})(sign)))
    return found[0].what if found else None


def test_the_documentation_leads_to_the_table():
    """docs/troubleshooting.md links the rules, of which the site shows the table."""
    shown = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")

    assert "(../airflow_provider/runtime/failures/rules.py)" in shown
    assert len(RULES) + 3 == len(describe_rules().splitlines())
