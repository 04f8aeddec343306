"""The page of configuration against the code: it has every option and every variable."""

from __future__ import annotations

import re
from pathlib import Path

from airflow_provider import get_provider_info

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "configuration.md").read_text("utf-8")
# A whole literal; the shared prefix, and prefixes of it that code compares with, are none.
VARIABLE = re.compile(r"[\"'](SPARK_STREAM_[A-Z]+(?:_[A-Z]+)*_?)[\"']")
OF_TESTS = ROOT / "airflow_provider" / "runtime" / "testing"


def rows_of(title: str) -> dict[str, list[str]]:
    """Return the cells of each row of a section's table, by the name in its first cell."""
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    return {row[0].strip(" `"): [cell.strip() for cell in row[1:]] for row in rows}


def variables() -> set[str]:
    """Return the names of variables that the package has; a prefix of names ends with ``_``."""
    files = (ROOT / "airflow_provider").rglob("*.py")
    texts = (path.read_text("utf-8") for path in files if OF_TESTS not in path.parents)
    return {name for text in texts for name in VARIABLE.findall(text)}


def test_the_page_has_every_option_with_its_default():
    """Of the section, as Airflow gets it from the provider; an empty default is a word."""
    options = get_provider_info()["config"]["spark_stream"]["options"]
    rows = rows_of("Options of Airflow")

    assert [*options] == [*rows]
    assert [] == [name for name, row in rows.items() if not all(row)]
    assert {name: f"`{each['default']}`" for name, each in options.items() if each["default"]} == {
        name: row[0] for name, row in rows.items() if options[name]["default"]
    }


def test_the_page_has_every_variable_of_the_environment():
    """Those for users have a row; the others are named below the table."""
    named = {*re.findall(r"`(SPARK_STREAM_[A-Z_]+)\d?", PAGE)}

    assert {"SPARK_STREAM_CACHE", "SPARK_STREAM_SECRET_"} <= variables()
    assert sorted(variables()) == sorted(named)
    assert {*rows_of("Variables of the environment")} == {
        *named - {"SPARK_STREAM_SECRET_", "SPARK_STREAM_FAILPOINT"}
    }
