"""Table of what holds on which Spark: what a test has noted, and the worst of its cases."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.present import present

ROOT = Path(__file__).resolve().parents[2]
REPORT = """<testsuites><testsuite>
<testcase name="test_batch"><properties><property name="outcome" value="yes"/></properties></testcase>
<testcase name="test_drain[a]"><failure message="no"/></testcase>
<testcase name="test_drain[b]"><properties><property name="outcome" value="yes"/></properties></testcase>
<testcase name="test_join"><error message="no"/></testcase>
<testcase name="test_other_partitions">
<properties><property name="outcome" value="refused"/></properties></testcase>
<testcase name="test_sources_in_python"><skipped/></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The script, whose folder and page are the test's own."""
    spec = importlib.util.spec_from_file_location("versions", ROOT / "scripts/versions.py")
    module = importlib.util.module_from_spec(present(spec))
    present(present(spec).loader).exec_module(module)
    monkeypatch.setattr(module, "FOLDER", tmp_path / "versions")
    monkeypatch.setattr(module, "PAGE", tmp_path / "versions.md")
    (tmp_path / "versions").mkdir()
    return module


def test_a_cell_is_the_worst_that_its_cases_have_found(versions):
    """
    A case that failed, or has noted nothing, makes the cell a "no", whatever the others say.
    """
    versions.report_of("3.5.9").write_text(REPORT)

    found = versions.outcomes_in(versions.report_of("3.5.9"))

    assert {
        "test_batch": "yes",
        "test_drain": versions.FAILED,
        "test_join": versions.FAILED,
        "test_other_partitions": "refused",
        "test_sources_in_python": versions.FAILED,
    } == found
    assert {} == versions.outcomes_in(versions.report_of("4.0.5"))


def test_the_table_takes_the_place_of_the_one_on_the_page(versions):
    """
    A column for each version, a row for each promise; the rest of the page stays.
    """
    begin, end = versions.MARKS
    versions.PAGE.write_text(f"before\n{begin}\nold\n{end}\nafter\n")

    lines = versions.table({"3.5.9": {"test_batch": "yes"}, "4.0.5": {"test_batch": "refused"}})
    versions.write(lines)

    text = versions.PAGE.read_text()
    assert text.startswith(f"before\n{begin}\n| | 3.5.9 | 4.0.5 | test |\n|---|---|---|---|\n")
    assert "| BATCH | yes | refused | `-k batch` |" in text
    assert text.endswith(f"|\n{end}\nafter\n")
    assert "old" not in text


def test_a_pyspark_in_front_is_the_only_one_of_the_environment(versions, monkeypatch, tmp_path):
    """
    Neither another Spark's home nor its Python reaches the tests; each has a cache of its own.
    """
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/python2")

    environ = versions.environment_of(tmp_path / "3.5.9")

    assert {"SPARK_HOME", "PYSPARK_PYTHON"}.isdisjoint(environ)
    assert environ["PYTHONPATH"].startswith(f"{tmp_path}/3.5.9:")
    assert f"{tmp_path}/3.5.9.cache" == environ["SPARK_STREAM_CACHE"]
