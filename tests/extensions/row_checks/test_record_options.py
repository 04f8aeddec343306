"""Records that were rejected, written as the command writes them, and read again by their source.

What the command writes is read with the options of the source: each record is found once, with the
same text; once corrected, it is a row.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.extensions.row_checks.quarantine_command import file_of
from airflow_provider.extensions.row_checks.record_lines import lines_of
from airflow_provider.extensions.row_checks.records import records_of
from airflow_provider.runtime.sources.files import FilesSource

pytestmark = pytest.mark.spark

SCHEMA = "n int, s string, at timestamp"
AT = "2026-01-01 00:00:00"
CSV = [f"1,ä,{AT}", f"many,b,{AT}"]
JSON = [f'{{"n": 1, "s": "ä", "at": "{AT}"}}', f'{{"n": "many", "s": "b", "at": "{AT}"}}']
HEADER = "n,s,at"
NOT_CLOSED = [f'1,a,"{AT}""', f'1, "b,c", "{AT}']

# Options of CSV, and the lines of a file: the last one is rejected until its "many" is a number.
OF_CSV: dict[str, tuple[dict[str, str], list[str]]] = {
    "none": ({}, CSV),
    "header": ({"header": "true"}, [HEADER, *CSV]),
    "header in quotes": ({"header": "true"}, ['"n","s","at"', *CSV]),
    "a header of other names": (
        {"header": "true", "enforceSchema": "true"},
        ["at,s,number", *CSV],
    ),
    "sep": ({"header": "true", "sep": ";"}, [x.replace(",", ";") for x in (HEADER, *CSV)]),
    "tab": ({"header": "true", "sep": "\\t"}, [x.replace(",", "\t") for x in (HEADER, *CSV)]),
    "delimiter": ({"delimiter": "||"}, [each.replace(",", "||") for each in CSV]),
    "encoding": ({"header": "true", "encoding": "ISO-8859-1"}, [HEADER, *CSV, f"many,ü,{AT}"]),
    "charset": ({"charset": "iso-8859-1"}, [*CSV, f"many,ü,{AT}"]),
    "lineSep": ({"header": "true", "lineSep": "|"}, [HEADER, *CSV]),
    "quote": ({"quote": "'"}, [*CSV, f"many,'a,b',{AT}"]),
    "no quote": ({"quote": ""}, [*CSV, f'many,"a,{AT}']),
    "escape": ({"escape": '"'}, [*CSV, f'many,"a ""b"", c",{AT}', NOT_CLOSED[0]]),
    "charToEscapeQuoteEscaping": (
        {"escape": "\\", "charToEscapeQuoteEscaping": "#"},
        [*CSV, f'many,"a#\\",{AT}'],
    ),
    "comment": ({"comment": "#", "header": "true"}, ["# a comment", HEADER, *CSV]),
    "nullValue": ({"nullValue": "NA"}, [*CSV, f"many,NA,{AT}"]),
    "emptyValue": ({"emptyValue": "-"}, [*CSV, f'many,"",{AT}']),
    "ignoreLeadingWhiteSpace": (
        {"ignoreLeadingWhiteSpace": "true"},
        [*CSV, f'many, "b,c", {AT}', NOT_CLOSED[1]],
    ),
    "ignoreTrailingWhiteSpace": ({"ignoreTrailingWhiteSpace": "true"}, [*CSV, f"many,b ,{AT} "]),
    "maxCharsPerColumn": ({"maxCharsPerColumn": "50", "maxColumns": "3"}, CSV),
    "unescapedQuoteHandling": (
        {"unescapedQuoteHandling": "STOP_AT_CLOSING_QUOTE"},
        [*CSV, f'many,"a"b,c",{AT}'],
    ),
    "timestampFormat": (
        {"timestampFormat": "dd.MM.yyyy HH:mm", "locale": "de"},
        ["1,ä,01.01.2026 00:00", "many,b,01.01.2026 00:00"],
    ),
    "pathGlobFilter": ({"pathGlobFilter": "*.csv", "modifiedBefore": "2030-01-01T00:00:00"}, CSV),
    "no character": ({}, [f"many,\uffff,{AT}", f"1,ä,{AT}", f"many,\ufffeb,{AT}"]),
}
OF_JSON: dict[str, tuple[dict[str, str], list[str]]] = {
    "none": ({}, JSON),
    "options of CSV": ({"header": "true", "comment": "{", "sep": ";"}, JSON),
    "encoding": ({"encoding": "ISO-8859-1"}, JSON),
    "UTF-16": ({"encoding": "UTF-16LE", "lineSep": "\n"}, JSON),
    "lineSep": ({"lineSep": "|"}, [JSON[0], JSON[1].replace(" ", "\n", 1)]),
    "comments": ({"allowComments": "true"}, [f"{JSON[0]} // one", f"{JSON[1]} /* two */"]),
    "single quotes": ({}, [JSON[0], f"{{'n': 'many', 's': 'a }}', 'at': '{AT}'}}"]),
    "names": ({"allowUnquotedFieldNames": "true"}, [each.replace('"n"', "n") for each in JSON]),
    "numbers": ({"allowNumericLeadingZeros": "true"}, [JSON[0].replace("1", "01", 1), JSON[1]]),
    "backslashes": (
        {"allowBackslashEscapingAnyCharacter": "true"},
        [JSON[0], JSON[1].replace('"b"', '"\\b"')],
    ),
    "control characters": (
        {"allowUnquotedControlChars": "true"},
        [JSON[0], JSON[1].replace('"b"', '"\t"')],
    ),
    "timestampFormat": (
        {"timestampFormat": "dd.MM.yyyy"},
        [each.replace(AT, "01.01.2026") for each in JSON],
    ),
    "line separators of Unicode": ({}, [JSON[0], JSON[1].replace('"b"', '"\u2028\x85"')]),
}
CASES = [("csv", name) for name in OF_CSV] + [("json", name) for name in OF_JSON]
SHORT = {("csv", "header"), ("json", "lineSep")}


@pytest.fixture(autouse=True)
def _new_parser_alone(spark):
    """Let Spark 3.5 read no times in the way of Spark 2, where it would refuse to choose."""
    spark.conf.set("spark.sql.legacy.timeParserPolicy", "CORRECTED")
    yield
    spark.conf.unset("spark.sql.legacy.timeParserPolicy")


class Source:
    """A source of files that are in one folder, as ``ctx.read`` reads it."""

    def __init__(self, spark: Any, kind: str, options: dict[str, str]) -> None:
        self._spark, self._options = spark, options
        self.records = records_of(
            "s",
            FilesSource(kind, None, SCHEMA, options),
            value=None,
            on="quarantine",
            limit=None,
        )

    def read(self, folder: Path) -> tuple[list[tuple[Any, ...]], dict[str, str]]:
        """Return the rows, and the rejected records with their reasons."""
        reader = self._spark.read.format(self.records.line_format)
        df = self.records.load(reader.options(**self.records.read_options()), str(folder))
        tap = self.records.tap(df)
        passed = self.records.passed(tap.passed(tap.rows))
        kept = tap.quarantined(tap.rows).select("row", "reason").collect()
        assert len({row.row for row in kept}) == len(kept)
        return [tuple(row) for row in passed.collect()], {row.row: row.reason for row in kept}


@pytest.mark.parametrize(
    ("kind", "name"),
    [each if each in SHORT else pytest.param(*each, marks=pytest.mark.long) for each in CASES],
)
def test_what_is_written_is_read_again(spark, tmp_path, kind, name):
    """With each option of the format: the good rows, and the rejected records as they were."""
    options, given = (OF_CSV if kind == "csv" else OF_JSON)[name]
    lines = lines_of(kind, ["n", "s", "at"], options)
    source = Source(spark, kind, options)
    folder, again, corrected = (tmp_path / each for each in ("in", "again", "corrected"))
    text = lines.line_sep.join([*given, ""])
    put(folder, text.encode(lines.encoding))

    rows, rejected = source.read(folder)
    assert [1] == [row[0] for row in rows]
    bad = [each for each in given if "many" in each or each in NOT_CLOSED]
    assert set(bad) == rejected.keys()
    for record, why in rejected.items():
        said = "is not closed" if record in NOT_CLOSED else "n is no int: many"
        assert said in why or "\uffff" in record

    put(again, file_of(bad, lines))
    others = {k: v for k, v in options.items() if k not in {"pathGlobFilter", "modifiedBefore"}}
    reread = Source(spark, kind, others)
    assert ([], rejected) == reread.read(again)

    put(corrected, file_of([re.sub("[\"']?many[\"']?", "2", each) for each in bad], lines))
    found, _ = reread.read(corrected)
    assert 2 in {row[0] for row in found}


def put(folder: Path, data: bytes) -> None:
    folder.mkdir()
    (folder / "a.csv").write_bytes(data)
