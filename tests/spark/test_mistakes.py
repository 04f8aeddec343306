"""The mistakes that Spark sees, each with its exact text; the others: tests/unit/test_mistakes.py."""

from __future__ import annotations

import tempfile

import pytest
from mistakes import MISTAKES
from streams import Location

from airflow_provider.runtime.cli.main import main
from airflow_provider.runtime.errors.explanation import WIDEST
from airflow_provider.runtime.spark.defaults import is_known

pytestmark = pytest.mark.spark

SEEN = [mistake for mistake in MISTAKES if mistake.needs_spark]
# It waits for a quarter of a minute.
CASES = [
    pytest.param(each, marks=pytest.mark.whole) if each.entry == "kafka_away" else each
    for each in SEEN
]
# Objects whose first use makes Spark register its settings.
HOMES = ("package", "UI", "Status", "Network", "Kryo", "Worker", "Deploy", "Python", "History")


@pytest.mark.parametrize("mistake", CASES, ids=lambda mistake: mistake.what)
def test_a_mistake_is_explained_on_one_screen(spark, mistake, tmp_path, capsys, monkeypatch):
    """
    Each has its exact text and exit code: what, where, why and what to do, in a dozen short lines.
    """
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    assert mistake.exit_code == main(mistake.arguments(tmp_path), spark=spark)

    said = capsys.readouterr().err
    assert mistake.text.strip() == mistake.said(said, tmp_path)
    screen = said[said.index("spark-stream: error: ") :].splitlines()
    assert len(screen) <= 12
    assert all(len(line) <= WIDEST for line in screen if "details: " not in line)
    if mistake.exit_code == 2:
        assert not (tmp_path / "job").exists()


def test_the_details_have_the_whole_of_it(spark, location: Location, capsys):
    """Spark's stack trace and plan are in the file whose path is the last line of the screen."""
    (mistake,) = [each for each in SEEN if each.entry == "udf_raises"]

    assert 4 == main(mistake.arguments(location.root), spark=spark)

    details = capsys.readouterr().err.splitlines()[-1].partition("details: ")[2]
    with open(details, encoding="utf-8") as file:
        text = file.read()
    assert "KeyError: 'b'" in text
    assert "PythonException" in text
    assert details.startswith(str(location.job_dir / "runs"))


def test_every_setting_of_this_spark_is_known(spark):
    """The list of names has all settings that Spark itself has registered."""
    jvm = spark._jvm
    for home in HOMES:
        jvm.java.lang.Class.forName(f"org.apache.spark.internal.config.{home}$")
    entries = getattr(jvm.org.apache.spark.internal.config, "ConfigEntry$")
    found = getattr(entries, "MODULE$").knownConfigs().keySet()
    names = [str(name) for name in found.toArray()]

    assert len(names) > 1000
    assert [] == [name for name in names if not is_known(name)]
