"""Table of what holds on which Spark: what its tests have found."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.present import present

ROOT = Path(__file__).resolve().parents[2]
NOTED = '<properties><property name="outcome" value="refused"/></properties>'
REPORT = f"""<testsuites><testsuite>
<testcase classname="tests.crash.test_versions" name="test_batch"/>
<testcase classname="tests.crash.test_versions" name="test_drain[a]"><failure message="no"/></testcase>
<testcase classname="tests.crash.test_versions" name="test_drain[b]"/>
<testcase classname="tests.crash.test_versions" name="test_join"><error message="no"/></testcase>
<testcase classname="tests.crash.test_versions" name="test_other_partitions">{NOTED}</testcase>
<testcase classname="tests.crash.test_versions" name="test_sources_in_python"><skipped/></testcase>
<testcase classname="tests.spark.test_any_order"
  name="test_a_stream_gives_what_a_batch_job_gives[1-2]"/>
<testcase classname="tests.extensions.scripts.test_with_spark" name="test_each_batch_with_a_merge"/>
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


def test_a_cell_is_the_worst_that_its_cases_have_found(versions, tmp_path):
    """
    A case that failed, was skipped, or has not run, makes the cell a "no", whatever the others say.
    """
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    rows = ("batch", "drain", "join", "partitions", "python-sources", "late-wait", "for-each-batch")

    found = versions.outcomes_in(report, {row: versions.ROWS[row] for row in rows})

    no = versions.FAILED
    assert dict(zip(rows, ("yes", no, no, "refused", no, no, "yes"), strict=True)) == found
    assert {} == versions.outcomes_in(tmp_path / "nothing.xml", versions.ROWS)


def test_a_row_that_is_not_run_again_stays_as_it_was(versions, monkeypatch, tmp_path):
    """Some rows can be run again, and put into the page; its other cells stay."""
    before = {"batch": "yes", "partitions": versions.FAILED}
    versions.PAGE.write_text("\n".join(versions.MARKS))
    versions.write(versions.table({"3.5.9": {"join": "yes"}, "4.0.5": before}))
    monkeypatch.setattr(versions, "install", lambda _: tmp_path)

    def run(command: Sequence[str], **_: Any) -> None:
        assert ["tests/crash/test_versions.py::test_other_partitions"] == command[-1:]
        Path(command[command.index("--junitxml") + 1]).write_text(REPORT)

    monkeypatch.setattr(versions.subprocess, "run", run)
    assert 0 == versions.main(["4.0.5", "--rows", "partitions", "--write"])

    expected = {"3.5.9": {"join": "yes"}, "4.0.5": {"batch": "yes", "partitions": "refused"}}
    assert expected == {version: found for version, found in versions.on_page().items() if found}


def test_each_test_of_the_table_is_there(versions):
    """
    A test that is renamed, or a case that there is no more, is missed here before versions are run.
    """
    missing = [
        f"{row.module}::{test}"
        for row in versions.ROWS.values()
        for test in row.tests
        if f"def {test.partition('[')[0]}(" not in (ROOT / row.module).read_text()
    ]

    assert [] == missing


def test_the_table_takes_the_place_of_the_one_on_the_page(versions):
    """A column for each version, a row for each promise; the rest of the page stays."""
    begin, end = versions.MARKS
    versions.PAGE.write_text(f"before\n{begin}\nold\n{end}\nafter\n")

    lines = versions.table({"3.5.9": {"batch": "yes"}, "4.0.5": {"batch": "refused"}})
    versions.write(lines)

    text = versions.PAGE.read_text()
    assert text.startswith(f"before\n{begin}\n| | 3.5.9 | 4.0.5 | `--rows` |\n|---|---|---|---|\n")
    assert "| BATCH | yes | refused | `batch` |" in text
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
