"""Options of Spark's CSV reader that a source has unless the job says otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_ENFORCE: Final = "enforceSchema"


def with_header_check(file_format: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a source; Spark checks the headers of CSV files against the schema.

    Left alone, Spark warns of a header with other columns or another order in its log, and gives
    the values by position.
    """
    lower = {key.lower(): str(value).lower() for key, value in options.items()}
    has_header = file_format.lower() == "csv" and lower.get("header") == "true"
    if not has_header or _ENFORCE.lower() in lower:
        return dict(options)
    return {**options, _ENFORCE: "false"}
