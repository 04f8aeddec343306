"""Rows that a caller gives for a source: in batches, and with the values of the source's columns.

Pure but for DataFrames, which are passed through.
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.types import DataType

Values = tuple[Any, ...]

# Of these Spark makes a value from text, as it does in a CSV or JSON file.
_FROM_TEXT: Final = frozenset(
    {
        "boolean",
        "byte",
        "date",
        "decimal",
        "double",
        "float",
        "integer",
        "long",
        "short",
        "timestamp",
        "timestamp_ntz",
    }
)
_FLOATS: Final = frozenset({"double", "float"})


def batches_of(given: Any, where: str) -> list[Any]:
    """Return the batches: each a DataFrame, Spark's or pandas', or a list of rows.

    Args:
        given: one batch, or a list of several.
        where: the source, for errors.

    Raises:
        ConfigError: it is neither.
    """
    if _is_frame(given):
        return [given]
    if not isinstance(given, list | tuple) or hasattr(given, "__fields__"):
        msg = (
            f"{where}: {type(given).__name__} is no sample; give a DataFrame, a list of rows, or a "
            "list of such batches"
        )
        raise ConfigError(msg)
    batches = [_is_frame(each) or isinstance(each, list) for each in given]
    if given and all(batches):
        return list(given)
    if any(batches):
        msg = f"{where}: rows and batches of rows are mixed; give a list of rows for each batch"
        raise ConfigError(msg)
    return [list(given)]


def _is_frame(given: Any) -> bool:
    return hasattr(given, "columns") and not isinstance(given, Mapping | tuple)


def values_of(row: Any, names: Sequence[str], where: str) -> Values:
    """Return a row's values in the order of the columns; of one that it does not name, None.

    Args:
        row: a mapping, a Row with names, or a tuple with a value for each column.
        names: the columns.
        where: the source, for errors.

    Raises:
        ConfigError: it has a column more, or another number of values.
    """
    columns = ", ".join(names)
    if hasattr(row, "__fields__"):
        row = dict(zip(row.__fields__, row, strict=True))
    if isinstance(row, Mapping):
        for name in row:
            if name not in names:
                msg = f"{where}: a row has a column {name!r}, and the source has {columns}"
                raise ConfigError(msg)
        return tuple(row.get(name) for name in names)
    if not isinstance(row, tuple):
        msg = f"{where}: {row!r} is no row; give a dict, a tuple or a Row"
        raise ConfigError(msg)
    if len(row) != len(names):
        msg = (
            f"{where}: a row has {len(row)} values, and the source {len(names)} columns: {columns}"
        )
        raise ConfigError(msg)
    return row


def with_plain_values(
    batches: Sequence[Sequence[Values]], types: Sequence[DataType]
) -> tuple[list[list[Values]], list[bool]]:
    """Return rows whose values Spark takes for their types, or for text.

    A whole number is one of a column of floats; a time may be text, such as ``2026-01-01 05:30``,
    and is then in the time zone of the session.

    Args:
        batches: rows, each with a value for each column.
        types: of the columns.

    Returns:
        The rows, and for each column whether its values are text, for Spark to cast.
    """
    kinds = [kind.typeName().partition("(")[0] for kind in types]
    texts = [
        kind in _FROM_TEXT and any(isinstance(row[place], str) for rows in batches for row in rows)
        for place, kind in enumerate(kinds)
    ]
    converted = [[tuple(_values(row, kinds, texts)) for row in rows] for rows in batches]
    return converted, texts


def _values(row: Values, kinds: Sequence[str], texts: Sequence[bool]) -> Iterator[Any]:
    for value, kind, is_text in zip(row, kinds, texts, strict=True):
        if value is None:
            yield None
        elif is_text:
            yield _text_of(value)
        elif kind in _FLOATS and isinstance(value, int) and not isinstance(value, bool):
            yield float(value)
        elif kind == "decimal" and isinstance(value, int | float):
            yield decimal.Decimal(str(value))
        elif kind == "binary" and isinstance(value, str):
            yield value.encode()
        else:
            yield value


def _text_of(value: Any) -> str:
    return value.isoformat(" ") if isinstance(value, dt.datetime) else str(value)
