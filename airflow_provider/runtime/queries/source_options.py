"""Options of Spark's file sources: which ones a person has mistyped.

Spark takes any option, and says nothing of one that it does not know: a mistyped limit is none.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.errors import ConfigError

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
_KNOWN: Final = {
    name.lower(): name for name in f"{_OF_FILES} {_OF_TEXT} {_OF_JSON} {_OF_COLUMNS}".split()
}


def check_options(source: str, file_format: str, options: Iterable[str]) -> None:
    """Refuse mistyped options of a source of files; what is like no other is passed on.

    Args:
        source: the source's name.
        file_format: its format; one that is not Spark's own is not looked at.
        options: the names of its options.

    Raises:
        ConfigError: the message has the option that was meant.
    """
    if file_format.lower() not in _FORMATS:
        return
    for name in options:
        meant = difflib.get_close_matches(name.lower(), _KNOWN, n=1, cutoff=_ALIKE)
        if name.lower() not in _KNOWN and meant:
            msg = (
                f"source {source!r}: {file_format} has no option {name!r}, which Spark would "
                f"ignore; use {_KNOWN[meant[0]]!r}"
            )
            raise ConfigError(msg)
