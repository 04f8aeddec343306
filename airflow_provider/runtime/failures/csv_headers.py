"""Spark's refusal of a CSV file whose header does not name the columns of the schema."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

OTHER_COLUMNS: Final = "CSV header does not conform to the schema"
OTHER_NUMBER: Final = (
    "Number of column in CSV header is not equal to number of fields in the schema"
)
_COLUMNS: Final = re.compile(
    rf"{OTHER_COLUMNS}\.\s+Header: (?P<found>.*?)\n\s*Schema: (?P<wanted>.*?)\n\s*Expected: .*\n"
    r"CSV file: (?P<file>.*)",
    re.DOTALL,
)
_NUMBER: Final = re.compile(
    rf"{OTHER_NUMBER}:\s+"
    r"Header length: (?P<found>\d+), schema size: (?P<wanted>\d+)\nCSV file: (?P<file>.*)",
    re.DOTALL,
)


def describe_header(words: str) -> tuple[str, str] | None:
    """Return what is wrong with a file's header, and what to do; None if *words* are of others."""
    columns, number = _COLUMNS.search(words), _NUMBER.search(words)
    found = columns or number
    if found is None:
        return None
    file = unquote(re.sub(r"^file:(//)?(?=/)", "", found["file"].strip()))
    if columns is not None:
        has = f"names the columns {found['found'].strip()!r}, and the schema {found['wanted']!r}"
    else:
        has = f"has {found['found']} columns, and the schema {found['wanted']}"
    return (
        f"the header of {file} {has}: its values would be read under wrong names",
        "put a correct file under its name, or the columns of schema= into that order; or set "
        "enforceSchema='true', which reads the values by position, whatever the header says",
    )
