"""Spark's options: each has a decision, refused ones are refused by name, and the page says so."""

from __future__ import annotations

import ast
import logging
import zipfile
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.errors.fixes import Caller, addressing
from airflow_provider.runtime.queries.spark_options import check_options
from airflow_provider.runtime.spark.defaults import MAINTENANCE, PROVIDER
from airflow_provider.runtime.spark.installation import spark_home
from airflow_provider.runtime.spark.options import (
    Decision,
    check_session,
    check_settings,
    parse_table,
    sections,
)
from scripts import spark_options as script

ROOT = Path(__file__).resolve().parents[2]
CLASS_OF_FILES = "spark.sql.streaming.checkpointFileManagerClass"
TAKEN = {"true": "false", "false": "true"}


def decided(*decisions: Decision) -> list[tuple[str, Any, Any]]:
    """Return section, row and rule of all such decisions."""
    return [
        (section.name, row, rule)
        for section in sections().values()
        for row in section.rows.values()
        for rule in row.rules
        if rule.decision in decisions
    ]


# --- Spark's own lists ----------------------------------------------------------------------------


def test_each_option_and_setting_of_the_installed_spark_has_a_decision():
    """A new version's option is named here until somebody has decided what it means."""
    lists = script.lists_of(spark_home({}))

    assert 100 < sum(map(len, lists.options.values()))
    assert 100 < len([name for name in lists.settings if name.startswith("spark.sql.streaming.")])
    assert [] == script.missing(lists, script.read_table())
    assert [] == script.undecided(script.read_table())


def test_an_unknown_option_setting_class_or_source_is_named():
    """Each with its section; what several formats share is known in each of them."""
    lists = script.Lists(
        "4.3",
        {"csv": frozenset({"header", "singleVariantColumn", "skipRows"})},
        frozenset({"spark.sql.files.skipHalf", "spark.sql.shuffle.partitions"}),
        ("TomlOptions$",),
    )

    assert [
        "csv: skipRows",
        "spark.sql.files: spark.sql.files.skipHalf",
        "TomlOptions$: an unknown class of options, or an unknown source",
    ] == script.missing(lists, script.read_table())


def test_a_class_of_options_and_a_source_that_spark_has_now_are_found_in_its_jars(tmp_path):
    """A class is known by its interface, a source by the file in which Spark registers it."""
    with zipfile.ZipFile(tmp_path / "spark-sql_2.13-4.3.0.jar", "w") as jar:
        jar.writestr("org/apache/spark/sql/toml/TomlOptions$.class", script._INTERFACE)
        jar.writestr("org/apache/spark/sql/OtherOptions.class", b"")
        jar.writestr(script._REGISTER, "# ours\norg.apache.spark.sql.toml.TomlFileFormat\n")

    lists = script.lists_of(tmp_path)

    assert ("4.3", ("TomlFileFormat", "TomlOptions$")) == (lists.minor, lists.unknown)


TABLE = """\
[files]
path | 3.5- | passed

[csv]
> A note.
header | 3.5- | passed | A reason
preferDate | 4.0- | passed
"""


def test_names_and_versions_of_a_spark_are_taken_into_the_table():
    """A new name is undecided, one that has gone ends before; decisions and notes stay."""
    later = script.Lists("4.3", {"csv": frozenset({"header", "fold"})}, frozenset(), ())

    text = script.updated(TABLE, later)

    assert TABLE.replace("4.0- |", "4.0-4.2 |") + "fold | 4.3- | undecided\n" == text
    assert ["csv: fold"] == script.undecided(parse_table(text))

    earlier = script.Lists("3.5", {"csv": frozenset({"preferDate"})}, frozenset(), ())
    assert "header | 4.0- |" in (text := script.updated(TABLE, earlier))
    assert "preferDate | 3.5- |" in text
    assert "path | 3.5- |" in text


def test_the_page_is_what_the_table_says():
    """Run scripts/spark_options.py after a change of the table."""
    assert script.page(script.read_table()) == script.PAGE.read_text(encoding="utf-8")


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        (section, row.name, value)
        for section, row, rule in decided(Decision.REFUSED)
        for value in rule.values
        if not row.is_setting
    ],
)
def test_a_refused_value_of_an_option_is_refused_by_name(section, name, value):
    """In any case of letters, with the reason and the fix; other values are passed on."""
    file_format = {"files": "parquet", "records": "csv"}.get(section, section)

    for spelled in (value, value.upper()):
        with pytest.raises(ConfigError, match=rf"^source 'in': option {name}={spelled}: \w.*; \w"):
            check_options("in", file_format, {name.upper(): spelled})

    check_options("in", file_format, {name: TAKEN.get(value, "UTF-8")})


@pytest.mark.parametrize("file_format", ["csv", "JSON", "xml"])
@pytest.mark.parametrize("mode", ["DROPMALFORMED", "dropMalformed", "PERMISIVE"])
def test_a_mode_that_drops_records_or_is_mistyped_is_refused(file_format, mode):
    """Spark would drop records uncounted, or take the word for PERMISSIVE."""
    with pytest.raises(ConfigError, match=f"source 'in': option mode={mode}: DROPMALFORMED drops"):
        check_options("in", file_format, {"mode": mode})
    check_options("in", file_format, {"mode": "failFast"})


