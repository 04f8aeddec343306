"""Lines of CSV and JSON as Spark reads them from files: a record each, as it is in the file.

Spark's readers of these formats give the text of a record only if they find it malformed. They take
``5,"a`` for a record, and of ``{"n":1}{"n":2}`` the first part, so what follows a value is lost.
Here Spark reads the lines alone: it still leaves out headers, comments and blank lines.
"""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base.names import quoted
from airflow_provider.runtime.jobdir.row_counts import RecordLines
from airflow_provider.runtime.queries.taps import ADDED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

LINE: Final = f"{ADDED}line"
_RAW: Final = "_corrupt_record"
# No character has these numbers. A line that has one all the same is malformed, which gives it
# whole.
NO_CHARACTER: Final = "\uffff"
_NO_QUOTE: Final = "\ufffe"
_ONE_COLUMN: Final = {
    "sep": NO_CHARACTER,
    "quote": _NO_QUOTE,
    "escape": _NO_QUOTE,
    "nullValue": NO_CHARACTER,
    "emptyValue": "",
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": _RAW,
    "enforceSchema": "true",
}
# Options of the reader that say what is in a line, and not which lines there are.
_IN_A_LINE: Final = frozenset(
    [
        *("sep", "delimiter", "quote", "escape", "chartoescapequoteescaping", "nullvalue"),
        *("emptyvalue", "ignoreleadingwhitespace", "ignoretrailingwhitespace", "maxcolumns"),
        *("maxcharspercolumn", "unescapedquotehandling", "enforceschema", "inferschema"),
        *("mode", "wholetext"),
    ]
)
_OF_CSV: Final = frozenset({"header", "comment"})
ENCODINGS: Final = ("encoding", "charset")


def option(options: Mapping[str, str], *names: str, default: str = "") -> str:
    """Return a reader's option by one of its names, which are as Spark takes them, in any case."""
    lower = {key.lower(): str(value) for key, value in options.items()}
    return next((lower[name] for name in names if name in lower), default)


def has_header(kind: str, options: Mapping[str, str]) -> bool:
    """Whether the first line of each file names the columns."""
    return kind == "csv" and option(options, "header").lower() == "true"


def format_of(kind: str, options: Mapping[str, str]) -> str:
    """Return Spark's format that reads the lines: text has no encodings, and is faster."""
    is_text = kind == "json" and is_utf8(option(options, *ENCODINGS, default="UTF-8"))
    return "text" if is_text else "csv"


def options_of(kind: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return the options with which Spark reads the lines."""
    dropped = _IN_A_LINE if kind == "csv" else _IN_A_LINE | _OF_CSV
    if format_of(kind, options) == "text":
        return {k: v for k, v in options.items() if k.lower() not in {*dropped, *ENCODINGS}}
    return {k: v for k, v in options.items() if k.lower() not in dropped} | _ONE_COLUMN


def load_lines(
    reader: Any, path: str | list[str] | None, file_format: str, schema: StructType, name: str
) -> DataFrame:
    """Return the column :data:`LINE`, and those of folders such as ``day=2026-01-01``.

    Args:
        reader: with format and options.
        path: as the reader takes it.
        file_format: ``csv`` or ``text``.
        schema: of the records, which says the types of folders' columns.
        name: of the lines: the header, or Spark warns of each file that has another one.
    """
    from pyspark.sql import functions as sf
    from pyspark.sql.types import StringType, StructField, StructType

    own = [StructField(name, StringType())]
    own += [StructField(_RAW, StringType())] if file_format == "csv" else []
    df: DataFrame = reader.schema(StructType(own)).load(path)
    folders = [field.name for field in df.schema.fields[len(own) :]]
    if folders:
        known = {field.name.lower(): field.dataType for field in schema.fields}
        typed = [
            StructField(each.name, known.get(each.name.lower(), each.dataType))
            for each in df.schema.fields[len(own) :]
        ]
        df = reader.schema(StructType([*own, *typed])).load(path)
    line: Column = sf.col(quoted(name))
    line = sf.coalesce(_RAW, line) if file_format == "csv" else line
    return df.select(line.alias(LINE), *map(quoted, folders))


def lines_of(kind: str, names: Iterable[str], options: Mapping[str, str]) -> RecordLines:
    """Return how a file has records that a source with these options reads."""
    return RecordLines(
        encoding=option(options, *ENCODINGS, default="UTF-8"),
        line_sep=option(options, "linesep", default="\n"),
        header=header_line(names, options) if has_header(kind, options) else None,
    )


def header_line(names: Iterable[str], options: Mapping[str, str]) -> str:
    """Return the header that names these columns."""
    sep = option(options, "sep", "delimiter", default=",")
    quote, escape = (
        option(options, "quote", default='"'),
        option(options, "escape", default="\\"),
    )

    def shown(name: str) -> str:
        if not quote or not any(each in name for each in (sep, quote, "\n", "\r")):
            return name
        return f"{quote}{name.replace(quote, escape + quote)}{quote}"

    return sep.replace("\\t", "\t").join(map(shown, names))


def is_utf8(encoding: str) -> bool:
    """Whether an encoding is UTF-8, by any of its names."""
    try:
        return codecs.lookup(encoding).name == "utf-8"
    except LookupError:
        return False
