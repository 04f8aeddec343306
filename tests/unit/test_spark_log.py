"""Spark's own log: a warning is shown once, and the file has all of them."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import airflow_provider.runtime.spark
from airflow_provider.runtime.spark.spark_log import SparkLog, WarningFilter

if TYPE_CHECKING:
    from collections.abc import Iterable

TIME = "26/11/22 13:29:36.123"
TRACE = (
    "java.io.IOException: no such file\n"
    "\tat org.apache.spark.sql.Dataset.collect(Dataset.scala:1)\n"
    "Caused by: java.lang.IllegalStateException: WARN\n"
    "\t... 12 more\n"
)
MOST = 20


def shown_of(lines: Iterable[str], warnings: WarningFilter | None = None) -> list[str]:
    warnings = warnings or WarningFilter()
    return [text for line in lines if (text := warnings.new(line)) is not None]


def warning(text: str, level: str = "WARN", name: str = "StateStore") -> str:
    return f"{TIME} {level} {name}: {text}"


def words(count: int) -> list[str]:
    """Return words without a digit, none of which is a number in base 16."""
    return ["x" * (n + 1) for n in range(count)]


@pytest.mark.parametrize("time", ["26/11/22 13:29:36", "2026-11-22 13:29:36.123 UTC"])
@pytest.mark.parametrize("level", ["WARN", "ERROR", "FATAL"])
def test_a_warning_is_shown_without_its_time(time, level):
    """Spark's own log pattern, and ours with the zone; the terminal has times of its own."""
    line = f"{time} {level} TaskSetManager: Lost task 1.0 in stage 2.0"

    assert [f"{level} TaskSetManager: Lost task 1.0 in stage 2.0"] == shown_of([line])


def test_the_filter_reads_what_the_configuration_writes():
    """The pattern of log4j2.properties, filled in, is a line that is shown."""
    root = Path(airflow_provider.runtime.spark.__file__).parent
    (pattern,) = re.findall(r"layout\.pattern = (.*)", (root / "log4j2.properties").read_text())
    line = pattern.replace("%d{yyyy-MM-dd HH:mm:ss.SSS}{UTC}", TIME).replace("%n%ex", "")
    line = line.replace("%p", "WARN").replace("%c{1}", "StateStore").replace("%m", "full")

    assert "%" not in line
    assert ["WARN StateStore: full"] == shown_of([line])


def test_the_appender_has_one_filter_of_what_nobody_can_change():
    """
    Log4j takes one for each appender, and prints an error at each start of a JVM that has two.
    """
    root = Path(airflow_provider.runtime.spark.__file__).parent
    text = (root / "log4j2.properties").read_text()
    (regex,) = re.findall(r"^appender\.file\.filter\.\w+\.regex = (.*)", text, re.MULTILINE)
    pattern = re.compile(regex.replace("\\\\", "\\"))

    assert 1 == len(set(re.findall(r"^appender\.file\.filter\.(\w+)\.", text, re.MULTILINE)))
    left_out = (
        "Disabling AQE since AQE is not supported in stateful workloads.",
        "spark.sql.adaptive.enabled is not supported in streaming DataFrames",
        "The read limit MaxFiles: 2 for FileStreamSource[file:/in] is ignored when Trigger.Once is "
        "used.",
    )
    assert [True] * 3 == [pattern.fullmatch(line) is not None for line in left_out]
    assert not pattern.fullmatch("The read limit is too low")


@pytest.mark.parametrize(
    "text",
    [
        "partition {n} of stage {n}.0 is slow",
        "file part-{n:05}-{n:032x}.parquet is gone",
        "query 1a2b3c4d-{n:04x}-4def-8abc-00000000{n:04x} is behind",
        "query {n:08x}-abcd-4def-8abc-0123456789ab is behind",
        "StateStore@{n:07x} is full",
    ],
)
def test_a_warning_for_each_partition_is_shown_once(text):
    """Numbers, ids and addresses make no other warning."""
    warnings = WarningFilter()
    lines = [warning(text.format(n=n * 317 + 10)) for n in range(200)]

    assert 1 == len(shown_of(lines, warnings))
    assert 199 == warnings.hidden()


def test_each_message_is_shown_once():
    """Another text, or another class that says the same, is another warning."""
    lines = [warning("full"), warning("slow"), warning("full", name="BlockManager")]
    warnings = WarningFilter()

    assert 3 == len(shown_of(lines, warnings))
    assert [] == shown_of(lines, warnings)
    assert 3 == warnings.hidden()


def test_at_most_twenty_are_shown():
    """A log that says something else each time does not fill the terminal, or the memory."""
    warnings = WarningFilter()
    shown = shown_of((warning(word) for word in words(50)), warnings)

    assert [f"WARN StateStore: {word}" for word in words(MOST)] == shown
    assert 50 - MOST == warnings.hidden()
    assert [] == shown_of([warning("y")], warnings)


def test_what_is_no_warning_is_not_shown():
    """
    Neither is what Spark does, nor the trace below a warning, and it does not count as hidden.
    """
    warnings = WarningFilter()
    lines = [
        warning("Started", level="INFO"),
        warning("Started", level="DEBUG"),
        "",
        "WARN StateStore: without a time",
        *TRACE.splitlines(),
    ]

    assert [] == shown_of(lines, warnings)
    assert 0 == warnings.hidden()


def test_the_terminal_has_each_once_and_the_file_all(tmp_path, caplog):
    """While the block runs new warnings are logged, and at its end how many more the file has."""
    path = tmp_path / "driver.spark.log"
    path.write_text(f"{warning('from the start')}\n")
    spark: Any = None  # asked only when the log moves
    caplog.set_level(logging.WARNING)

    with SparkLog(spark, path).shown(), path.open("a") as file:
        for partition in range(5):
            file.write(f"{warning(f'partition {partition} is slow')}\n{TRACE}")
        file.write(warning("half a line, which Spark is still writing"))

    assert [
        "Spark: WARN StateStore: from the start",
        "Spark: WARN StateStore: partition 0 is slow",
        f"Spark: 4 further warnings like these in {path}",
    ] == caplog.messages


def test_a_log_that_is_gone_is_no_error(tmp_path, caplog):
    """A job does not fail because somebody has removed it."""
    spark: Any = None
    caplog.set_level(logging.WARNING)

    with SparkLog(spark, tmp_path / "none.log").shown():
        pass

    assert [] == caplog.messages