@pytest.mark.parametrize(
    ("encoding", "beside"),
    [("UTF-16", "multiLine"), ("UTF-16LE", "multiLine"), ("utf-16be", "lineSep")],
)
def test_an_encoding_that_spark_reads_right_beside_another_option_is_taken(encoding, beside):
    """UTF-16 has a mark at the beginning of a file, so that lineSep does not help."""
    check_options("in", "csv", {"encoding": encoding, beside: "true"})

    with pytest.raises(ConfigError, match=f"option encoding={encoding}: .*; convert"):
        check_options("in", "csv", {"encoding": encoding, beside: "false"})
    with pytest.raises(ConfigError, match="option encoding=UTF-16: "):
        check_options("in", "csv", {"encoding": "UTF-16", "lineSep": "\n"})


def test_text_in_another_encoding_is_refused():
    """Its reader ignores the option."""
    with pytest.raises(ConfigError, match="option encoding=ISO-8859-1: Spark reads text as UTF-8"):
        check_options("in", "text", {"encoding": "ISO-8859-1"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (row.name, value)
        for _, row, rule in decided(Decision.REFUSED)
        for value in rule.values
        if row.is_setting
    ],
)
def test_a_refused_value_of_a_setting_is_refused_by_name(name, value):
    """Wherever it is given, and with the way to override a file of Spark's."""
    refused, harmless = {name: value}, {name: TAKEN[value]}
    with pytest.raises(ConfigError, match=rf"^--conf {name}={value}: \w.*; leave it out"):
        check_settings(refused, "--conf")
    with pytest.raises(ConfigError, match=rf"^{name}={value}: .*--conf {name}={TAKEN[value]} over"):
        check_session(refused)
    with addressing(caller=Caller.OPERATOR), pytest.raises(ConfigError, match="of the operator"):
        check_session(refused)

    check_settings(harmless, "--conf")
    check_session(harmless)


# --- what is counted, lifted or said --------------------------------------------------------------

_FILTERS = ("spark/test_late_rows.py", "test_rows_are_read_before_they_are_filtered")
SHOWN_BY = {
    ("files", "maxFileAge"): (
        "spark/test_file_names.py",
        "test_files_of_any_age_are_read",
    ),
    **dict.fromkeys(
        (
            ("kafka", "startingOffsets"),
            ("spark-stream-kafka", "startingOffsets"),
        ),
        (
            "extensions/kafka/test_kafka_options.py",
            "test_a_source_that_ends_begins_with_the_first_offset",
        ),
    ),
    ("spark-stream-kafka", "failOnDataLoss"): (
        "extensions/kafka/test_with_spark.py",
        "test_expired_messages_end_a_run_or_are_counted",
    ),
    **{
        (f"spark.sql.{each}", f"spark.sql.{each}.filterPushdown.enabled"): _FILTERS
        for each in ("avro", "csv", "json")
    },
    ("spark.sql.streaming", CLASS_OF_FILES): (
        "spark/test_edges.py",
        "test_checkpoints_on_a_disk_are_written_without_a_process_for_each_file",
    ),
    ("spark.sql.streaming", MAINTENANCE): (
        "spark/test_edges.py",
        "test_what_a_job_chooses_about_state_counts",
    ),
    ("spark.sql.streaming", PROVIDER): (
        "unit/test_spark_defaults.py",
        "test_state_has_a_partition_for_each_core_in_rocksdb",
    ),
}
"""The test that shows what is lifted or counted, by section and name."""


@pytest.mark.parametrize(
    ("section", "name"),
    sorted({(s, row.name) for s, row, _ in decided(Decision.LIFTED, Decision.COUNTED)}),
)
def test_what_is_lifted_or_counted_is_shown_by_a_test(section, name):
    """Its name is here, and a test has it."""
    file, test = SHOWN_BY[section, name]
    defined = ast.walk(ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8")))
    assert test in {each.name for each in defined if isinstance(each, ast.FunctionDef)}


@pytest.mark.parametrize(
    ("file_format", "name", "value"),
    [
        ("csv", "maxFileAge", "1d"),
        ("json", "multiLine", "TRUE"),
        ("kafka", "failOnDataLoss", False),
    ],
)
def test_an_option_that_leaves_out_rows_uncounted_is_in_the_log(caplog, file_format, name, value):
    """The line has the source, the option and what Spark leaves out."""
    caplog.set_level(logging.WARNING)

    check_options("in", file_format, {name: value})

    (line,) = caplog.messages
    assert line.startswith(f"source=in option {name}={value}: Spark ")
    assert "leaves out" in line or "never reads" in line


@pytest.mark.parametrize(
    ("file_format", "mistyped", "meant"),
    [
        ("csv", "maxFilesPerTriger", "maxFilesPerTrigger"),
        ("xml", "rowtags", "rowTag"),
        ("kafka", "startingOffset", "startingOffsets"),
        ("rate", "rowPerSecond", "rowsPerSecond"),
    ],
)
def test_a_mistyped_option_is_refused_with_the_name_that_was_meant(file_format, mistyped, meant):
    """Spark would ignore it."""
    with pytest.raises(ConfigError, match=f"{file_format} has no option '{mistyped}'.*'{meant}'"):
        check_options("in", file_format, {mistyped: "1"})


@pytest.mark.parametrize(
    ("file_format", "name"),
    [
        ("csv", "acme.special"),
        ("kafka", "kafka.ssl.truststore.type"),
        ("delta", "ignoreMissingFile"),
    ],
)
def test_an_option_unlike_any_known_one_and_those_of_others_are_passed_on(file_format, name):
    """A connector, and Kafka's client, have options that no table of Spark's has."""
    check_options("in", file_format, {name: "true"})
