"""The table of failures: the class of each error.

The first rule that any cause matches decides: so the machine comes before the data, and the data
before the program.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.errors.explanation import THERE, FailureClass
from airflow_provider.runtime.errors.fixes import FROM_SCRATCH
from airflow_provider.runtime.failures.conditions import (
    MAY_PASS,
    REFUSED_BY_PYSPARK,
)
from airflow_provider.runtime.failures.csv_headers import OTHER_COLUMNS, OTHER_NUMBER
from airflow_provider.runtime.failures.rule import Rule

if TYPE_CHECKING:
    from airflow_provider.runtime.failures.causes import Cause

_NON_RECOVERABLE: Final = FailureClass.NON_RECOVERABLE
_DATA_MISSING: Final = FailureClass.DATA_MISSING
_ENVIRONMENT: Final = FailureClass.ENVIRONMENT
_RECOVERABLE: Final = FailureClass.RECOVERABLE


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


RETURN_DECLARED: Final = "let the function return what it declares, or correct what it declares"
CORRECT_FILE: Final = (
    "put a correct file under its name; its batch is planned with it, so that moving it away does "
    "not help"
)
UNANSWERED: Final = "the network, or what is behind it, does not answer"
DISK: Final = "the disk is full, broken or read-only, or there are too many open files"
OTHER_HEADER: Final = "the header of a CSV file does not name the columns of the schema"
UNREADABLE: Final = "a file is damaged, or is not what its source reads"
ABSENT: Final = "input is gone, or is not there yet: files, offsets, topics"
JVM_GONE: Final = Rule(
    "the driver's JVM has ended",
    _ENVIRONMENT,
    types=("Py4JNetworkError",),
    py4j_types=("ConnectionError", "EOFError"),
    words=("Answer from Java side is empty",),
    restarts=False,
)

RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "files or state of the checkpoint are gone, or not as long as they were written",
        _DATA_MISSING,
        types=("MissingStateError",),
    ),
    Rule(
        "the job, its options or its checkpoint cannot be used as they are",
        _NON_RECOVERABLE,
        types=("ConfigError", "CheckpointError", "RevertError", "StopError"),
    ),
    Rule(
        "more rows came late, or break a rule, than is accepted, and they would again",
        _NON_RECOVERABLE,
        types=("LateRowsError", "RefusedRowsError"),
    ),
    Rule(
        "Spark reads other input than was planned, and would again",
        _NON_RECOVERABLE,
        types=("MisreadInputError",),
        remedy=(
            "rename the files that the message names, or read them by another path; if it names "
            "none, report it with the version of Spark: nothing of the batch is published"
        ),
    ),
    JVM_GONE,
    Rule(
        "memory has run out",
        _ENVIRONMENT,
        types=("OutOfMemoryError", "MemoryError"),
        conditions=_names(
            "AGGREGATE_OUT_OF_MEMORY CANNOT_LOAD_STATE_STORE.*_OUT_OF_MEMORY "
            "POINTER_ARRAY_OUT_OF_MEMORY SPILL_OUT_OF_MEMORY UNABLE_TO_ACQUIRE_MEMORY"
        ),
        sql_states=("53", "82"),
        words=(
            "OutOfMemoryError",
            "Java heap space",
            "GC overhead limit exceeded",
            "Cannot allocate memory",
            "unable to create native thread",
            "OOMKilled",
        ),
        errnos=(errno.ENOMEM,),
    ),
    Rule(
        DISK,
        _ENVIRONMENT,
        words=(
            "No space left on device",
            "Disk quota exceeded",
            "Read-only file system",
            "Input/output error",
            "Too many open files",
            "Stale file handle",
            "not enough space",
        ),
        errnos=(
            errno.ENOSPC,
            errno.EDQUOT,
            errno.EROFS,
            errno.EIO,
            errno.EMFILE,
            errno.ENFILE,
            errno.ESTALE,
        ),
    ),
    Rule(
        "the cluster has ended the application",
        _ENVIRONMENT,
        words=(
            "All masters are unresponsive",
            "Master removed our application",
            "cancelled because SparkContext was shut down",
            "Cannot call methods on a stopped SparkContext",
        ),
        restarts=False,
    ),
    Rule(
        "an executor, its host or a Python worker was lost",
        _ENVIRONMENT,
        types=("ExecutorLostFailure", "ExecutorDeadException"),
        conditions=("CONCURRENT_SCHEDULER_INSUFFICIENT_SLOT",),
        words=(
            "ExecutorLostFailure",
            "Executor heartbeat timed out",
            "Lost executor",
            "Container killed",
            "Container marked as failed",
            "Container from a bad node",
            "Command exited with code 137",
            "Python worker exited unexpectedly",
            "Python worker failed to connect back",
        ),
    ),
    Rule(
        "the state cannot be read by this job: another version, or rows of another form",
        _NON_RECOVERABLE,
        conditions=(
            "CANNOT_LOAD_STATE_STORE.INVALID_CHANGE_LOG_*_VERSION",
            "CANNOT_LOAD_STATE_STORE.*_ROW_FORMAT_VALIDATION_FAILURE",
        ),
        remedy=f"run it with the Spark and the query that wrote this state, or {FROM_SCRATCH}",
    ),
    # Before permissions: Hadoop's clients say AccessControlException of it, too.
    Rule(
        "a Kerberos ticket is missing or has expired",
        _ENVIRONMENT,
        words=(
            "Client cannot authenticate via",
            "Failed to find any Kerberos",
            "GSS initiate failed",
            "Kerberos ticket is missing",
        ),
        remedy="get one with kinit, and renew it beside the driver, or give Spark a keytab",
    ),
    # Before what may pass, and before what is gone: the JVM says FileNotFoundException of a file
    # that it may not open, too.
    Rule(
        "permission is denied",
        _NON_RECOVERABLE,
        types=_names(
            "PermissionError AccessControlException AccessDeniedException AuthenticationException "
            "AuthorizationException SecurityException"
        ),
        words=(
            "Permission denied",
            # Kafka's client in Java puts the error that counts into the text of another one.
            "common.errors.GroupAuthorizationException",
            "common.errors.SaslAuthenticationException",
            "common.errors.SslAuthenticationException",
            "common.errors.TopicAuthorizationException",
        ),
        errnos=(errno.EACCES, errno.EPERM),
        remedy="give the account of the driver this permission, or use another location",
    ),
    Rule(
        "reading state was disturbed, for no reason that lasts",
        _RECOVERABLE,
        conditions=_names(
            "CANNOT_LOAD_STATE_STORE.FAILED_TO_GET_CHANGELOG_WRITER "
            "CANNOT_LOAD_STATE_STORE.UNRELEASED_THREAD_ERROR STATE_STORE_OPERATION_OUT_OF_ORDER"
        ),
    ),
    Rule(
        "shuffle files are lost; the batch writes them again",
        _DATA_MISSING,
        types=("FetchFailedException", "MetadataFetchFailedException"),
        words=("FetchFailed(",),
        restarts=True,
    ),
    Rule(
        "the path is none",
        _NON_RECOVERABLE,
        types=("NotADirectoryError", "IsADirectoryError"),
        errnos=(errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG),
        remedy="correct the path",
    ),
    Rule(
        "state or checkpoint files are lost or damaged",
        _DATA_MISSING,
        conditions=_names(
            "BATCH_METADATA_NOT_FOUND CANNOT_LOAD_STATE_STORE.AUTO_SNAPSHOT_REPAIR_FAILED "
            "CANNOT_LOAD_STATE_STORE.CANNOT_* CANNOT_LOAD_STATE_STORE.INVALID_CHECKPOINT_LINEAGE "
            "CANNOT_LOAD_STATE_STORE.SNAPSHOT_PARTITION_ID_NOT_FOUND "
            "CANNOT_LOAD_STATE_STORE.UNEXPECTED_* CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED "
            "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND STATE_STORE_ROW_CHECKSUM_VERIFICATION_FAILED "
            "STDS_*_UNAVAILABLE STDS_FAILED_TO_READ_* STDS_NO_PARTITION_DISCOVERED_IN_STATE_STORE "
            "STREAMING_CHECKPOINT_MISSING_METADATA_FILE "
            "STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY "
            "STREAM_STREAM_JOIN_INCONSISTENT_STATE*"
        ),
        words=(
            "Stream ended prematurely",  # LZ4's; FetchFailed comes first
            "Stream is corrupted",
            "not found in offset log",
        ),
    ),
    Rule(
        ABSENT,
        _DATA_MISSING,
        types=_names(
            "AbsentInputError MissingInputError UnreachedEndError LostInputError "
            "FileNotFoundException FileNotFoundError NoSuchFileException NoSuchKey "
            "NoSuchKeyException NoSuchBucketException OffsetOutOfRangeException "
            "NoOffsetForPartitionException UnknownTopicOrPartitionException"
        ),
        conditions=_names(
            "FAILED_READ_FILE.FILE_NOT_EXIST KAFKA_DATA_LOSS* LOAD_DATA_PATH_NOT_EXISTS "
            "PATH_NOT_FOUND"
        ),
        # The same condition of Spark's connector, whose exception does not always say its name.
        words=("Some data may have been lost because they are not available in Kafka",),
    ),
    Rule(
        UNANSWERED,
        _RECOVERABLE,
        types=_names(
            "ConnectionError TimeoutError OutageError gaierror ConnectException SocketException "
            "SocketTimeoutException NoRouteToHostException UnknownHostException "
            "NoHttpResponseException TimeoutException RpcTimeoutException RetriableException "
            "SQLRecoverableException SQLTransientException "
            # HDFS' own, which it raises while a namenode starts or datanodes are away.
            "BlockMissingException SafeModeException StandbyException ServerTooBusyException"
        ),
        # Of clients that give no other sign: libpq under SQLAlchemy, those in Rust, and those of
        # object stores, whose types have the number of the answer in their names, or nothing. Of
        # HDFS without datanodes: a plain IOException.
        words=(
            *("Is the server running", "error sending request", "Connection reset"),
            *("Premature end of Content-Length", "Status Code: 50", "503 Service Unavailable"),
            *("could only be written to", "Could not get block locations", "are bad. Aborting"),
            *("Name node is in safe mode", "does not have enough number of replicas"),
        ),
    ),
    Rule(
        "it was interrupted, or met another writer",
        _RECOVERABLE,
        types=_names(
            "InterruptedException InterruptedIOException ClosedByInterruptException "
            "LeaseLostError RunCancelledError StopNotYetError"
        ),
        conditions=("CONCURRENT_STREAM_LOG_UPDATE", "OPERATION_CANCELED", "SPARK_JOB_CANCELLED"),
    ),
    Rule(
        "state or a log of the checkpoint does not fit the job",
        _NON_RECOVERABLE,
        conditions=_names(
            "INVALID_LOG_VERSION* MALFORMED_LOG_FILE STATE_REPARTITION_INVALID_CHECKPOINT* "
            "STATE_REWRITER_INVALID_CHECKPOINT* STATE_STORE_*INCOMPATIBLE* STATE_STORE_*MISMATCH* "
            "STATE_STORE_*NOT_SUPPORTED* STATE_STORE_*SCHEMA* STATE_STORE_*UNSUPPORTED* "
            "STATE_STORE_*VALIDATION_FAILURE STATE_STORE_UNKNOWN_INTERNAL_COLUMN_FAMILY "
            "STDS_MIXED_CHECKPOINT_FORMAT_VERSIONS_NOT_SUPPORTED "
            "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA "
            "STREAMING_UNFINISHED_REPARTITION_DETECTED "
            "STREAM_STREAM_JOIN_INCOMPATIBLE_STATE_STORE_CONFIGS"
        ),
        remedy=f"undo the change of the query, of its settings or of the file, or {FROM_SCRATCH}",
    ),
    Rule(
        "a function, module or class is not there",
        _NON_RECOVERABLE,
        types=_names(
            "ImportError NameError AttributeError ClassNotFoundException NoClassDefFoundError "
            "IncompatibleClassChangeError UnsupportedClassVersionError"
        ),
        conditions=("CANNOT_LOAD_CHECKPOINT_FILE_MANAGER.ERROR_LOADING_CLASS",),
        remedy=THERE,
    ),
    Rule(
        "Spark cannot plan the query, or does not support what it asks for",
        _NON_RECOVERABLE,
        types=("AnalysisException", "ParseException"),
        conditions=_names(
            "AMBIGUOUS_RESOLVER_EXTENSION CANNOT_INSTANTIATE_HIVE_FUNCTION "
            "CHANGELOG_CONTRACT_VIOLATION* CLASS_NOT_OVERRIDE_EXPECTED_METHOD FAILED_FUNCTION_CALL "
            "FAILED_TO_CREATE_PLAN_FOR_DIRECT_QUERY FAILED_TO_LOAD_ROUTINE "
            "FAILED_UPDATE_VIEW_SCHEMA HYBRID_ANALYZER_EXCEPTION* INSUFFICIENT_TABLE_PROPERTY* "
            "INVALID_BUCKET_FILE INVALID_CURSOR* INVALID_HANDLE* INVALID_SQL_FUNCTION_PLAN_* "
            "INVALID_UDF_IMPLEMENTATION MISSING_ATTRIBUTES* MISSING_TIMEOUT_CONFIGURATION "
            "NO_UDF_INTERFACE PLAN_VALIDATION_FAILED_* "
            "TABLE_VALUED_FUNCTION_FAILED_TO_ANALYZE_IN_PYTHON "
            "TRANSFORM_WITH_STATE_SCHEMA_MUST_BE_NULLABLE UDT_CLASS_NOT_FOUND* "
            "UNEXPECTED_OPERATOR_IN_* UNEXPECTED_USE_OF_* UNEXPECTED_V2_* UNSUPPORTED_*"
        ),
        sql_states=(
            *(
                "02",
                "07",
                "0A",
                "21",
                "24",
                "2B",
                "3F",
                "42",
                "46",
                "51",
                "54",
                "56038",
                "F0",
                "HV",
            ),
            *("KD000", "KD003", "KD005", "KD009", "KD00B", "KD011"),
        ),
        remedy=THERE,
    ),
    Rule(
        "Spark refuses a query before its first batch: an option, or what it asks for",
        _NON_RECOVERABLE,
        start_types=("IllegalArgumentException", "UnsupportedOperationException"),
        remedy=THERE,
    ),
    Rule(
        "the program is wrong",
        _NON_RECOVERABLE,
        types=_names(
            "TypeError SyntaxError NotImplementedError PicklingError ClassCastException "
            "NotSerializableException"
        ),
        conditions=("STATE_STORE_COMMIT_VALIDATION_FAILED",),
        remedy=THERE,
    ),
    Rule(
        "PySpark refuses a call, or what a function has returned",
        _NON_RECOVERABLE,
        pyspark_conditions=REFUSED_BY_PYSPARK,
        remedy=RETURN_DECLARED,
    ),
    Rule(
        "a row cannot be processed, and will not be when the batch runs again",
        _NON_RECOVERABLE,
        types=("ArithmeticException", "DateTimeException", "NumberFormatException"),
        worker_types=_names("ArithmeticError AssertionError LookupError ValueError"),
        conditions=("MALFORMED_PROTOBUF_MESSAGE",),
        sql_states=("22", "23", "P0"),
        remedy="correct the row in the input, or let the job handle such rows",
    ),
    Rule(
        "a file has a colon in its name, which Hadoop cannot read",
        _NON_RECOVERABLE,
        words=("Relative path in absolute URI",),
    ),
    Rule(
        OTHER_HEADER,
        _NON_RECOVERABLE,
        words=(OTHER_COLUMNS, OTHER_NUMBER),
        remedy=CORRECT_FILE,
    ),
    # Of a file on a disk any reason is the file's own, since the disk's and those of permissions
    # come before; of a file in a store only those that name its format.
    Rule(
        UNREADABLE,
        _NON_RECOVERABLE,
        types=_names(
            "CharacterCodingException FileFormatException MalformedInputException ZipException "
            "ZstdIOException"
        ),
        conditions=_names(
            "FAILED_READ_FILE.CANNOT_READ_FILE_FOOTER "
            "FAILED_READ_FILE.PARQUET_COLUMN_DATA_TYPE_MISMATCH "
            "FAILED_READ_FILE.UNSUPPORTED_FILE_SYSTEM"
        ),
        words=(
            "error while reading file file:",
            "is not a Parquet file",
            "Unexpected end of input stream",  # of a gzip file that is cut off
            "gzip stream CRC failure",
            "not a gzip file",
        ),
        remedy=CORRECT_FILE,
    ),
    Rule(
        "a table no longer has the version or snapshot after which it would be read on",
        _DATA_MISSING,
        conditions=_names(
            "DELTA_LOG_FILE_NOT_FOUND_FOR_STREAMING_SOURCE DELTA_MISSING_FILES_UNEXPECTED_VERSION "
            "DELTA_TRUNCATED_TRANSACTION_LOG DELTA_VERSIONS_NOT_CONTIGUOUS"
        ),
        words=("the snapshot was expired or removed",),  # of Iceberg's connector
        remedy=(
            "let the table keep its history for longer than its readers may stand still; now "
            f"{FROM_SCRATCH}"
        ),
    ),
    Rule(
        "a store did not give a file as a whole",
        _RECOVERABLE,
        conditions=("FAILED_READ_FILE*",),
    ),
    Rule(
        "a file on a disk does not fit the checksum beside it",
        _DATA_MISSING,
        types=("ChecksumException",),
    ),
)

# What only says that something else has failed; it is not shown where the other is known.
WRAPPERS: Final = frozenset(
    _names(
        "OriginalTryStackTraceException Py4JError Py4JException Py4JJavaError PythonException "
        "SparkException StreamingQueryException UnknownException"
    )
)


def find_rule(causes: list[Cause]) -> tuple[Rule, list[Cause]] | None:
    """Return the first rule that any of *causes* matches, and the matching causes; or None."""
    for rule in RULES:
        matching = [cause for cause in causes if rule.matches(cause)]
        if matching:
            return rule, matching
    return None


def describe_rules() -> str:
    """Return the table as Markdown, for the documentation."""
    lines = ["| class | what has happened | restart | signs |", "|---|---|---|---|"]
    for rule in RULES:
        restarts = "yes" if rule.restartable else "no"
        lines.append(
            f"| {rule.failure_class.value} | {rule.what} | {restarts} | {_signs_of(rule)} |"
        )
    lines.append(f"| {_RECOVERABLE.value} | anything else | yes | such as {_quoted(MAY_PASS)} |")
    return "\n".join(lines)


def _signs_of(rule: Rule) -> str:
    signs = [", ".join(f"`{name}`" for name in (*rule.types, *rule.conditions))]
    if rule.worker_types:
        signs.append(f"in a user's function: {_quoted(rule.worker_types)}")
    if rule.start_types:
        signs.append(f"before the first batch of a query: {_quoted(rule.start_types)}")
    if rule.pyspark_conditions:
        signs.append(f"of PySpark: {_quoted(rule.pyspark_conditions)}")
    if rule.py4j_types:
        signs.append(f"on the way to the JVM: {_quoted(rule.py4j_types)}")
    if rule.sql_states:
        signs.append(f"SQLSTATE {', '.join(f'{state}…' for state in rule.sql_states)}")
    if rule.errnos:
        signs.append(", ".join(errno.errorcode[number] for number in rule.errnos))
    if rule.words:
        signs.append(", ".join(f"“{words}”" for words in rule.words))
    return "; ".join(sign for sign in signs if sign)


def _quoted(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)
