"""Settings that change what a row means: their names, and what a start does with each; pure.

The first run of a job pins its values of them (:mod:`~.runtime.jobdir.pinned_settings`). A later
start that is given another value is refused; one that is given none gets the pinned value.
``tests/spark/test_row_settings.py`` finds the settings of a new Spark that nobody has judged.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

Value = str | None
"""The value of a setting; None of one that has neither a value nor a default."""

SEED, ZONE, LANGUAGE = "PYTHONHASHSEED", "TZ", "user.language"
ENVIRONMENT: Final = (SEED, ZONE)
"""Variables of Spark's Python workers: by ``TZ`` they read the clock time of a timestamp."""
_TIME_ZONE: Final = "spark.sql.session.timeZone"
_PINNED: Final = re.compile(
    r"""spark\.sql\.(
    session\.timeZone | timestampType | (avro|parquet)\.(datetime|int96)RebaseMode\w+
    | ansi\..+ | caseSensitive | storeAssignmentPolicy | mapKeyDedupPolicy | groupBy\w+
    | orderByOrdinal | retainGroupColumns | stableDerivedColumnAlias\.enabled
    | parser\.(escapedStringLiterals|quotedRegexColumnNames)
    | decimalOperations\.allowPrecisionLoss | function\..+ | chunkBase64String\.enabled
    | collation\..+ | icu\..+ | charAsVarchar | readSideCharPadding | preserveCharVarcharTypeInfo
    | columnNameOfCorruptRecord | csv\.parser\.columnPruning\.enabled | json\.enable\w+
    | jsonGenerator\..+ | fromJsonForceNullableSchema | xml\..+ | defaultColumn\..+
    | variant\.(allowDuplicateKeys|validateUnicodeInJsonParsing)
    | parquet\.(binaryAsString|fieldId\..+|ignoreVariantAnnotation|inferTimestampNTZ\.enabled
        |int64AsTimestampMillis|int96\w+|mergeSchema|outputTimestampType|reader\..+
        |respectSummaryFiles|writeLegacyFormat)
    | orc\.mergeSchema | sources\.partitionColumnTypeInference\.enabled
    | execution\.pandas\.(convertToArrowArraySafely|inferPandasDictAsMap|respectSessionTimeZone
        |structHandlingMode)
    | execution\.pyspark\.binaryAsBytes | execution\.pythonUDT?F\.(?!arrow\.concurrency).+
    | pyspark\.infer\w+\.enabled
    | streaming\.(flatMapGroupsWithState\.skipEmittingInitialStateKeys|multipleWatermarkPolicy
        |stateStore\.skipNullsForStreamStreamJoins\.enabled)
    | (?!analyzer\.).*[lL]egacy.*
    )""",
    re.VERBOSE,
)
# Of `legacy`: what only commands, catalogs and servers read, and what is fixed with a JVM's start.
_WITHOUT_ROWS: Final = re.compile(
    r"spark\.sql\.legacy\.(addSingleFileInAddFile|allowNonEmptyLocationInCTAS|block\w+|bucketed.+"
    r"|create(Empty|Hive)\w+ByDefault|emptyCurrentDBInCli|hive\..+|keepCommandOutputSchema"
    r"|notReserveProperties|observeMetrics\w+|replaceDatabricksSparkAvro\.enabled"
    r"|sessionInitWithConfigDefaults|setCommandRejectsSparkCoreConfs|skipTypeValidation\w+"
    r"|useV1Command|v1IdentifierNoCatalog|viewSchema\w+)"
)
# Names of Spark 3.0 for settings that Spark reads under both.
_FORMER: Final = re.compile(r"(?<=spark\.sql\.)legacy\.(?=(avro|parquet)\.(datetime|int96)Rebase)")
_UTC: Final = re.compile(
    r"(etc/)?(utc|gmt0?|uct|zulu|universal|greenwich)|z|[+-]0?0(:00)?", re.IGNORECASE
)
_SHOWN: Final = (_TIME_ZONE, "spark.sql.ansi.enabled")


def changes_rows(name: str) -> bool:
    """Whether a setting changes what a row means."""
    return _PINNED.fullmatch(name) is not None and _WITHOUT_ROWS.fullmatch(name) is None


def given_among(conf: Mapping[str, str]) -> dict[str, str]:
    """Return those settings that change what a row means, under their names of today."""
    return {_FORMER.sub("", name): value for name, value in conf.items() if changes_rows(name)}


def is_same(one: Value, other: Value) -> bool:
    """Whether two values mean the same to Spark, such as ``UTC`` and ``Etc/UTC``."""
    return _plain(one) == _plain(other)


def _plain(value: Value) -> Value:
    plain = value.strip().lower() if value is not None else ""
    return value and ("utc" if _UTC.fullmatch(plain) else plain)


def to_apply(
    pinned: Mapping[str, Value], given: Mapping[str, str], usual: Mapping[str, Value]
) -> dict[str, str]:
    """Return the settings that a start sets: the pinned ones that it would not have by itself.

    Args:
        pinned: the values that the job's rows have had so far.
        given: what the user gives; it stays as it is, and :func:`conflicts` refuses it.
        usual: the values of the session without the pinned ones; this Spark knows no others.
    """
    return {
        name: value
        for name, value in pinned.items()
        if value is not None
        and name not in given
        and name in usual
        and not is_same(value, usual[name])
    }


def conflicts(
    pinned: Mapping[str, Value], now: Mapping[str, Value], usual: Mapping[str, Value]
) -> list[str]:
    """Return the names of the settings with which the queries would start, and may not.

    A setting that had no value is no conflict when a later Spark has a default for it, as *usual*.
    """
    return [
        name
        for name, value in pinned.items()
        if name in now
        and not is_same(value, now[name])
        and not (value is None and name in usual and is_same(usual[name], now[name]))
    ]


def describe(values: Mapping[str, Value]) -> str:
    """Return the values that people ask for, and how many others there are."""
    shown = [name for name in _SHOWN if name in values]
    words = ", ".join(f"{name}={values[name]}" for name in shown)
    return f"{words} and {len(values) - len(shown)} more" if shown else f"{len(values)} settings"
