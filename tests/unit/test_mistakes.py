"""The mistakes that are noticed before Spark starts; those that Spark sees: tests/spark/test_mistakes.py."""

from __future__ import annotations

import importlib
import tempfile
import types
from pathlib import Path

import pytest
import s3fs

from airflow_provider.runtime.cli.main import main
from airflow_provider.runtime.errors.explanation import HEADING, WIDEST, line_in
from tests.spark.mistakes import MISTAKES, Mistake, table

SCRIPTS = Path(__file__).parents[2] / "scripts"
KEYS = {"AWS_ACCESS_KEY_ID": "somebody", "AWS_SECRET_ACCESS_KEY": "secret"}
BEFORE = [mistake for mistake in MISTAKES if not mistake.needs_spark]


@pytest.mark.parametrize(
    "mistake",
    [
        pytest.param(
            each, marks=[pytest.mark.slow] if "AWS_ENDPOINT_URL" in dict(each.environment) else []
        )
        for each in BEFORE
    ],
    ids=lambda mistake: mistake.what,
)
def test_a_mistake_is_explained_on_one_screen_before_spark(mistake, tmp_path, capsys, monkeypatch):
    """
    Each has its exact text and exit code, no JVM is started, and nothing is written for the job.
    """
    import pyspark

    def stop() -> None:
        pyspark.SparkContext._active_spark_context = None

    monkeypatch.setattr(pyspark.SparkContext, "_active_spark_context", None)
    # Other tests of this process reach a store, before and after.
    monkeypatch.setattr(s3fs.S3FileSystem, "_cache", {})
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(pyspark, "started", types.SimpleNamespace(stop=stop), raising=False)
    monkeypatch.setattr("airflow_provider.runtime.spark.session.start_spark", None)
    for name, value in {**KEYS, **mistake.variables(tmp_path)}.items():
        monkeypatch.setenv(name, value)

    assert mistake.exit_code == main(mistake.arguments(tmp_path))

    assert mistake.text.strip() == mistake.said(capsys.readouterr().err, tmp_path)
    assert not (tmp_path / "job").exists()


def test_there_are_forty_mistakes_and_each_is_one_screen():
    """A newcomer's mistakes each have a heading, at most a dozen lines, and something to do."""
    assert len(MISTAKES) >= 40
    assert len(MISTAKES) == len({mistake.what for mistake in MISTAKES})
    for mistake in MISTAKES:
        lines = mistake.text.strip().splitlines()
        assert lines[0].startswith(HEADING)
        assert len(lines) <= 6
        assert any(len(lines) == 1 or "what to do: " in line for line in lines) or "; " in lines[0]


def test_the_page_of_errors_has_the_table(monkeypatch):
    """What the documentation shows of each mistake is what the tests have seen."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    page = importlib.import_module("docs_reference").errors_page()

    assert "\n".join(table()) in page


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.what)
def test_a_screen_is_read_back_as_one_line(mistake: Mistake):
    """
    Who has only the end of a driver's log gets what, where, why and what to do of it in one line.
    """
    line = line_in(["INFO before", *mistake.text.strip().splitlines(), "INFO after"])

    assert line is not None
    assert mistake.text.strip().splitlines()[0].removeprefix(HEADING) in line
    assert "exit code " not in line
    assert all(len(text) < WIDEST * 4 for text in mistake.text.splitlines())
