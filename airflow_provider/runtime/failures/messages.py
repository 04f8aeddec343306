"""Messages for failures: Spark's error conditions in plain words, and next steps by class."""

from __future__ import annotations

import contextlib
import difflib
import os
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from airflow_provider.runtime.errors import fixes
from airflow_provider.runtime.errors.explanation import FailureClass
from airflow_provider.runtime.failures.csv_headers import describe_header
from airflow_provider.runtime.failures.rules import CORRECT_FILE, RETURN_DECLARED
from airflow_provider.runtime.spark.defaults import HADOOP_FOLDERS

if TYPE_CHECKING:
    from airflow_provider.runtime.failures.causes import Cause


_FORMATS: Final = ("csv", "delta", "json", "kafka", "orc", "parquet", "rate", "text", "xml", "avro")


class Wording(NamedTuple):
    """What is wrong, and what to do; empty for Spark's message, and for the step of the class."""

    what: str
    remedy: str


_Word: TypeAlias = Callable[[Mapping[str, str]], Wording]


def wording_of(cause: Cause) -> Wording | None:
    """Return the words for an error, or None."""
    if (header := describe_header(cause.words)) is not None:
        return Wording(*header)
    for condition in cause.conditions:
        for pattern, word in _CONDITIONS.items():
            if fnmatchcase(condition, pattern):
                with contextlib.suppress(KeyError):  # another version's names, or only text is left
                    return word(cause.parameters)
                return None
    for words, word in _WORDS.items():
        if words in cause.words:
            return word({})
    if cause.simple_name == "ModuleNotFoundError":
        return _missing_module(in_worker=cause.in_worker)
    return _PYTHON_ERRORS.get(cause.simple_name)


def _said(what: str, remedy: str) -> _Word:
    def word(given: Mapping[str, str]) -> Wording:
        known = {**fixes.words(), **given}
        return Wording(what.format_map(known), remedy.format_map(known))

    return word


def _missing_module(*, in_worker: bool) -> Wording:
    where = "Spark's workers run" if in_worker else "the driver runs"
    ship = fixes.set_conf(fixes.PY_FILES, "…")
    return Wording("", f"install it where {where}, or ship the file: {ship}")


def _column(given: Mapping[str, str]) -> Wording:
    name, known = given["objectName"], given["proposal"].split(", ")
    if name.startswith("`_metadata`"):
        return Wording(
            f"there is no column {name} behind a union, such as that of a source with also=",
            "use input_file_name(), or select it from each part before the union",
        )
    meant = (difflib.get_close_matches(name, known, n=1, cutoff=0.5) or known)[0]
    others = ", ".join(each for each in known if each != meant)
    more = f" Others are {others}" if others else ""
    return Wording(f"there is no column {name}", f"did you mean {meant}?{more}")


def _colon(given: Mapping[str, str]) -> Wording:
    del given
    way = fixes.set_conf("spark.hadoop.fs.file.impl", "org.apache.hadoop.fs.RawLocalFileSystem")
    return Wording(
        "Hadoop's checksums cannot be used for a file whose name has a colon",
        f"{way} reads it, without checksums of local files; name later files without a colon",
    )


def absent_input(path: str) -> str:
    """Return what to do about a missing input; Hadoop's configuration says where a path leads."""
    is_elsewhere = any(map(os.environ.get, HADOOP_FOLDERS))
    if not is_elsewhere or ":/" in path:
        return ABSENT_INPUT
    return (
        f"{ABSENT_INPUT}; Spark looks for a path without a scheme in Hadoop's fs.defaultFS, so "
        "write file:// before one of this machine"
    )


def _absent_path(given: Mapping[str, str]) -> Wording:
    path = given["path"]
    return Wording(f"the input path does not exist: {path}", absent_input(path))


