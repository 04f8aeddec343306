"""Arguments and options of ``ctx.read``, checked without Spark.

Spark takes any option of a file source and ignores one that it does not know, so a mistyped limit
would limit nothing.
"""

from __future__ import annotations

import datetime as dt
import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.checkpoint.source_end import is_by_partition
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.datasets import FILE_FORMATS, FORMAT, KAFKA_FORMATS

if TYPE_CHECKING:
    from collections.abc import Iterable


_ALIKE: Final = 0.9  # of two names that differ in a slip of a finger
_OF_FILES: Final = (
    "basePath cleanSource compression fileNameOnly ignoreCorruptFiles ignoreMissingFiles "
    "latestFirst "
    "maxBytesPerTrigger maxCachedFiles maxFileAge maxFilesPerTrigger modifiedAfter modifiedBefore "
    "pathGlobFilter recursiveFileLookup sourceArchiveDir timeZone path discardCachedInputRatio"
)
_OF_TEXT: Final = (
    "charset charToEscapeQuoteEscaping codec columnNameOfCorruptRecord comment dateFormat "
    "delimiter "
    "emptyValue enableDateTimeParsingFallback encoding enforceSchema escape header "
    "ignoreLeadingWhiteSpace ignoreTrailingWhiteSpace inferSchema lineSep locale maxCharsPerColumn "
    "maxColumns mode multiLine nanValue negativeInf nullValue positiveInf preferDate quote "
    "quoteAll samplingRatio sep singleVariantColumn timestampFormat timestampNTZFormat "
    "unescapedQuoteHandling wholetext escapeQuotes"
)
_OF_JSON: Final = (
    "allowBackslashEscapingAnyCharacter allowComments allowNonNumericNumbers "
    "allowNumericLeadingZeros allowSingleQuotes allowUnquotedControlChars allowUnquotedFieldNames "
    "dropFieldIfAllNull ignoreNullFields prefersDecimal primitivesAsString"
)
_OF_COLUMNS: Final = "datetimeRebaseMode int96RebaseMode mergeSchema"
_FORMATS: Final = frozenset({"csv", "json", "orc", "parquet", "text"})
_SPARK_OPTIONS: Final = {
    name.lower(): name for name in f"{_OF_FILES} {_OF_TEXT} {_OF_JSON} {_OF_COLUMNS}".split()
}


def check_options(source: str, file_format: str, options: Iterable[str]) -> None:
    """Refuse mistyped options of a file source; an option unlike any known one is passed on.

    Raises:
        ConfigError: the message has the option that was meant.
    """
    if file_format.lower() not in _FORMATS:
        return
    for name in options:
        meant = difflib.get_close_matches(name.lower(), _SPARK_OPTIONS, n=1, cutoff=_ALIKE)
        if name.lower() not in _SPARK_OPTIONS and meant:
            msg = (
                f"source {source!r}: {file_format} has no option {name!r}, which Spark would "
                f"ignore; use {_SPARK_OPTIONS[meant[0]]!r}"
            )
            raise ConfigError(msg)


LATEST: Final = "latest"
EndOption = str | dt.datetime | Mapping[str, Mapping[str, int]]

# What they answer when they are asked how far they reach is all there is.
_TELL_THEIR_END: Final = frozenset({"kafka", FORMAT, "rate", "rate-micro-batch"})
_KNOWN_ENDS: Final = (
    "'latest', a datetime, or offsets from 0 on by topic and partition such as {'topic': {'0': 9}}"
)
_SHOWN_CHARS: Final = 60
_NO_PARTITIONS: Final = frozenset({*FILE_FORMATS, "rate", "rate-micro-batch", "socket"})


def check_end(
    name: str, source_format: str, ends: EndOption | None, *, bounded: bool, is_internal: bool
) -> EndOption | None:
    """Return *ends*, if the source can end there.

    Raises:
        ConfigError: it cannot; the message names the source and the way out.
    """
    if ends is None:
        return None
    kind = source_format.lower()
    why = _refused(kind, ends)
    if is_internal:
        why = "it ends with the query of the job that writes it; leave ends out"
    if not bounded:
        why = f"ends={_shown(ends)} is of a source that ends; add bounded=True"
    if why is not None:
        msg = f"source {name!r} ({source_format}): {why}"
        raise ConfigError(msg)
    return ends


def _refused(kind: str, ends: object) -> str | None:
    if isinstance(ends, dt.datetime):
        if kind not in {*FILE_FORMATS, *KAFKA_FORMATS}:
            return "only files and Kafka end at a time; give offsets, or ends='latest'"
        return None if ends.tzinfo is not None else f"ends={_shown(ends)} needs a time zone"
    if isinstance(ends, Mapping):
        if kind in _NO_PARTITIONS:
            return "it has no topics and partitions; leave ends out"
        is_known = _are_offsets(ends)
    else:
        is_known = ends == LATEST
    return None if is_known else f"ends={_shown(ends)} is not {_KNOWN_ENDS}"


def tells_its_end(source_format: str, ends: EndOption | None) -> bool:
    """Whether the end that a source reports is the end of all its input.

    A source in Python may report the end of its next read only; it ends when it has no more.
    """
    return ends is not None or source_format.lower() in _TELL_THEIR_END


def _are_offsets(ends: Mapping[Any, Any]) -> bool:
    plain = {topic: dict(p) if isinstance(p, Mapping) else p for topic, p in ends.items()}
    keys = [*plain, *(key for p in plain.values() if isinstance(p, dict) for key in p)]
    if not all(isinstance(key, str) for key in keys) or not is_by_partition(plain):
        return False
    numbers = [offset for partitions in plain.values() for offset in partitions.values()]
    return bool(numbers) and min(numbers) >= 0


def _shown(ends: object) -> str:
    text = ends.isoformat() if isinstance(ends, dt.datetime) else repr(ends)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


MODIFIED: Final = "modified"
NAME: Final = "name"
READ_ORDERS: Final = (MODIFIED, NAME)

ANY_AGE: Final = {"maxFileAge": "36500d"}
"""By name an old file may follow a new one, and Spark would pass over it if a week lies between."""

_CONTRARY: Final = frozenset({"latestfirst", "maxfileage"})


def check_read_order(
    name: str, source_format: str, order: str, options: Mapping[str, str], *, bounded: bool
) -> str:
    """Return *order*, if the source can be read in it.

    Raises:
        ConfigError: it cannot; the message names the source and the way out.
    """
    where = f"source {name!r} ({source_format}): read_order={order!r}"
    if order not in READ_ORDERS:
        msg = f"{where}: use one of {', '.join(repr(each) for each in READ_ORDERS)}"
        raise ConfigError(msg)
    if order == MODIFIED:
        return order
    contrary = [key for key in options if key.lower() in _CONTRARY]
    why = None
    if source_format.lower() not in FILE_FORMATS:
        why = "only files have names; leave it out"
    elif not bounded:
        why = "only of a source that ends all files are known at once; add bounded=True"
    elif contrary:
        why = f"it goes by names alone; leave option {contrary[0]} out"
    if why is not None:
        msg = f"{where}: {why}"
        raise ConfigError(msg)
    return order
