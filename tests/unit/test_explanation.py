"""One screen and one line of an error."""

from __future__ import annotations

import dataclasses
import os

import pytest

from airflow_provider.runtime.errors import ConfigError, RefusedRowsError
from airflow_provider.runtime.errors.explanation import (
    WIDEST,
    Explanation,
    Failure,
    FailureClass,
    line_in,
    line_in_text,
)
from airflow_provider.runtime.failures.classify import classify
from airflow_provider.runtime.failures.messages import ABSENT_INPUT, absent_input

FULL = Explanation(
    what="there is no column `usr`",
    location="sessions.py:42",
    query="sessions",
    batch=3,
    source="clicks",
    input_file="/data/a.csv",
    why="[UNRESOLVED_COLUMN] A column with name `usr` cannot be resolved",
    remedy="did you mean `user`?",
)
WORKER = """[PYTHON_EXCEPTION] An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/pyspark/python/lib/pyspark.zip/pyspark/worker.py", line 27, in main
  File "/opt/jobs/sessions.py", line 17, in price
    return {"a": 1}[user]
  File "/usr/lib/python3.11/json/decoder.py", line 355, in raw_decode
KeyError: 'b'
"""
CALLED = """[DIVIDE_BY_ZERO] Division by zero.
== DataFrame ==
"divide" was called from
/opt/jobs/sessions.py:23
"""


def test_a_screen_says_what_where_why_and_what_to_do():
    """Each has its line, and the last one is where the rest is."""
    assert [
        "spark-stream: error: there is no column `usr`",
        "  where: sessions.py:42, query 'sessions', batch 3, source 'clicks', input /data/a.csv",
        "  why: [UNRESOLVED_COLUMN] A column with name `usr` cannot be resolved",
        "  what to do: did you mean `user`?",
        "  exit code 2: nothing was written",
        "  details: /tmp/x.log",
    ] == FULL.screen(2, "nothing was written", "/tmp/x.log")  # noqa: S108 - a name


def test_a_source_is_named_once():
    """What begins with the source does not say it again as the location."""
    about = Explanation(what="source 'a' (csv) cannot be read", location="jobs.py:2", source="a")

    assert "jobs.py:2: source 'a' (csv) cannot be read" == about.line
    assert "jobs.py:2: source 'a': gone" == dataclasses.replace(about, what="source 'a': gone").line
    assert "jobs.py:2, source 'ab': source 'a'" in dataclasses.replace(about, source="ab").line


def test_a_screen_is_a_dozen_short_lines_whatever_it_has_to_say():
    """A plan of a thousand lines is cut where nobody reads on; its file has the rest."""
    long = "+- Project [usr]\n" * 1000
    screen = Explanation(what=long, location=long, why=long, remedy=long).screen(4, "no", "/x")

    assert len(screen) == 12
    assert all(len(line) <= WIDEST for line in screen)
    assert 4 == sum(line.endswith(" …") for line in screen)


def test_the_line_of_a_screen_is_the_one_of_the_exception():
    """A watcher that has only the driver's log says the same as the driver's own record."""
    log = ["INFO x", *FULL.screen(2, "nothing was written", "/x"), "spark-stream: exit code 2"]

    assert FULL.line == line_in(log)
    assert line_in(["killed"]) is None


def test_an_error_with_parts_is_one_line_in_a_record():
    """A row that it shows may be a message with line breaks."""
    error = RefusedRowsError()
    error.explanation = Explanation(what="a row is refused: 1\n2", query="daily", remedy="fix it")

    failure = classify(error, query="daily")

    assert "a row is refused: 1\\n2" == failure.reason
    assert 1 == len(failure.describe().splitlines()) == len(str(error).splitlines())


def test_an_error_of_a_record_has_the_same_parts():
    """A failure shows its condition once, and its cause without the package."""
    failure = Failure(
        FailureClass.NON_RECOVERABLE,
        "'b'",
        "KeyError",
        "daily",
        "h",
        batch=0,
        root_cause="a.b.Wrapped: KeyError: 'b'",
        location="job.py:3",
    )

    assert "NON_RECOVERABLE: job.py:3, query 'daily', batch 0: KeyError: 'b'" == failure.describe()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (WORKER, "sessions.py:17"),
        (CALLED, "sessions.py:23"),
        ("Lost task 0.0", ""),
        ('  File "pyarrow/error.pxi", line 92, in pyarrow.lib.check_status', ""),
        ('  File "pandas/_libs/lib.pyx", line 2391, in pandas._libs.lib.maybe_convert', ""),
    ],
)
def test_the_line_of_the_job_is_found_in_what_spark_says(text, line):
    """A worker's traceback and Spark's call sites have it, between lines of libraries."""
    assert line == line_in_text(text)


def test_a_mistake_keeps_its_line_and_its_source():
    """What is said first stays: an error that passes another frame is not moved."""
    error = ConfigError("the thing; correct it")
    error.at("job.py:3")
    error.at("job.py:9")

    assert "job.py:3: the thing; correct it" == str(error)
    assert ("the thing; correct it", "job.py:3") == (
        classify(error).reason,
        classify(error).location,
    )


def test_a_failure_over_a_file_whose_name_is_no_unicode_can_be_shown():
    """Each text of it is encoded by a terminal, a log and the page's answers."""
    name = os.fsdecode(b"/in/caf\xe9.csv")
    texts = {
        field.name: name
        for field in dataclasses.fields(Failure)
        if field.name not in {"failure_class", "batch", "restartable"}
    }

    failure = Failure.from_dict({"failure_class": "ENVIRONMENT", **texts})

    assert b"/in/caf?.csv" in failure.describe().encode()
    assert {"/in/caf?.csv"} == {getattr(failure, each) for each in texts}


@pytest.mark.parametrize(
    ("path", "variable", "is_told"),
    [
        ("/in", "HADOOP_CONF_DIR", True),
        ("in/*.csv", "YARN_CONF_DIR", True),
        ("file:/in", "HADOOP_CONF_DIR", False),
        ("hdfs://namenode/in", "HADOOP_CONF_DIR", False),
        ("/in", "OTHER", False),
    ],
)
def test_a_missing_input_without_a_scheme_may_be_on_this_machine(
    monkeypatch: pytest.MonkeyPatch, path: str, variable: str, *, is_told: bool
) -> None:
    """Hadoop's configuration gives it to another filesystem, and Spark's message has it bare."""
    for each in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(variable, "/etc/hadoop/conf")
    remedy = absent_input(path)

    assert remedy.startswith(ABSENT_INPUT)
    assert is_told is ("file://" in remedy)