def _source(given: Mapping[str, str]) -> Wording:
    name = given["provider"]
    meant = difflib.get_close_matches(name, _FORMATS, n=1)
    hint = f"did you mean {meant[0]!r}? " if meant else ""
    return Wording(
        f"Spark has no format {name!r}",
        f"{hint}Spark's own are csv, json, orc, parquet, text and rate; others need their package, "
        f"as in {fixes.set_conf(fixes.PACKAGES, '…')}",
    )


UNREAD_BATCH: Final = "STATE_STORE_COMMIT_VALIDATION_FAILED"
MAKE_ROOM: Final = "make room on that disk"
KILLED_REMEDY: Final = "look for what killed it in the machine's log; mostly it is a lack of memory"
ABSENT_INPUT: Final = "deliver it, correct the path, or make the folder: it may be empty"
_NO_WATERMARK: Final = _said(
    "Spark cannot run this aggregation in append: without a watermark no group is ever complete",
    "{GIVE_WATERMARK}, and group by {WINDOW} or by that column",
)
_DRIVER_ONLY: Final = _said(
    "a function that runs in Spark's workers uses {DRIVER_ONLY}",
    "read what it needs before, into a plain variable, and use that in the function",
)
_CONDITIONS: Final[Mapping[str, _Word]] = {
    "INVALID_CONF_VALUE.*": _said(
        "the setting {confName} cannot be '{confValue}'",
        "correct it in {CONF}, or in Spark's own configuration",
    ),
    "UNRESOLVED_COLUMN.WITH_SUGGESTION": _column,
    "UNRESOLVED_COLUMN.*": _said(
        "there is no column {objectName}", "look at its columns with df.printSchema()"
    ),
    "TABLE_OR_VIEW_NOT_FOUND": _said(
        "there is no table or view {relationName}", "correct the name, or {MAKE_VIEW}"
    ),
    "UNRESOLVED_ROUTINE": _said(
        "there is no SQL function {routineName}", "correct the name, {REGISTER}"
    ),
    "PARSE_SYNTAX_ERROR": _said("the SQL is wrong at {error}{hint}", "correct the SQL there"),
    "DATA_SOURCE_NOT_FOUND": _source,
    "PATH_NOT_FOUND": _absent_path,
    "UNABLE_TO_INFER_SCHEMA": _said("no file says which columns there are", "{GIVE_SCHEMA}"),
    "_LEGACY_ERROR_TEMP_2048": _said("a stream of files needs a schema", "{GIVE_SCHEMA}"),
    "UNSUPPORTED_DATATYPE": _said(
        "the schema has a type {typeName} that Spark does not have",
        "use one of string, int, bigint, double, boolean, date, timestamp, …",
    ),
    "EVENT_TIME_IS_NOT_ON_TIMESTAMP_TYPE": _said(
        "a watermark needs a timestamp, and {eventName} is {eventType}",
        "name a timestamp column, or make the column one: declare it timestamp in {THE_SCHEMA}",
    ),
    "CANNOT_PARSE_INTERVAL": _said(
        "{intervalString} is no interval", "write a number and a unit, as in '10 minutes'"
    ),
    "INVALID_INTERVAL_FORMAT*": _said(
        "'{input}' is no interval", "write a number and a unit, as in '10 minutes'"
    ),
    "UNSUPPORTED_STREAMING_OPERATOR_WITHOUT_WATERMARK": _NO_WATERMARK,
    "STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION": _said(
        "Spark cannot run {operation} in output mode {outputMode}",
        "aggregate in append with {WITH_WATERMARK} and {WINDOW}{OTHER_OUTPUT}",
    ),
    "ATTRIBUTE_NOT_SUPPORTED": _said(
        "a DataFrame has no column or method {attr_name}",
        "correct the name; df.columns has its columns",
    ),
    "DATATYPE_MISMATCH.*": _said(
        "the types of {sqlExpr} do not fit", "cast one of them to the other's type"
    ),
    "CAST_INVALID_INPUT": _said(
        "the value {expression} is no {targetType}",
        "correct the row, or use try_cast, which gives NULL",
    ),
    "DIVIDE_BY_ZERO": _said(
        "a row divides by zero", "use try_divide, which gives NULL, or leave such rows out"
    ),
    "MALFORMED_RECORD_IN_PARSING*": _said(
        "a row cannot be read by the schema: {badRecord}",
        "correct the row or the schema, or {PERMISSIVE}, which gives NULL",
    ),
    "FAILED_READ_FILE.CANNOT_READ_FILE_FOOTER": _said(
        "the file is not in the format that the source reads, or is damaged: {path}", CORRECT_FILE
    ),
    "FAILED_READ_FILE.PARQUET_COLUMN_DATA_TYPE_MISMATCH": _said(
        "column {column} is {actualType} in the file, and {expectedType} in the schema: {path}",
        "correct {THE_SCHEMA}, or cast the column after reading",
    ),
    "FAILED_READ_FILE.*": _said("the file could not be read: {path}", CORRECT_FILE),
    "CONTEXT_ONLY_VALID_ON_DRIVER": _DRIVER_ONLY,
    UNREAD_BATCH: _said(
        "{EACH_BATCH} has not read all rows of its batch, so that the query's state is not written",
        "let it read the whole of its DataFrame, such as by writing it; show(), limit() and an "
        "early return leave rows unread",
    ),
}
IN_A_BATCH: Final[Mapping[str, str]] = {
    "TABLE_OR_VIEW_NOT_FOUND": (
        "read a view of the batch with df.sparkSession.sql(…), since a batch has a session of its "
        "own; or correct the name"
    ),
}
"""What helps against a condition that a function for each batch meets, other than at the start."""
_WORDS: Final[Mapping[str, _Word]] = {
    "No space left on device": _said("", MAKE_ROOM),
    "Disk quota exceeded": _said("", MAKE_ROOM),
    "Relative path in absolute URI": _colon,
    "must be executed with writeStream.start()": _said(
        "{DECLARES}, and computes with a stream", "{WRITE_IT}"
    ),
    "It appears that you are attempting to reference SparkContext": _DRIVER_ONLY,
    "Sorting is not supported on streaming DataFrames": _said(
        "a stream cannot be sorted, since its last row never comes",
        "leave orderBy out, and sort what you read from the output",
    ),
}
_PYTHON_ERRORS: Final[dict[str, Wording]] = {
    **dict.fromkeys(
        ("ArrowInvalid", "ArrowTypeError", "ArrowNotImplementedError", "PySparkValueError"),
        Wording("", RETURN_DECLARED),
    ),
    "SyntaxError": Wording("", "correct the file at that line"),
    "IndentationError": Wording("", "correct the file at that line"),
}


# --- next steps ---------------------------------------------------------------------------------

FIXES: Final[Mapping[FailureClass, str]] = {
    FailureClass.DATA_MISSING: (
        "have the input delivered; or begin at an earlier savepoint, if it is state that is gone"
    ),
    FailureClass.ENVIRONMENT: "look at the machine: its memory, its disks, its network",
    FailureClass.RECOVERABLE: (
        "if it fails at the same batch each time, read the end of the driver's log"
    ),
}
"""What a person does about a failure of each class that a retry may help against."""


def _steps(again: str, after_fix: str) -> dict[FailureClass, str]:
    resumes = f"{again} resumes the run after its last committed batch; nothing is lost or repeated"
    first = f"a retry alone fails again: correct what the error names, then {after_fix}"
    found = {each: f"{resumes}; {fix}" for each, fix in FIXES.items()}
    return {FailureClass.NON_RECOVERABLE: first, **found}


AFTER_A_TASK: Final = _steps("a retry or a clear of the task", "clear the task")
"""The next step for a reader who has a task."""
AFTER_A_COMMAND: Final = _steps("the same command", "repeat the command")
"""The next step for a reader who has given a command."""
