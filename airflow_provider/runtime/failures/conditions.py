"""Spark's error conditions that need no rule of their own: wrappers, and groups by their names.

Spark has some 1,300 conditions and PySpark 220. Most are decided by their SQLSTATE or their name;
the patterns here are as narrow as that allows, so that a test notices what a new Spark brings.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Final


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


WRAPPING_CONDITIONS: Final = frozenset(
    _names(
        "FAILED_EXECUTE_UDF FLATMAPGROUPSWITHSTATE_USER_FUNCTION_ERROR "
        "FOREACH_BATCH_USER_FUNCTION_ERROR FOREACH_USER_FUNCTION_ERROR PYTHON_DATA_SOURCE_ERROR "
        "PYTHON_EXCEPTION PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR "
        "STAGE_MATERIALIZATION_MULTIPLE_FAILURES STREAMING_ASYNC_OPERATION_FAILED STREAM_FAILED "
        "TASK_WRITE_FAILED TRANSFORM_WITH_STATE_USER_FUNCTION_ERROR UDTF_EXEC_ERROR"
    )
)
"""Conditions that only say that something else has failed."""
MAY_PASS: Final = _names(
    # Spark's own faults, and those of a store, a catalog or another process.
    "CANNOT_LOAD_CHECKPOINT_FILE_MANAGER* CANNOT_LOAD_STATE_STORE "
    "CANNOT_LOAD_STATE_STORE.UNCATEGORIZED CANNOT_RESTORE_PERMISSIONS_FOR_PATH "
    "CANNOT_WRITE_STATE_STORE* CONNECT CONNECT.* CONNECT_* DATA_SOURCE_EXTERNAL_ERROR "
    "FAILED_RENAME_TEMP_FILE INTERNAL_ERROR INTERNAL_ERROR_* SPARK_CONNECT_ILLEGAL_STATE* "
    "STATE_STORE_INVALID_STAMP STATE_STORE_INVALID_STATE_MACHINE_TRANSITION "
    "STATE_STORE_UNEXPECTED_EMPTY_FILE_IN_ROCKSDB_ZIP STDS_INTERNAL_ERROR "
    "STREAMING_CHECKPOINT_LOG_WRITE_FAILURE* STREAMING_PYTHON_RUNNER_* STREAMING_SHUFFLE_* "
    "UNABLE_TO_FETCH_HIVE_TABLES "
    # The type of the exception decides, and Spark adds no more of these.
    "_LEGACY_ERROR_TEMP_* "
    # PySpark's way to another process.
    "BROADCAST_VARIABLE_NOT_LOADED CANNOT_OPEN_SOCKET ERROR_OCCURRED_WHILE_CALLING EXCEED_RETRY "
    "JAVA_GATEWAY_EXITED LOCAL_CONNECT_* PIPE_FUNCTION_EXITED PROTOCOL_ERROR "
    "RESPONSE_ALREADY_RECEIVED UNEXPECTED_RESPONSE_FROM_SERVER UNKNOWN_RESPONSE"
)
"""Conditions of errors that may pass; without another sign they are RECOVERABLE."""
REFUSED_BY_PYSPARK: Final = _names(
    "*_EXCEED* *_INVALID* *_LIMIT *_MISMATCH* *_NOT_* *_ONLY_* *_REQUIRED* *_TYPE* "
    "ARROW_LEGACY_IPC_FORMAT CALL_BEFORE_* CANNOT_* COLUMN_IN_LIST CONFLICTING_* "
    "CONTEXT_UNAVAILABLE_FOR_REMOTE_CLIENT DATA_SOURCE_* DIFFERENT_* DUPLICATED_* FIELD_* "
    "GRAPH_ELEMENT_* HIGHER_ORDER_FUNCTION_* INCORRECT_* INDEX_* INVALID_* LENGTH_* MALFORMED_* "
    "MISSING_* MULTIPLE_* NEAREST_BY_JOIN NEGATIVE_VALUE NOT_* NO_* ONLY_* PANDAS_API_ON_SPARK_* "
    "PIPELINE_* READ_ONLY REUSE_* SESSION_* SLICE_* STOP_ITERATION_* STREAMING_CONNECT_* ST_* "
    "TOO_MANY_* TYPE_HINT_* UDTF_* UNEXPECTED_TUPLE_* UNKNOWN_INTERRUPT_TYPE UNKNOWN_VALUE_* "
    "UNSUPPORTED_* VALUE_* WKB_* WRONG_NUM_* ZERO_INDEX"
)
"""PySpark's conditions of a call, or of a function's result, that will be as wrong again."""


def is_like(condition: str, patterns: tuple[str, ...]) -> bool:
    """Whether a condition is one of the patterns, in which ``*`` stands for anything."""
    return any(fnmatchcase(condition, pattern) for pattern in patterns)


def decides_nothing(condition: str) -> bool:
    """Whether a condition only wraps another error, or is of one that may pass."""
    return condition in WRAPPING_CONDITIONS or is_like(condition, MAY_PASS)
